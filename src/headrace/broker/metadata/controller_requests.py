"""What brokers ask of the controller on their own account: to be registered, to go on, to stop, for producer ids.

They are answered when what they asked for is in the store, not when the controller has made its own logs of it.
"""

from __future__ import annotations

from typing import Protocol

from headrace.broker.metadata.service import MetadataService
from headrace.cluster.brokers import Registration
from headrace.cluster.decision import Decision
from headrace.cluster.image import Endpoint, Image
from headrace.cluster.store import StoreError, StoreMember
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse


class Sessions(Protocol):
    """Which brokers have a session with the store."""

    async def holder(self, node_id: int) -> StoreMember | None: ...
    def is_alive(self, node_id: int, incarnation: bytes) -> bool: ...


class ControllerRequests:
    """Answers them, where this broker is the controller. In a cluster of one there are no sessions."""

    def __init__(self, cluster_id: str, metadata: MetadataService, sessions: Sessions | None) -> None:
        self._cluster_id = cluster_id
        self._metadata = metadata
        self._sessions = sessions

    def _is_own(self, node_id: int) -> bool:
        """Whether it is this broker that asks, which goes on with its own image."""
        return node_id == self._metadata.controller.node_id

    async def register(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        """Give a broker its epoch. It is fenced until it has come as far as its own registration."""
        if request.cluster_id != self._cluster_id:
            return BrokerRegistrationResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
        registration = Registration(
            node_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            listeners=[Endpoint(x.name, x.host, x.port, x.security_protocol) for x in request.listeners],
            rack=request.rack,
            directories=request.log_dirs,
            features=[(x.name, x.min_supported_version, x.max_supported_version) for x in request.features],
            stopped_in_epoch=request.previous_broker_epoch,
        )
        try:
            # A former life that goes on elsewhere, cut off from the store, must not take the number back; nor while the
            # one that has it now is without a session for a moment.
            if self._sessions is not None:
                holder = await self._sessions.holder(request.broker_id)
                if holder is None:
                    return BrokerRegistrationResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
                if holder.incarnation != request.incarnation_id:
                    return BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
            epoch = await self._metadata.change(
                lambda image: self._metadata.controller.register_broker(image, registration),
                followed=self._is_own(request.broker_id),
            )
        except StoreError:
            return BrokerRegistrationResponse(error_code=ErrorCode.NOT_CONTROLLER)
        except KafkaError as error:
            return BrokerRegistrationResponse(error_code=error.code)
        return BrokerRegistrationResponse(broker_epoch=epoch)

    async def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        """Unfence a broker that is ready, and let one that wants to stop go when it leads nothing any more."""
        try:
            return await self._metadata.change(
                lambda image: self._on_answer(image, request), followed=self._is_own(request.broker_id)
            )
        except KafkaError as error:
            return BrokerHeartbeatResponse(error_code=error.code)

    def _on_answer(self, image: Image, request: BrokerHeartbeatRequest) -> Decision[BrokerHeartbeatResponse]:
        node_id = request.broker_id
        known = image.broker_of_epoch(node_id, request.broker_epoch)
        if known is None:
            return Decision(BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
        is_caught_up = request.current_metadata_offset > known.epoch
        response = BrokerHeartbeatResponse(is_caught_up=is_caught_up, is_fenced=known.fenced)
        if request.want_shut_down:
            stopping = self._metadata.controller.shut_down_broker(image, node_id)
            response.should_shut_down = stopping.response
            return Decision(response, stopping.records)
        is_alive = self._sessions is None or self._sessions.is_alive(node_id, known.incarnation_id)
        if known.fenced and is_caught_up and is_alive and not request.want_fence:
            response.is_fenced = False
            return Decision(response, self._metadata.controller.unfence_broker(image, node_id).records)
        return Decision(response)

    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        try:
            block = await self._metadata.change(
                lambda image: self._metadata.controller.allocate_producer_ids(
                    image, request.broker_id, request.broker_epoch
                ),
                followed=False,
            )
        except KafkaError as error:
            return AllocateProducerIdsResponse(error_code=error.code)
        return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.size)
