"""The cluster's metadata as this broker has it: the follower, and the controller where this broker is elected."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from headrace.broker.metadata.controller_service import ControllerService
from headrace.broker.metadata.follower import Follower, MetadataFollower
from headrace.broker.metadata.tail import RECORDS_MAX
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.refusals import refuse
from headrace.cluster.controller import Controller
from headrace.cluster.decision import Decision
from headrace.cluster.image import Image
from headrace.cluster.store import Store, StoreMember
from headrace.errors import NotControllerError, RequestTimedOutError
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.runtime import Runtime

log = logging.getLogger("headrace.broker.metadata")

R = TypeVar("R")

#: How long a client waits for a topic to be created on the way to something else.
CREATE_TIMEOUT_S = 3.0
#: How long the controller may take for what it is asked; a client that asks for much may say how long.
ASK_TIMEOUT_S: Final = 30.0
ASK_TIMEOUT_S_MAX: Final = 600.0


class MetadataService:
    """The image, and the only way to change it."""

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        controller: Controller,
        replicas: Replicas,
        image: Image,
        *,
        is_shared: bool,
    ) -> None:
        """`is_shared` says whether the store has other brokers, who fetch from the controller."""
        self._runtime = runtime
        self._store = store
        self.controller = controller
        self._is_shared = is_shared
        self.follower = MetadataFollower(runtime, store, replicas, image)
        self.active = ControllerService(
            store, self.follower, replicas, tail_records_max=RECORDS_MAX if is_shared else 0
        )
        #: Where the controller may be another broker: how it is asked.
        self.ask_controller: Callable[..., Awaitable[Any]] | None = None

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

    def on_brokers(self, callback: Callable[[], None]) -> None:
        """Call this when brokers come or go, before anything that waits for a disk."""
        self.follower.on_brokers(callback)

    async def open(self) -> None:
        """Replay the store."""
        await self.follower.open()

    async def win(self) -> None:
        """Win the election, which in a cluster of one is no contest."""
        epoch = await self._store.elect(StoreMember(self.controller.node_id, self._runtime.uuid()))
        assert epoch is not None, "a cluster of one has no other controller"
        await self.take_office(epoch)

    async def take_office(self, epoch: int) -> None:
        """This broker was elected: it decides from now on."""
        await self.active.take_over(epoch)
        await self.change(lambda image: Decision(None, self.controller.bootstrap(image)), followed=not self._is_shared)

    async def change(self, decide: Callable[[Image], Decision[R]], *, followed: bool = True) -> R:
        """Decide with the cluster as it is, make the decision true, and give its response.

        Without `followed` that does not wait for a disk of this broker: its image and logs may be behind the answer.
        """
        return await self.active.propose(decide, followed=followed)

    async def decide(
        self,
        method: Callable[..., Decision[R]],
        *arguments: object,
        context: RequestContext | None = None,
        followed: bool = True,
    ) -> R:
        """Let the controller decide, and make it true. A client's request goes to it, wherever it is."""

        async def here() -> R:
            return await self.change(lambda image: method(image, *arguments), followed=followed)

        if self.ask_controller is None or context is None:
            return await here()
        try:
            if context.is_from_broker:
                # What another broker passed on goes no further: it asks again, whoever is the controller then.
                return await here()
            # Who asks for thousands of partitions says how long that may take.
            timeout_s = max(ASK_TIMEOUT_S, min(getattr(arguments[0], "timeout_ms", 0) / 1000, ASK_TIMEOUT_S_MAX))
            decided: R = await self.ask_controller(
                arguments[0], version=context.api_version, here=here, timeout_s=timeout_s
            )
            return decided
        except (NotControllerError, RequestTimedOutError) as error:
            # Nobody decided; what would have been answered says in every place that it was not.
            response = method(self.image, *arguments).response
            if not refuse(response, error, everywhere=True):
                raise
            return response

    async def ask(self, method: Callable[..., Decision[R]], request: object) -> R:
        """Let the controller decide something on this broker's own account, wherever it is."""

        async def here() -> R:
            return await self.change(lambda image: method(image, request))

        if self.ask_controller is None:
            return await here()
        decided: R = await self.ask_controller(request, here=here)
        return decided

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

        async def here() -> CreateTopicsResponse:
            return await self.change(lambda image: self.controller.create_topics(image, request))

        if self.ask_controller is None:
            return await here()
        try:
            decided: CreateTopicsResponse = await self.ask_controller(request, timeout_s=CREATE_TIMEOUT_S, here=here)
            return decided
        except RequestTimedOutError as error:
            log.warning("%s could not be created: %s", topic.name, error)
            failed = CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
            return CreateTopicsResponse(topics=[failed])

    async def ensure_internal(self, name: str) -> None:
        """Create one of the broker's own topics unless it is there."""
        if name not in self.image.topics:
            await self.create(self.controller.internal_topic(self.image, name))
