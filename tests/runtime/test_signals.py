"""Asked to stop: once, by an echo, again."""

from __future__ import annotations

from headrace.runtime.signals import ECHO_S, Asked, StopRequests


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


def test_what_follows_at_once_is_an_echo_and_what_follows_later_is_meant() -> None:
    clock = Clock()
    requests = StopRequests(clock)
    assert requests.heard() is Asked.FIRST
    assert requests.heard() is Asked.ECHO
    clock.now += ECHO_S * 0.9
    assert requests.heard() is Asked.ECHO
    clock.now += ECHO_S
    assert requests.heard() is Asked.AGAIN
    assert requests.heard() is Asked.AGAIN
