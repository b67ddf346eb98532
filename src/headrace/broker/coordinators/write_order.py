"""Appends of coordinators, and the order in which they take effect: that of the log.

An append ends when its disk is done with it, and those who wait for several are called in whatever order the event loop
has for them. So what an append leads to takes its place when the append is asked for, and happens when everything
before it has happened. Whatever becomes of an append, it is an error code in the end: who asked for it always hears.

An append is made in the leader epoch for which its coordinator has loaded the partition. Once that epoch is over it has
failed, also when the same broker leads again: what the epoch between has written, its coordinator has not read.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from headrace.broker.coordinators.surroundings import CoordinatorSurroundings
from headrace.broker.partitions.leadership import NO_LEADER_EPOCH
from headrace.broker.partitions.partition import Partition
from headrace.config import INT32_MAX
from headrace.errors import (
    ErrorCode,
    FencedLeaderEpochError,
    HeadraceError,
    KafkaError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from headrace.log import Appended, Origin, Verification
from headrace.runtime import Buffer

log = logging.getLogger("headrace.broker.coordinator")

COMPRESSION_OVERHEAD_BYTES = 64


class Append:
    """One append to a partition, under way or done. `error` is what became of it."""

    __slots__ = ("_future", "_leader_epoch", "_partition", "_then", "_what", "error", "index")

    def __init__(self, what: str, index: int, error: ErrorCode) -> None:
        """An append that has ended already."""
        self._what = what
        self.index = index
        self.error = error
        self._future: asyncio.Future[Appended] | None = None
        self._then: Callable[[], None] | None = None
        self._partition: Partition | None = None
        self._leader_epoch = NO_LEADER_EPOCH

    @classmethod
    def under_way(
        cls, what: str, index: int, future: asyncio.Future[Appended], partition: Partition, leader_epoch: int
    ) -> Append:
        """An append whose end is `future`'s, provided that `partition` is still led in that epoch then."""
        append = cls(what, index, ErrorCode.NONE)
        append._partition, append._leader_epoch = partition, leader_epoch
        append._future = future
        future.add_done_callback(append._ended)
        return append

    @property
    def is_done(self) -> bool:
        return self._future is None

    def when_done(self, then: Callable[[], None]) -> None:
        """Call `then` once the append has ended, on the event loop; for an append that is not done."""
        assert self._future is not None
        assert self._then is None
        self._then = then

    def give_up(self, error: ErrorCode) -> None:
        """Let it have ended, now and with this error, unless it has: whatever becomes of it, nobody waits for it."""
        if self._future is not None:
            self._end(error)

    def _ended(self, future: asyncio.Future[Appended]) -> None:
        failure = None if future.cancelled() else future.exception()
        if self._future is None:
            return  # it was given up
        if future.cancelled():
            self._end(ErrorCode.REQUEST_TIMED_OUT)  # nobody knows whether it is in the log
        elif failure is not None:
            self._end(_error_of(failure, self._what))
        elif self._is_over:
            self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # it was in the log, which may have been cut off since
        else:
            self._end(ErrorCode.NONE)

    @property
    def _is_over(self) -> bool:
        """Whether the epoch in which it was made has ended meanwhile."""
        if self._leader_epoch == NO_LEADER_EPOCH or self._partition is None:
            return False
        return self._partition.leader_epoch != self._leader_epoch

    def _end(self, error: ErrorCode) -> None:
        self._future, self.error = None, error
        then, self._then = self._then, None
        if then is not None:
            then()


def begin_append(
    around: CoordinatorSurroundings,
    topic: str,
    index: int,
    build: Callable[[], Buffer],
    *,
    leader_epoch: int = NO_LEADER_EPOCH,
    verification: Verification | None = None,
    transaction_version: int = 0,
    timeout_ms: int | None = None,
) -> Append:
    """Append a coordinator's batch. Never raises: an append of which nobody hears would be waited for for ever.

    With a leader epoch, only while the partition is led in that one. `verification` is for a batch that belongs to a
    transaction: it is refused unless that is open, or this is the guard to open it with. What is in the log but not in
    all in-sync replicas after `timeout_ms` has failed, whatever becomes of it.
    """
    what = f"{topic}-{index}"
    try:
        partition = around.leaders.partition_here(topic, index)
        appended = partition.append(
            build(),
            origin=Origin.COORDINATOR,
            acks=-1,
            verification=verification,
            transaction_version=transaction_version,
            leader_epoch=leader_epoch,
            timeout_ms=timeout_ms,
        )
    except Exception as error:  # noqa: BLE001 - also what nobody thought of: the coordinator has to go on
        return Append(what, index, _error_of(error, what))
    if isinstance(appended, Appended):
        return Append(what, index, ErrorCode.NONE)
    return Append.under_way(what, index, asyncio.ensure_future(appended), partition, leader_epoch)


def batch_bytes_max(around: CoordinatorSurroundings, topic: str, index: int) -> int:
    """The largest batch that the partition takes; of one that is not here any, as it is refused anyway."""
    try:
        config = around.replicas.get(topic, index).log.config
    except HeadraceError:
        return INT32_MAX
    bytes_max = min(config.max_message_bytes, config.segment_bytes)
    if config.codec is not None:
        # What cannot be made smaller becomes a little larger when it is compressed.
        bytes_max -= COMPRESSION_OVERHEAD_BYTES + bytes_max // 100
    return bytes_max


def _error_of(error: BaseException, what: str) -> ErrorCode:
    if isinstance(error, (FencedLeaderEpochError, UnknownLeaderEpochError)):
        # Told in the word for it that those who asked for an append know: coordinators, and other brokers'.
        log.info("%s: a record of the coordinator was not written: %s", what, error)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if isinstance(error, UnknownTopicOrPartitionError):
        # Whoever asks for markers may name what was deleted since, or never was, and is told.
        log.debug("%s: a record of the coordinator was not written: %s", what, error)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(error, KafkaError):
        log.warning("%s: a record of the coordinator was not written: %s", what, error)
        return ErrorCode(error.code)
    if isinstance(error, HeadraceError):
        log.error("%s: a record of the coordinator was not written: %s", what, error)
    else:
        log.error(
            "%s: a record of the coordinator was not written, by a defect of the broker: please report it. Who waits "
            "for the record is told; retries go on by themselves",
            what,
            exc_info=error,
        )
    return ErrorCode.UNKNOWN_SERVER_ERROR


@dataclass(slots=True, eq=False)
class _Place:
    """Something that happens once its appends have ended and everything before it has happened."""

    partitions: Collection[int]
    appends: list[Append]  # those that had not ended when the place was taken
    appends_left: int
    then: Callable[[], None]
    has_happened: bool = False


class WriteOrder:
    """The places of one topic, in the order of each of its partitions."""

    def __init__(self) -> None:
        self._places: dict[int, deque[_Place]] = {}

    def add(self, partitions: Collection[int], appends: Collection[Append], then: Callable[[], None]) -> None:
        """`then` comes after these appends, which were just begun, and after whatever is before it in these partitions.

        It may be called at once. If it raises, that is said in the broker's log. Several partitions cannot wait for
        each other in a circle: a place is taken in all of them in one step.
        """
        under_way = [append for append in appends if not append.is_done]
        if not under_way and not any(index in self._places for index in partitions):
            _do(then)
            return
        place = _Place(partitions, under_way, len(under_way), then)
        for index in partitions:
            self._places.setdefault(index, deque()).append(place)
        for append in under_way:
            append.when_done(functools.partial(self._one_ended, place))

    def give_up(self, index: int, error: ErrorCode) -> None:
        """Nobody waits any longer for what is under way in that partition: it has failed with this error.

        What belongs to other partitions too happens in its turn there; nothing of this partition waits for that.
        """
        places = self._places.pop(index, ())
        for place in places:
            place.partitions = [other for other in place.partitions if other != index]
        for place in places:
            for append in place.appends:
                if append.index == index:
                    append.give_up(error)
            self._go_on(place)

    def _one_ended(self, place: _Place) -> None:
        place.appends_left -= 1
        self._go_on(place)

    def _go_on(self, place: _Place) -> None:
        """Let a place happen if it is its turn, and whatever comes next."""
        ready = deque((place,))
        while ready:
            ready.extend(self._happen(ready.popleft()))

    def _happen(self, place: _Place) -> list[_Place]:
        """Let a place happen if it is its turn; those that come next."""
        if place.has_happened or place.appends_left:
            return []
        if any(self._places[index][0] is not place for index in place.partitions):
            return []
        place.has_happened = True
        # Still in its place: what it leads to in turn comes after what was asked for before.
        _do(place.then)
        following = []
        for index in place.partitions:
            places = self._places[index]
            places.popleft()
            if places:
                following.append(places[0])
            else:
                del self._places[index]
        return following


def _do(then: Callable[[], None]) -> None:
    try:
        then()
    except Exception:
        log.exception("what follows from an append failed, by a defect of the broker: please report it")
