"""What one client has used of its quotas, and for how long it has to be quiet.

Whoever is within its quotas is counted with an addition: how much room is left is computed once for each sample of a
rate, as it does not shrink until that is over but by what is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.broker.quotas.rates import Rate, TokenBucket

_MS: Final = 1000
#: A share of the time of one core, in percent.
_PERCENT: Final = 100.0


class Allowance:
    """A bound on what some clients use together, and what they have used."""

    __slots__ = ("_pending", "_rate", "_throttle_ms_max", "_window", "bound", "now_ms", "room", "room_until_ms")

    def __init__(
        self, bound: float, samples: int, window_ms: int, now_ms: Callable[[], int], throttle_ms_max: int | None = None
    ) -> None:
        self.bound = bound
        self.now_ms = now_ms
        self._rate = Rate(samples, window_ms)
        self._window = (samples - 1) * window_ms / _MS
        self._throttle_ms_max = throttle_ms_max
        #: What is left until then, where that is not over.
        self.room = 0.0
        self.room_until_ms = 0
        # What was used of it and is still to be recorded.
        self._pending = 0.0

    @property
    def burst(self) -> float:
        """How much may come at once."""
        return self.bound * self._window

    def set_bound(self, bound: float) -> None:
        if bound != self.bound:
            self._record_pending(self.now_ms())
            self.bound = bound

    def room_at(self, now_ms: int) -> float:
        """How much may be used now, without a pause."""
        if now_ms >= self.room_until_ms:
            self._record_pending(now_ms)
            self._rate.record(0, now_ms)
            self.room = self._rate.room(self.bound, now_ms)
            self.room_until_ms = self._rate.sample_end_ms(now_ms)
        return self.room

    def take(self, amount: float) -> None:
        """So much was used, for which there was room."""
        self.room -= amount
        self._pending += amount

    def record(self, amount: float) -> int:
        """So much was used: for how many milliseconds nobody of these clients should use more."""
        now_ms = self.now_ms()
        self._record_pending(now_ms)
        self._rate.record(amount, now_ms)
        throttle_ms = self._rate.throttle_ms(self.bound, now_ms)
        return throttle_ms if self._throttle_ms_max is None else min(throttle_ms, self._throttle_ms_max)

    def try_out(self, amount: float) -> int:
        """What `record` would say; nothing is counted."""
        throttle_ms = self.record(amount)
        self._rate.record(-amount, self.now_ms())
        return throttle_ms

    def _record_pending(self, now_ms: int) -> None:
        if self._pending:
            # It was used while the room was known, which is within one sample.
            used_ms = min(now_ms, self.room_until_ms - 1) if self.room_until_ms else now_ms
            self._rate.record(self._pending, used_ms)
            self._pending = 0.0
        self.room_until_ms = 0

    def is_quiet(self) -> bool:
        """Whether it is no more than a new one."""
        return not self._pending and self._rate.is_quiet(self.now_ms())


class PartitionChanges:
    """A bound on the partitions that some clients create and delete, each second."""

    __slots__ = ("_bucket", "_now_ms", "bound")

    def __init__(self, bound: float, samples: int, window_ms: int, now_ms: Callable[[], int]) -> None:
        self.bound = bound
        self._bucket = TokenBucket(samples, window_ms)
        self._now_ms = now_ms

    def set_bound(self, bound: float) -> None:
        self.bound = bound

    def throttle_ms(self) -> int:
        return self._bucket.throttle_ms(self.bound, self._now_ms())

    def take(self, partitions: int) -> None:
        self._bucket.take(partitions, self.bound, self._now_ms())

    def is_quiet(self) -> bool:
        return self._bucket.is_quiet(self._now_ms())


class ClientMeter:
    """The quotas of one client: None where it has none of a kind."""

    __slots__ = ("_now_ms", "changes", "consumed", "produced", "worked")

    def __init__(
        self,
        produced: Allowance | None,
        consumed: Allowance | None,
        worked: Allowance | None,
        changes: PartitionChanges | None,
    ) -> None:
        self.produced = produced
        self.consumed = consumed
        self.worked = worked
        self.changes = changes
        self._now_ms = next((one.now_ms for one in (produced, consumed, worked) if one is not None), None)

    def has_room(self, produced: int, consumed: int) -> bool:
        """Whether so many bytes more are within the quotas, and some time."""
        if self._now_ms is None:
            return True
        # Once for all, and without a call for each, as every request of the short way is asked for.
        now_ms = self._now_ms()
        own = self.worked
        if own is not None and (own.room if now_ms < own.room_until_ms else own.room_at(now_ms)) < 0:
            return False
        own = self.produced
        if (
            produced
            and own is not None
            and produced > (own.room if now_ms < own.room_until_ms else own.room_at(now_ms))
        ):
            return False
        own = self.consumed
        return not consumed or own is None or own.room_at(now_ms) >= consumed

    def take(self, produced: int, consumed: int, seconds: float) -> None:
        """So much was used, for which there was room."""
        if produced and self.produced is not None:
            self.produced.take(produced)
        if consumed and self.consumed is not None:
            self.consumed.take(consumed)
        if self.worked is not None:
            self.worked.take(seconds * _PERCENT)

    def throttle_s(self, produced: int, consumed: int, seconds: float) -> float:
        """So much was used: for how long the client has to be quiet."""
        throttle_ms = 0
        if produced and self.produced is not None:
            throttle_ms = self.produced.record(produced)
        if consumed and self.consumed is not None:
            throttle_ms = max(throttle_ms, self.consumed.record(consumed))
        if seconds and self.worked is not None:
            throttle_ms = max(throttle_ms, self.worked.record(seconds * _PERCENT))
        return throttle_ms / _MS

    def held_back_s(self, consumed: int) -> float:
        """For how long the client had to be quiet, were it given so much."""
        return 0.0 if self.consumed is None else self.consumed.try_out(consumed) / _MS

    @property
    def consumed_max(self) -> int | None:
        """How much one answer may have."""
        return None if self.consumed is None else int(self.consumed.burst)
