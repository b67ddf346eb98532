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
        # For how long the machine was suspended, and for how much of it nothing counted the time.
        self._suspended_s = 0.0
        self._uncounted_s = 0.0

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1_000 * (1.0 + self._drift)) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop.time() - self._suspended_s

    def boottime(self) -> float:
        return self._loop.time() - self._uncounted_s

    def stood_still(self, for_s: float, *, is_counted: bool) -> None:
        """The machine was suspended, and knows for how long; or its host has paused it, and its wall clock alone is
        right when it goes on."""
        self._suspended_s += for_s
        if not is_counted:
            self._uncounted_s += for_s

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
