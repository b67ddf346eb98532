"""The cluster's metadata as this broker has it: the follower, and the controller where this broker is elected."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.broker.controller_service import ControllerService
from headrace.broker.metadata_follower import Follower, MetadataFollower
from headrace.broker.replicas import Replicas
from headrace.cluster.controller import Controller
from headrace.cluster.decision import Decision
from headrace.cluster.image import Image
from headrace.cluster.store import Member, Store
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from headrace.runtime import Runtime

R = TypeVar("R")


class MetadataService:
    """The image, and the only way to change it."""

    def __init__(self, runtime: Runtime, store: Store, controller: Controller, replicas: Replicas) -> None:
        self._runtime = runtime
        self._store = store
        self._controller = controller
        self.follower = MetadataFollower(runtime, store, replicas)
        self.active = ControllerService(store, self.follower, replicas)

    @property
    def image(self) -> Image:
        return self.follower.image

    @property
    def deleted_before(self) -> set[bytes]:
        """The topics that the store says were deleted, as it was when it was opened."""
        return self.follower.deleted_before

    @property
    def controller_epoch(self) -> int:
        return self.active.epoch

    def follow(self, follower: Follower) -> None:
        """Call this with every later change, once the logs agree with it."""
        self.follower.follow(follower)

    async def open(self) -> None:
        """Replay the store and win the election, which in a cluster of one is no contest."""
        await self.follower.open()
        epoch = await self._store.elect(Member(self._controller.node_id, self._runtime.uuid()))
        assert epoch is not None, "a cluster of one has no other controller"
        await self.active.take_over(epoch)
        await self.change(lambda image: Decision(None, self._controller.bootstrap(image)))

    async def change(self, decide: Callable[[Image], Decision[R]]) -> R:
        """Decide with the cluster as it is, make the decision true, and give its response."""
        return await self.active.propose(decide)

    async def make_waiting(self) -> None:
        """Make the logs for which there were no descriptors, if there are now."""
        await self.follower.make_waiting()

    async def take_snapshot_if_due(self) -> None:
        await self.active.take_snapshot_if_due()

    async def close(self) -> None:
        await self.active.close()
        await self.follower.close()
        await self._store.close()

    async def create(self, topic: CreatableTopic) -> CreateTopicsResponse:
        """Create one topic on the broker's own account: auto-creation, internal topics."""
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        return await self.change(lambda image: self._controller.create_topics(image, request))

    async def ensure_internal(self, name: str) -> None:
        """Create one of the broker's own topics unless it is there."""
        if name not in self.image.topics:
            await self.create(self._controller.internal_topic(self.image, name))
