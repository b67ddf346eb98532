"""The metadata as this broker follows it: records are folded into the image, and the broker's logs kept in step.

Whoever is the controller, every broker folds what the store has, in the store's order and nothing else, so each image
is that of some prefix of the log. A broker reads the store when it starts; then it fetches from the controller what
that has appended, so that a change does not cost the store a read by every broker. Whenever there is no controller, or
it does not answer, or no longer has what this broker lacks, the broker reads the store, with a watch on the one node
that comes next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.broker.partitions.replicas import Replicas
from headrace.broker.peers import PeerConnection
from headrace.cluster.changes import Changes, apply, difference, steps
from headrace.cluster.image import Image
from headrace.cluster.records import MetadataRecord
from headrace.cluster.store import Reading, SessionLostError, Store, StoreError, fold
from headrace.errors import HeadraceError
from headrace.log import Log
from headrace.runtime import Runtime
from headrace.runtime.letting_go import let_go
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.broker.metadata")

Follower = Callable[[Changes], None]

_RETRY_S = 0.5
_FETCH_WAIT_S = 0.5
_FOLDED_AT_ONCE = 500


class MetadataSource(Protocol):
    """How another broker that is the controller is asked for the metadata (`fetcher.py`)."""

    @property
    def is_controller(self) -> bool:
        """Whether the controller is here: what it appends comes to the image by itself."""

    async def changed(self, timeout_s: float | None = None) -> None:
        """Wait until another may be the controller."""

    async def fetch(
        self, offset: int, known_epoch: int, *, wait_s: float = 0.0, lane: PeerConnection = PeerConnection.METADATA
    ) -> Reading:
        """What comes after an offset; a `HeadraceError` says why there is none."""


class MetadataFollower:
    """The image, and whoever is told of its changes."""

    def __init__(self, runtime: Runtime, store: Store, replicas: Replicas, image: Image) -> None:
        self.image = image
        #: The topics that the store says were deleted, as it was when it was opened.
        self.deleted_before: set[bytes] = set()
        self.runtime = runtime
        self._store = store
        self._replicas = replicas
        self._lock = asyncio.Lock()
        # Of the store, before what it has is taken.
        self._reading = asyncio.Lock()
        self._followers: list[Follower] = []
        self._at_once: list[Callable[[], None]] = []
        self._following: list[asyncio.Task[None]] = []
        #: By the clock's `boottime`: what another broker, as the controller, had decided by then is known here.
        self.heard_at = float("-inf")
        #: The latest epoch of a controller that anything here is of.
        self.epoch = -1
        # What the image has and the logs do not, since something failed on the way: told before anything else.
        self._untold: list[Changes] = []
        # Whether the controller tells what is new, so that nobody has to look into the store.
        self._is_fetching = False
        self._turned = asyncio.Event()

    def follow(self, follower: Follower) -> None:
        """Call this with every later change, once the logs agree with it."""
        self._followers.append(follower)

    def on_brokers(self, callback: Callable[[], None]) -> None:
        """Call this when brokers come or go, before anything that waits for a disk."""
        self._at_once.append(callback)

    async def open(self) -> None:
        """Replay the store. Nobody is told of what was before."""
        reading = await self._store.read_from(0, latest=True)
        self.epoch = reading.epoch
        fresh = Image()
        self.deleted_before = await self.runtime.offload(fold, reading, fresh)
        self.image.become(fresh)

    def start(self, fetcher: MetadataSource) -> None:
        """Follow what other brokers append, from now on."""
        loop = asyncio.get_running_loop()
        self._following = [loop.create_task(self._keep_fetching(fetcher)), loop.create_task(self._keep_reading())]

    async def close(self) -> None:
        following, self._following = self._following, []
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)

    # --- from the controller

    async def _keep_fetching(self, fetcher: MetadataSource) -> None:
        """Take what the controller appends: from another broker by Fetch, from this one as it comes."""
        while True:
            try:
                if fetcher.is_controller:
                    self._set_fetching(True)
                    await fetcher.changed(_RETRY_S)
                else:
                    # Until it is known that it answers, it is not waited for.
                    await self._take_fetched(fetcher, _FETCH_WAIT_S if self._is_fetching else 0.0)
                    self._set_fetching(True)
            except HeadraceError as error:
                if self._is_fetching:
                    log.info("the metadata is read from the store for now: %s", error)
                self._set_fetching(False)
                await fetcher.changed(_RETRY_S)
            except Exception:
                # Whoever does not follow the metadata leads and follows what it must not, and nobody notices.
                log.exception("the metadata could not be taken from the controller, by a defect: please report it")
                self._set_fetching(False)
                await fetcher.changed(_RETRY_S)

    async def take_from(self, fetcher: MetadataSource) -> bool:
        """Take all that the controller has appended by now, if it is another broker that gives it.

        Neither behind what waits nor behind what the controller takes long for: each has a connection of its own.
        """
        try:
            # A lot of it comes in several answers; what is appended meanwhile need not be waited for.
            end = await self._take_fetched(fetcher, 0.0, PeerConnection.OUTCOMES)
            while self.image.offset < end:
                await self._take_fetched(fetcher, 0.0, PeerConnection.OUTCOMES)
        except HeadraceError:
            return False
        return True

    async def _take_fetched(
        self, fetcher: MetadataSource, wait_s: float, lane: PeerConnection = PeerConnection.METADATA
    ) -> int:
        """Take what the controller answers; the offset that its log ended at."""
        clock = self.runtime.clock
        asked_at = clock.boottime()
        reading = await fetcher.fetch(self.image.offset, self.epoch, wait_s=wait_s, lane=lane)
        # With nothing to tell it has waited, and looked again.
        told_at = asked_at if reading.records else min(asked_at + wait_s, clock.boottime())
        async with self._lock:
            await self._take_newer(reading)
            if reading.is_sure:
                self.heard_at = max(self.heard_at, told_at)
        return reading.log_end

    def _set_fetching(self, is_fetching: bool) -> None:
        if is_fetching != self._is_fetching:
            self._is_fetching = is_fetching
            self._turned.set()
            self._turned = asyncio.Event()

    # --- from the store

    async def _keep_reading(self) -> None:
        """Read the store for as long as nothing comes from the controller."""
        said = ""
        while True:
            try:
                if self._is_fetching:
                    await self._turned.wait()
                else:
                    await self.catch_up(latest=False)
                    said = ""
                    await self._grown_or_turned()
            except SessionLostError:
                # Whoever looks after the session registers again.
                await asyncio.sleep(_RETRY_S)
            except StoreError as error:
                if str(error) != said:
                    log.warning("the metadata is not followed for now: %s", error)
                said = str(error)
                await asyncio.sleep(_RETRY_S)
            except HeadraceError as error:
                log.error("the metadata cannot be followed, and is tried again: %s", error)
                await asyncio.sleep(_RETRY_S)
            except Exception:
                log.exception("the metadata could not be taken from the store, by a defect: please report it")
                await asyncio.sleep(_RETRY_S)

    async def _grown_or_turned(self) -> None:
        """Wait until the store may have more, or until it comes from the controller."""
        if self._is_fetching:
            return
        grown = asyncio.ensure_future(self._store.grown_beyond(self.image.offset))
        turned = asyncio.ensure_future(self._turned.wait())
        try:
            await asyncio.wait([grown, turned], return_when=asyncio.FIRST_COMPLETED)
            if grown.done():
                grown.result()
        finally:
            await let_go(grown, turned)

    async def catch_up(self, *, latest: bool = True) -> None:
        """Take what the store has; with `latest`, all that it had when this was called.

        A store that is away is waited for, and meanwhile what the controller tells is taken.
        """
        while True:
            offset = self.image.offset
            async with self._reading:
                reading = await self._store.read_from(offset, latest=latest)
            async with self._lock:
                if reading.snapshot is None or self.image.offset == offset:
                    await self._take_newer(reading)
                    return

    async def decided(self) -> Image:
        """All that the store has: an image of its own, for which nobody waits for a disk of this broker."""
        image = self.image.copied()
        async with self._reading:
            reading = await self._store.read_from(image.offset, latest=True)
        if reading.snapshot is not None:
            image = Image(version=image.version)
        # Little by little instead of on a thread: those may all wait for a disk.
        records = [*(reading.snapshot or ()), *(record for _, record in reading.records)]
        for start in range(0, len(records), _FOLDED_AT_ONCE):
            for record in records[start : start + _FOLDED_AT_ONCE]:
                image.apply(record)
            await asyncio.sleep(0)
        image.offset = reading.end_offset
        return image

    async def _take_newer(self, reading: Reading) -> None:
        """Some of it may have come by another way meanwhile."""
        reading.records = [entry for entry in reading.records if entry[0] >= self.image.offset]
        await self._take(reading)

    async def take(self, base_offset: int, records: Sequence[MetadataRecord]) -> None:
        """Take what was appended just now, by the controller on this broker, at this offset; and all before it."""
        async with self._lock:
            await self._tell_untold()  # it may have come by another way, and somebody else have failed with it
            if self.image.offset == base_offset:
                entries = list(enumerate(records, base_offset))
                await self._take(Reading(entries, base_offset + len(records)))
        if self.image.offset < base_offset + len(records):
            await self.catch_up()

    @property
    def is_behind_image(self) -> bool:
        """Whether something failed with what the image has, and is to be tried again."""
        return bool(self._untold)

    async def _take(self, reading: Reading) -> None:
        await self._tell_untold()
        image = self.image
        self.epoch = max(self.epoch, reading.epoch)
        if reading.snapshot is not None:
            # With larger versions than any so far, so that no answer that was made from the old image is kept.
            fresh = Image(version=image.version + 1)
            await self.runtime.offload(fold, Reading([], 0, reading.snapshot, reading.snapshot_end), fresh)
            changes = difference(image, fresh)
            image.become(fresh)
            self._look_at_brokers(changes)
            await self._tell(changes)
        entries = reading.records
        done = 0
        for step in steps(record for _, record in entries):
            changes = apply(image, step)
            done += len(step)
            image.offset = entries[done - 1][0] + 1
            self._look_at_brokers(changes)
            await self._tell(changes)
        image.offset = max(image.offset, reading.end_offset)

    def _look_at_brokers(self, changes: Changes) -> None:
        for callback in self._at_once if changes.brokers else ():
            try:
                callback()
            except Exception:
                log.exception("a change of the brokers was not followed, by a defect: please report it")

    async def _tell(self, changes: Changes) -> None:
        """Let the logs agree with the image, then tell whoever follows. What fails is told again before the rest."""
        self._untold.append(changes)
        await self._tell_untold()

    async def _tell_untold(self) -> None:
        while self._untold:
            changes = self._untold[0]
            try:
                await self._replicas.follow(changes)
            except HeadraceError:
                raise  # too much waits for the disk, say
            except Exception:
                # It would fail in the same way again, and nothing that comes later would be followed.
                log.exception("the logs could not be brought in step with the metadata, by a defect: please report it")
            self._untold.pop(0)
            for follower in self._followers:
                try:
                    follower(changes)
                except Exception:
                    log.exception("a change of the metadata was not followed, by a defect: please report it")

    async def open_logs(self, logs: dict[TopicPartition, Log], missing_ids: list[str]) -> None:
        """Let the logs that were found at start agree with the image. What comes meanwhile is followed after that: it
        would find some that are not served yet, and have them made a second time."""
        async with self._lock:
            await self._replicas.open_all(self.image, logs, missing_ids)

    async def make_waiting(self) -> None:
        """Make the logs for which there were no descriptors, if there are now."""
        async with self._lock:
            await self._replicas.make_waiting(self.image)
