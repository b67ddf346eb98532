"""The simulated wall clock of one host: virtual time, with an error that a test may change."""

from __future__ import annotations

from headrace.runtime.simulated.loop import SimulatedLoop

# 2026-01-01T00:00:00Z. Any moment does, as long as it is the same in every run.
EPOCH_MS = 1_767_225_600_000


class SimulatedClock:
    def __init__(self, loop: SimulatedLoop, *, skew_ms: int = 0):
        self._loop = loop
        self.skew_ms = skew_ms
        self._drift = 0.0

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1_000 * (1.0 + self._drift)) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop.time()

    def jump(self, by_ms: int) -> None:
        """Set the wall clock forward, or back; monotonic time does not notice."""
        self._loop.trace.record("clock-jump", by_ms)
        self.skew_ms += by_ms

    def drift(self, rate: float) -> None:
        """Let the wall clock run that much too fast from now on (0.01: ten milliseconds a second), or too slow."""
        self._loop.trace.record("clock-drift", rate)
        before_ms = self.now_ms()
        self._drift = rate
        self.skew_ms += before_ms - self.now_ms()
