"""The controller on the broker that was elected: decides on its own image, and appends what it decided to the store.

Its image is ahead of everyone's: it has what was decided and is not written yet. So decisions need not wait for one
another, and those that come while an append is under way go into the next one together. Nobody is answered before
what was decided, and all that it was decided on, is in the store and in this broker's image. But the other brokers are
told as soon as it is in the store: what they wait for is not to wait for the disk of this one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.broker.metadata.follower import MetadataFollower
from headrace.broker.metadata.tail import MetadataTail
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.requests.refusals import refuse, refuse_topics
from headrace.cluster.decision import Decision
from headrace.cluster.image import Image
from headrace.cluster.store import (
    OutcomeUnknownError,
    SessionLostError,
    Store,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.cluster.store.batches import RecordGroup
from headrace.errors import (
    HeadraceError,
    KafkaError,
    KafkaStorageError,
    NotControllerError,
    RequestTimedOutError,
    StaleControllerEpochError,
    UnknownServerError,
)
from headrace.runtime import DiskError
from headrace.runtime.rarely import Rarely

log = logging.getLogger("headrace.broker.controller")

R = TypeVar("R")

NO_EPOCH = -1
RECORDS_AT_ONCE_MAX = 10_000
WAITING_MAX = 10_000
_REFUSED_S = 0.1
_REFUSED_S_MAX = 2.0


@dataclass(slots=True)
class _Proposal:
    """A decision on its way into the store."""

    decision: Decision[Any]
    #: Whether whoever asked is answered only when this broker has followed it.
    followed: bool
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def _settle(proposal: _Proposal) -> None:
    if not proposal.done.done():
        proposal.done.set_result(None)


@dataclass(slots=True, frozen=True)
class _Appended:
    """What is in the store, and this broker has yet to follow."""

    base_offset: int
    records: RecordGroup
    proposals: list[_Proposal]


class ControllerService:
    """Decisions, one after the other, for as long as this broker is the controller."""

    def __init__(
        self, store: Store, follower: MetadataFollower, replicas: Replicas, *, tail_records_max: int = 0
    ) -> None:
        """`tail_records_max` is how much of the log is kept in memory for other brokers, where there are others."""
        self.epoch = NO_EPOCH
        self._store = store
        self._follower = follower
        self._replicas = replicas
        # With everything decided so far; None while that is not known, after a failure.
        self._image: Image | None = None
        self._waiting: list[_Proposal] = []
        self._writing: asyncio.Task[None] | None = None
        self._unfollowed: deque[_Appended] = deque()
        self._following: asyncio.Task[None] | None = None
        self._snapshots = asyncio.Lock()
        self._tail_records_max = tail_records_max
        self._clock = follower.runtime.clock
        self._refusals = Rarely(self._clock.monotonic)
        # What the store refuses does not pass so soon: until then it is not asked again.
        self._refusal: str | None = None
        self._refused_until = self._refused_s = 0.0
        #: What was appended since this broker is the controller.
        self.tail = MetadataTail()
        #: Set when this broker is no longer the controller.
        self.over = asyncio.Event()

    @property
    def is_active(self) -> bool:
        return self.epoch != NO_EPOCH

    @property
    def image(self) -> Image:
        """The metadata as far as it is decided, or else as this broker has followed it."""
        return self._follower.image if self._image is None else self._image

    async def take_over(self, epoch: int) -> None:
        """This broker was elected: decide from now on, beginning with all that its predecessors wrote."""
        if self._writing is not None:
            # Of an epoch of its own that is over: how that ends says nothing about this one.
            await asyncio.wait([self._writing])
        # Not what this broker has made its logs of: while its disk hangs it would decide nothing, for all.
        self._image = await self._follower.decided()
        self._follower.epoch = max(self._follower.epoch, epoch)
        self.tail = MetadataTail(epoch, self._image.offset, self._tail_records_max)
        self.epoch = epoch
        self.over.clear()
        log.info("this broker is the controller, in epoch %d", epoch)

    def resign(self, reason: str) -> None:
        """Another is the controller, or will be: what is not written yet is given up."""
        if self.is_active:
            log.warning("this broker is no longer the controller of epoch %d: %s", self.epoch, reason)
            self.epoch = NO_EPOCH
            self.over.set()
            self.tail.watchers.wake_all()
            self._give_up(NotControllerError(f"This broker is no longer the controller: {reason}"))

    async def _idle(self) -> None:
        """Wait until nothing is being written or followed."""
        while (work := self._writing or self._following) is not None:
            await asyncio.wait([work])

    async def close(self) -> None:
        await self._idle()
        self.epoch = NO_EPOCH
        self._give_up(NotControllerError("This broker is stopping."))

    # --- deciding

    async def propose(self, decide: Callable[[Image], Decision[R]], *, followed: bool = True) -> R:
        """Decide with the cluster as it is, make that true, and give the response.

        With `followed` this broker has followed it by then, in its image and its logs, for which it waits for its disk.
        """
        if not self.is_active:
            raise NotControllerError("This broker is not the controller.")
        if len(self._waiting) + sum(len(appended.proposals) for appended in self._unfollowed) >= WAITING_MAX:
            raise RequestTimedOutError(f"{WAITING_MAX} changes of the metadata are waiting; try again later.")
        image = await self._known(followed=followed)
        decision = decide(image)
        for record in decision.records:
            image.apply(record)
        image.offset += len(decision.records)
        if decision.records or self._writing is not None or (followed and self._following is not None):
            # One that changes nothing may still tell of a change that is not written, or followed here, yet.
            await self._written(decision, followed=followed)
        return decision.response

    async def _known(self, *, followed: bool) -> Image:
        """What to decide on. After this broker failed with what it had appended, that is read again."""
        follower = self._follower
        while self._image is None:
            try:
                if self._writing is not None:
                    # What it appends was decided before, and is to be known as well.
                    await asyncio.wait([self._writing])
                elif follower.image.offset >= self.tail.end_offset and not follower.is_behind_image:
                    # Nothing needs to be read, which a log whose disk failed would refuse.
                    self._image = follower.image.copied()
                elif followed:
                    # What is decided is to be followed, and would not be.
                    await follower.catch_up()
                else:
                    image = await follower.decided()
                    if self._image is None and self._writing is None and self.is_active:
                        self._image = image
            except KafkaError:
                raise
            except HeadraceError as error:
                raise RequestTimedOutError(f"The metadata cannot be changed for now: {error}") from error
            if not self.is_active:
                raise NotControllerError("This broker is no longer the controller.")
        return self._image

    async def _written(self, decision: Decision[Any], *, followed: bool) -> None:
        proposal = _Proposal(decision, followed)
        is_on_unwritten = self._writing is not None
        self._waiting.append(proposal)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
        try:
            # Also when whoever asked has gone: it was decided.
            await asyncio.shield(proposal.done)
        except KafkaError as error:
            # Nothing has changed, as far as is known: the answer says so where it can, also of several things.
            if not refuse(decision.response, error, everywhere=is_on_unwritten):
                raise
            return
        if not followed:
            return
        unmade = self._replicas.unmade(self._follower.image, decision.records)
        for (topic, index), reason in unmade.items():
            words = f"{topic} is known, but the log of partition {index} could not be made: {reason}"
            refuse_topics(decision.response, topic, KafkaStorageError(words))

    async def _write(self) -> None:
        """Append what waits, as much at once as there is."""
        try:
            while self._waiting:
                batch = self._next_batch()
                records = RecordGroup([record for proposal in batch for record in proposal.decision.records])
                try:
                    base_offset = await self._append(records)
                except KafkaError as error:
                    self._give_up(error, batch)
                except Exception as error:  # noqa: BLE001 - those who asked must not be left waiting
                    self._fail(error, batch)
                else:
                    for proposal in batch:
                        if not proposal.followed:
                            _settle(proposal)
                    self._unfollowed.append(_Appended(base_offset, records, batch))
                    if self._following is None:
                        self._following = asyncio.get_running_loop().create_task(self._follow())
        finally:
            self._writing = None

    async def _follow(self) -> None:
        """Let this broker follow what was appended, and answer those who asked for it, one after the other."""
        try:
            while self._unfollowed:
                appended = self._unfollowed[0]
                try:
                    # Also where there are none: this broker may have failed with what they were decided on.
                    await self._follower.take(appended.base_offset, appended.records)
                except HeadraceError as error:
                    # It is written; what this broker failed with is tried again before anything else is decided.
                    log.error("the metadata is changed, and this broker could not follow it yet: %s", error)
                    words = f"The metadata is changed, but not followed yet: {error}"
                    self._give_up(KafkaStorageError(words), appended.proposals)
                except Exception as error:  # noqa: BLE001 - as above
                    self._fail(error, appended.proposals)
                else:
                    for proposal in appended.proposals:
                        _settle(proposal)
                self._unfollowed.popleft()
        finally:
            self._following = None

    def _fail(self, error: Exception, batch: list[_Proposal]) -> None:
        log.error("the metadata could not be changed, by a defect: please report it", exc_info=error)
        self._give_up(UnknownServerError(f"The metadata could not be changed: {error!r}"), batch)

    def _next_batch(self) -> list[_Proposal]:
        count, size = 0, 0
        for proposal in self._waiting:
            size += len(proposal.decision.records)
            if count and size > RECORDS_AT_ONCE_MAX:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _append(self, records: RecordGroup) -> int:
        """Write records, and let other brokers have them; their offset. Raises why they are not written."""
        if not records:
            return self.tail.end_offset
        if self._refusal is not None and self._clock.monotonic() < self._refused_until:
            raise KafkaStorageError(self._refusal)
        try:
            end = await self._store.append_if_epoch(self.epoch, records)
            self._refusal = None
        except (StaleControllerEpochError, OutcomeUnknownError, SessionLostError) as error:
            self.resign(str(error))
            raise NotControllerError(f"This broker is no longer the controller: {error}") from error
        except StoreUnavailableError as error:
            raise RequestTimedOutError(f"The metadata cannot be changed for now: {error}") from error
        except StoreRefusedError as error:
            if times := self._refusals.happened():
                log.error("the metadata cannot be changed (refused %d times): %s", times, error)
            self._refused_s = _REFUSED_S if self._refusal is None else min(2 * self._refused_s, _REFUSED_S_MAX)
            self._refused_until = self._clock.monotonic() + self._refused_s
            self._refusal = f"The metadata could not be written: {error}"
            raise KafkaStorageError(self._refusal) from error
        except StoreError as error:
            # Too large for it, say.
            raise KafkaStorageError(f"The metadata could not be written: {error}") from error
        except (DiskError, KafkaStorageError) as error:
            is_short = isinstance(error, DiskError) and error.is_shortage
            until = "for now" if is_short else "until this broker is restarted"
            log.error("the metadata cannot be changed %s: %s", until, error)
            raise KafkaStorageError(f"The metadata could not be written: {error}") from error
        self.tail.appended(end, records)
        return end - len(records)

    def _give_up(self, error: KafkaError, batch: list[_Proposal] | None = None) -> None:
        """What was decided is not written, and what was decided since was decided on it."""
        waiting, self._waiting = [*(batch or ()), *self._waiting], []
        self._image = None
        for proposal in waiting:
            if not proposal.done.done():
                proposal.done.set_exception(error)
                proposal.done.exception()  # nobody may be left to hear of it

    # --- snapshots

    async def take_snapshot_if_due(self) -> None:
        """Let the image take the place of the records it was made of, when there are many."""
        async with self._snapshots:
            if not self.is_active or not self._store.snapshot_due:
                return
            # In turn with the appends: the image of all that was decided is that of the log's end. This broker's own
            # is behind it for as long as its disk hangs, and whoever waits for the turn with it.
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            while self._writing is not None:
                await asyncio.wait([self._writing])
            image = None if self._image is None else self._image.copied()
            self._writing = asyncio.get_running_loop().create_task(self._snapshot(image, done))
            await done

    async def _snapshot(self, image: Image | None, done: asyncio.Future[None]) -> None:
        try:
            if image is None:
                image = await self._follower.decided()
            await self._store.take_snapshot(image, self.epoch)
        except BaseException as error:  # noqa: BLE001 - it is for whoever waits; those behind have their turn
            if not done.done():
                done.set_exception(error)
        else:
            # Nobody may wait for it any more; those behind have their turn all the same.
            if not done.done():
                done.set_result(None)
        await self._write()
