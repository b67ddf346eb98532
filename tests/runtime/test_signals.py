"""Asked to stop: once, by an echo, again."""

from __future__ import annotations

from headrace.runtime.signals import ECHO_S, Asked, StopRequests


def test_what_follows_at_once_is_an_echo_and_what_follows_later_is_meant() -> None:
    times = [50.0, 50.0, 50.0 + ECHO_S * 0.9, 50.0 + ECHO_S * 1.9, 50.0 + ECHO_S * 1.9]
    requests = StopRequests(iter(times).__next__)
    found = [requests.classify() for _ in times]
    assert found == [Asked.FIRST, Asked.ECHO, Asked.ECHO, Asked.AGAIN, Asked.AGAIN]
