"""How a broker asks the controller for the metadata: by Fetch of `__cluster_metadata-0`, as replicas of KRaft do.

It sends what the store has acknowledged, under the epoch in which it was elected. Whoever knows of a later controller
takes nothing from it any more.
"""

from __future__ import annotations

from typing import Any, Protocol

from headrace.broker.metadata.service import MetadataService
from headrace.broker.peers import PeerConnection, Peers
from headrace.broker.view import ClusterView
from headrace.cluster.image import InconsistentMetadataError
from headrace.cluster.records import METADATA_TOPIC, METADATA_TOPIC_ID
from headrace.cluster.store import Reading, Seat
from headrace.cluster.store.batches import checked_batches, records_of
from headrace.errors import ErrorCode, NotControllerError, StaleControllerEpochError, error_for
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)

_WHERE = "the metadata that the controller sent"


class Controllers(Protocol):
    """Who is the controller, and how it is asked (`membership.py`)."""

    @property
    def seat(self) -> Seat | None: ...
    @property
    def peers(self) -> Peers: ...
    async def changed(self, timeout_s: float | None = None) -> None:
        """Wait until another may be the controller."""

    async def ask_seat(self, seat: Seat, lane: PeerConnection, request: Any, timeout_s: float) -> Any:
        """The answer of this controller; None when another takes its seat before it has given one."""

    def beat_now(self) -> None:
        """The controller does not know this broker in its epoch: see soon what is to be done about it."""


class MetadataFetcher:
    """Reads the metadata from whoever is the controller, as far as that is another broker."""

    def __init__(self, cluster: ClusterView, metadata: MetadataService, membership: Controllers) -> None:
        self._cluster = cluster
        self._metadata = metadata
        self._membership = membership
        config = cluster.started_with
        self._bytes_max = config.get_int("controller.quorum.fetch.max.bytes")
        self._timeout_s = config.get_int("controller.quorum.fetch.timeout.ms") / 1000

    @property
    def is_controller(self) -> bool:
        """Whether the controller is here: what it appends comes to the image by itself."""
        return self._metadata.active.is_active

    async def changed(self, timeout_s: float | None = None) -> None:
        """Wait until another may be the controller."""
        await self._membership.changed(timeout_s)

    async def fetch(
        self, offset: int, known_epoch: int, *, wait_s: float = 0.0, lane: PeerConnection = PeerConnection.METADATA
    ) -> Reading:
        """What comes after an offset, waited for if there is nothing yet; a `HeadraceError` says why there is none.

        `known_epoch` is that of the latest controller that the caller has heard of.
        """
        seat = self._membership.seat
        if seat is None or self.is_controller:
            raise NotControllerError("No other broker is known as the controller.")
        if seat.epoch < known_epoch:
            raise StaleControllerEpochError(f"The controller of epoch {seat.epoch} was followed by {known_epoch}.")
        timeout_s = max(self._timeout_s, 2 * wait_s)
        answer = await self._membership.ask_seat(seat, lane, self.request_from(offset, seat.epoch, wait_s), timeout_s)
        if answer is None:
            raise NotControllerError(f"Broker {seat.member.node_id} is no longer the controller.")
        data = _partition_of(answer)
        if data.error_code:
            if data.error_code == ErrorCode.STALE_BROKER_EPOCH:
                # Another life has this number, perhaps, and what this one led: what the controller said before is over.
                self._metadata.follower.heard_at = float("-inf")
                self._membership.beat_now()
            raise error_for(data.error_code, f"Broker {seat.member.node_id} gives no metadata from {offset} on.")
        if data.current_leader.leader_epoch != seat.epoch:
            raise StaleControllerEpochError(
                f"Broker {seat.member.node_id} answered in epoch {data.current_leader.leader_epoch}, not {seat.epoch}."
            )
        reading = reading_of(offset, data, seat.epoch)
        reading.is_sure = data.current_leader.leader_id == seat.member.node_id
        return reading

    async def ask(self, former: Seat, epoch: int, timeout_s: float) -> None:
        """Fetch from a controller under the epoch of a later one, of which it learns by that."""
        request = self.request_from(self._cluster.image.offset, epoch)
        await self._membership.peers.request(
            former.member.node_id, PeerConnection.OUTCOMES, request, timeout_ms=timeout_s * 1000
        )

    def request_from(self, offset: int, epoch: int, wait_s: float = 0.0) -> FetchRequest:
        """What asks the controller of that epoch for all that comes after an offset."""
        node_id = self._cluster.node_id
        partition = FetchPartition(
            partition=0, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=self._bytes_max
        )
        return FetchRequest(
            replica_id=node_id,
            replica_state=ReplicaState(replica_id=node_id, replica_epoch=self._cluster.broker_epoch),
            max_wait_ms=int(wait_s * 1000),
            min_bytes=1,
            max_bytes=self._bytes_max,
            topics=[FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])],
        )


def _partition_of(answer: FetchResponse) -> PartitionData:
    if answer.error_code:
        raise error_for(answer.error_code, "The controller gives no metadata.")
    if len(answer.responses) != 1 or len(answer.responses[0].partitions) != 1:
        raise InconsistentMetadataError(f"{_WHERE}: it is of {len(answer.responses)} topics instead of one")
    return answer.responses[0].partitions[0]


def reading_of(offset: int, data: PartitionData, epoch: int) -> Reading:
    """The records of an answer from an offset on, without a gap."""
    reading = Reading(end_offset=offset, epoch=epoch, log_end=data.high_watermark)
    for batch in checked_batches(data.records or b"", _WHERE):
        header = batch.header()
        if header.base_offset > reading.end_offset:
            raise InconsistentMetadataError(
                f"{_WHERE}: it goes on at offset {header.base_offset}, but {reading.end_offset} was expected"
            )
        if header.leader_epoch > epoch:
            raise InconsistentMetadataError(f"{_WHERE}: it is of epoch {header.leader_epoch}, but sent in {epoch}")
        reading.records += [entry for entry in records_of(batch, _WHERE) if entry[0] >= reading.end_offset]
        reading.end_offset = max(reading.end_offset, header.next_offset)
    return reading
