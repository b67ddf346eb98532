"""The metadata as this broker follows it: records are folded into the image, and the broker's logs kept in step.

Whoever is the controller, every broker folds what the store has, in the store's order and nothing else, so each image
is that of some prefix of the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from headrace.broker.replicas import Replicas
from headrace.cluster.changes import Changes, apply, difference, steps
from headrace.cluster.image import Image
from headrace.cluster.records import MetadataRecord
from headrace.cluster.store import Reading, SessionLostError, Store, StoreError, fold
from headrace.errors import HeadraceError
from headrace.runtime import Runtime

log = logging.getLogger("headrace.broker.metadata")

Follower = Callable[[Changes], None]

_RETRY_S = 0.5


class MetadataFollower:
    """The image, and whoever is told of its changes."""

    def __init__(self, runtime: Runtime, store: Store, replicas: Replicas) -> None:
        self.image = Image()
        #: The topics that the store says were deleted, as it was when it was opened.
        self.deleted_before: set[bytes] = set()
        self._runtime = runtime
        self._store = store
        self._replicas = replicas
        self._lock = asyncio.Lock()
        self._followers: list[Follower] = []
        self._following: asyncio.Task[None] | None = None

    def follow(self, follower: Follower) -> None:
        """Call this with every later change, once the logs agree with it."""
        self._followers.append(follower)

    async def open(self) -> None:
        """Replay the store. Nobody is told of what was before."""
        reading = await self._store.read_from(0, latest=True)
        fresh = Image()
        self.deleted_before = await self._runtime.offload(fold, reading, fresh)
        self.image.become(fresh)

    def start(self) -> None:
        """Follow what other brokers append, from now on."""
        self._following = asyncio.get_running_loop().create_task(self._keep_up())

    async def close(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _keep_up(self) -> None:
        while True:
            try:
                await self._store.grown_beyond(self.image.offset)
                await self.catch_up(latest=False)
            except SessionLostError:
                # Whoever looks after the session registers again.
                await asyncio.sleep(_RETRY_S)
            except StoreError as error:
                log.warning("the metadata is not followed for now: %s", error)
                await asyncio.sleep(_RETRY_S)
            except HeadraceError as error:
                log.error("the metadata cannot be followed, and is tried again: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def catch_up(self, *, latest: bool = True) -> None:
        """Take what the store has; with `latest`, all that it had when this was called."""
        async with self._lock:
            await self._take(await self._store.read_from(self.image.offset, latest=latest))

    async def take(self, base_offset: int, records: Sequence[MetadataRecord]) -> None:
        """Take what was appended just now, by the controller on this broker, at this offset."""
        async with self._lock:
            if self.image.offset == base_offset:
                entries = list(enumerate(records, base_offset))
                await self._take(Reading(entries, base_offset + len(records)))
            elif self.image.offset < base_offset + len(records):
                await self._take(await self._store.read_from(self.image.offset, latest=True))

    async def _take(self, reading: Reading) -> None:
        image = self.image
        if reading.snapshot is not None:
            # With larger versions than any so far, so that no answer that was made from the old image is kept.
            fresh = Image(version=image.version + 1)
            await self._runtime.offload(fold, Reading([], 0, reading.snapshot, reading.snapshot_end), fresh)
            changes = difference(image, fresh)
            image.become(fresh)
            await self._tell(changes)
        entries = reading.records
        done = 0
        for step in steps(record for _, record in entries):
            changes = apply(image, step)
            done += len(step)
            image.offset = entries[done - 1][0] + 1
            await self._tell(changes)
        image.offset = max(image.offset, reading.end_offset)

    async def _tell(self, changes: Changes) -> None:
        await self._replicas.follow(changes)
        for follower in self._followers:
            follower(changes)

    async def make_waiting(self) -> None:
        """Make the logs for which there were no descriptors, if there are now."""
        async with self._lock:
            await self._replicas.make_waiting(self.image)
