"""The cluster's metadata as this broker changes and follows it: decide, append to the store, fold, follow.

Decisions are made one at a time. A decision's records are in the store before the image changes, and the image has
changed before anyone is answered, so what a client was told survives a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from headrace.broker.refusals import refuse, refuse_topics
from headrace.broker.replicas import Replicas
from headrace.cluster.controller import Controller
from headrace.cluster.decision import Decision
from headrace.cluster.image import Image, TopicImage
from headrace.cluster.records import MetadataRecord
from headrace.cluster.store import Member, Store, fold
from headrace.errors import KafkaStorageError
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from headrace.runtime import DiskError, Runtime

log = logging.getLogger("headrace.broker.metadata")

R = TypeVar("R")

Follower = Callable[[list[MetadataRecord], list[TopicImage]], None]


class MetadataService:
    """The image, and the only way to change it."""

    def __init__(self, runtime: Runtime, store: Store, controller: Controller, replicas: Replicas) -> None:
        self.image = Image()
        self.controller_epoch = -1
        #: The topics that the store says were deleted, as it was when it was opened.
        self.deleted_before: set[bytes] = set()
        self._runtime = runtime
        self._store = store
        self._controller = controller
        self._replicas = replicas
        self._lock = asyncio.Lock()
        self._followers: list[Follower] = []

    def follow(self, follower: Follower) -> None:
        """Call this with the records of every later change, and the topics it deleted, once the logs agree with it."""
        self._followers.append(follower)

    async def open(self) -> None:
        """Replay the store and win the election, which in a cluster of one is no contest."""
        reading = await self._store.read_from(self.image.offset)
        self.deleted_before = await self._runtime.offload(fold, reading, self.image)
        epoch = await self._store.elect(Member(self._controller.node_id, self._runtime.uuid()))
        assert epoch is not None, "a cluster of one has no other controller"
        self.controller_epoch = epoch
        # The election left a record of its own.
        await self._runtime.offload(fold, await self._store.read_from(self.image.offset), self.image)
        await self.change(lambda: Decision(None, self._controller.bootstrap(self.image)))

    async def change(self, decide: Callable[[], Decision[R]]) -> R:
        """Decide with the image as it is now, make the decision true, and give its response."""
        async with self._lock:
            decision = decide()
            if decision.records:
                try:
                    for (topic, index), reason in (await self._append(decision.records)).items():
                        unmade = f"{topic} is known, but the log of partition {index} could not be made: {reason}"
                        refuse_topics(decision.response, topic, KafkaStorageError(unmade))
                except KafkaStorageError as error:
                    # Nothing has changed: the answer says so where it can, also to those who asked for several things.
                    if not refuse(decision.response, error):
                        raise
            return decision.response

    async def make_waiting(self) -> None:
        """Make the logs for which there were no descriptors, if there are now."""
        async with self._lock:
            await self._replicas.make_waiting(self.image)

    async def _append(self, records: list[MetadataRecord]) -> dict[tuple[str, int], str]:
        """Write and follow a decision; gives the partitions whose logs could not be made, with the reason."""
        try:
            offset = await self._store.append_if_epoch(self.controller_epoch, records)
        except (DiskError, KafkaStorageError) as error:
            is_short = isinstance(error, DiskError) and error.is_shortage
            until = "for now" if is_short else "until this broker is restarted"
            log.error("the metadata cannot be changed %s: %s", until, error)
            raise KafkaStorageError(f"The metadata could not be written: {error}") from error
        deleted = self._replicas.to_be_deleted(self.image, records)
        for record in records:
            self.image.apply(record)
        self.image.offset = offset
        unmade = await self._replicas.follow(self.image, records, deleted)
        for follower in self._followers:
            follower(records, deleted)
        return unmade

    async def take_snapshot_if_due(self) -> None:
        """Let the image take the place of the records it was made of, when there are many."""
        async with self._lock:
            if self._store.snapshot_due:
                await self._store.take_snapshot(self.image, self.controller_epoch)

    async def close(self) -> None:
        await self._store.close()

    async def create(self, topic: CreatableTopic) -> CreateTopicsResponse:
        """Create one topic on the broker's own account: auto-creation, internal topics."""
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        return await self.change(lambda: self._controller.create_topics(self.image, request))

    async def ensure_internal(self, name: str) -> None:
        """Create one of the broker's own topics unless it is there."""
        if name not in self.image.topics:
            await self.create(self._controller.internal_topic(self.image, name))
