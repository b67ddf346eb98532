"""How fast something goes, and how long to pause where that is too fast, as Apache Kafka computes it.

A rate is measured over the last samples. What has just begun counts as if it had gone on for all samples but one: so a
first burst may take as much. Changes of the cluster have a bucket of tokens instead, which may be overdrawn once.
"""

from __future__ import annotations

from typing import Final

_MS: Final = 1000.0


class Rate:
    """An amount per second, over the last `samples` times `window_ms`. All times are in milliseconds."""

    __slots__ = ("_at", "_lasts", "_samples", "_starts", "_values", "_window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._samples = samples
        self._window_ms = window_ms
        # Of each sample: when it began, when something was last counted in it, and how much. They are used in turn.
        self._starts: list[int] = []
        self._lasts: list[int] = []
        self._values: list[float] = []
        self._at = 0

    def record(self, amount: float, now_ms: int) -> None:
        starts = self._starts
        if not starts:
            self._begin(0, now_ms)
        elif now_ms - starts[self._at] >= self._window_ms:
            self._at = (self._at + 1) % (self._samples + 1)
            self._begin(self._at, now_ms)
        self._values[self._at] += amount
        self._lasts[self._at] = now_ms

    def _begin(self, at: int, now_ms: int) -> None:
        if at == len(self._starts):
            self._starts.append(now_ms)
            self._lasts.append(now_ms)
            self._values.append(0.0)
        else:
            self._starts[at] = self._lasts[at] = now_ms
            self._values[at] = 0.0

    def _measure(self, now_ms: int) -> tuple[float, int]:
        """The sum of all samples that are not over, and the time that they stand for."""
        age_ms = self._samples * self._window_ms
        for at, last in enumerate(self._lasts):
            if now_ms - last >= age_ms:
                self._begin(at, now_ms)
        elapsed_ms = now_ms - min(self._starts, default=now_ms)
        missing = self._samples - 1 - elapsed_ms // self._window_ms
        if missing > 0:
            elapsed_ms += missing * self._window_ms
        return sum(self._values), max(elapsed_ms, 1)

    def per_second(self, now_ms: int) -> float:
        total, elapsed_ms = self._measure(now_ms)
        return total / (elapsed_ms / _MS)

    def room(self, bound: float, now_ms: int) -> float:
        """How much more makes it as fast as it may be."""
        total, elapsed_ms = self._measure(now_ms)
        return bound * elapsed_ms / _MS - total

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """For how long nothing is to come, so that it is no faster than it may be; 0 where it is not."""
        total, elapsed_ms = self._measure(now_ms)
        rate = total / (elapsed_ms / _MS)
        return round((rate - bound) / bound * elapsed_ms) if rate > bound else 0

    def sample_end_ms(self, now_ms: int) -> int:
        """Until when what is recorded belongs to the present sample."""
        return self._starts[self._at] + self._window_ms if self._starts else now_ms

    def is_quiet(self, now_ms: int) -> bool:
        """Whether nothing of what was counted matters any more."""
        return now_ms - max(self._lasts, default=0) >= (self._samples + 1) * self._window_ms


class TokenBucket:
    """So many tokens a second, up to what some seconds give. What is taken may be more than there is."""

    __slots__ = ("_burst_s", "_tokens", "_updated_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._burst_s = samples * window_ms / _MS
        self._tokens: float | None = None  # full
        self._updated_ms = 0

    def tokens(self, per_second: float, now_ms: int) -> float:
        burst = per_second * self._burst_s
        if self._tokens is None:
            self._tokens = burst
        self._tokens = min(burst, self._tokens + per_second * (now_ms - self._updated_ms) / _MS)
        self._updated_ms = now_ms
        return self._tokens

    def take(self, count: float, per_second: float, now_ms: int) -> None:
        self._tokens = min(per_second * self._burst_s, self.tokens(per_second, now_ms) - count)

    def throttle_ms(self, per_second: float, now_ms: int) -> int:
        """Until there is no lack of tokens any more."""
        tokens = self.tokens(per_second, now_ms)
        return round(-tokens / per_second * _MS) if tokens < 0 else 0

    def is_quiet(self, now_ms: int) -> bool:
        """Whether it is full again, at any rate."""
        return self._tokens is None or (self._tokens >= 0 and now_ms - self._updated_ms >= self._burst_s * _MS)
