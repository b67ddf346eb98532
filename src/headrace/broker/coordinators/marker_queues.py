"""The ends of transactions in partitions that other brokers lead: WriteTxnMarkers to each of these leaders.

Whatever a leader answers, or that it did not, is told to the coordinator, which asks again for what failed, of whoever
leads then. A marker for a partition without a leader waits until the metadata names one. A coordinator that has lost
its partition sends nothing more: the next one reads from the log what there is to do.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from headrace.broker.peer_queues import PeerQueues
from headrace.broker.peers import PeerConnection, Peers
from headrace.cluster.image import Image
from headrace.cluster.records import NO_LEADER
from headrace.errors import ErrorCode
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.topics import TopicPartition
from headrace.transactions import MarkerRequest

Tell = Callable[[MarkerRequest, dict[TopicPartition, ErrorCode]], None]


@dataclass(slots=True, eq=False)
class _Markers:
    """The markers of one transaction for one leader, and the partitions of which nothing is known yet."""

    request: MarkerRequest
    waiting: set[TopicPartition]


class MarkerQueues(PeerQueues[_Markers]):
    def __init__(
        self,
        image: Image,
        peers: Peers,
        *,
        is_current: Callable[[MarkerRequest], bool],
        tell: Tell,
        keep: Callable[[Coroutine[object, object, None]], object],
    ) -> None:
        """`is_current` says whether the coordinator that asked for markers still is one; `tell` is what it hears."""
        super().__init__(keep)
        self._image = image
        self._peers = peers
        self._is_current = is_current
        self._tell_coordinator = tell
        self._without_leader: list[_Markers] = []

    def leader_of(self, partition: TopicPartition) -> int | None:
        """Who leads a partition, `NO_LEADER`, or None for a partition that does not exist."""
        state = self._image.partition(*partition)
        return None if state is None else state.leader

    def send(self, request: MarkerRequest, partitions: list[TopicPartition]) -> None:
        """End a transaction in these of its partitions, which exist and are led by others or by nobody."""
        by_leader: dict[int, set[TopicPartition]] = {}
        for partition in partitions:
            leader = self.leader_of(partition)
            by_leader.setdefault(NO_LEADER if leader is None else leader, set()).add(partition)
        for leader, theirs in by_leader.items():
            markers = _Markers(request, theirs)
            if leader == NO_LEADER:
                self._without_leader.append(markers)
            else:
                self.add(leader, markers)

    def retry_now(self) -> None:
        super().retry_now()
        waiting, self._without_leader = self._without_leader, []
        for markers in waiting:
            if not self._is_current(markers.request):
                continue
            self._tell(markers, [one for one in markers.waiting if self.leader_of(one) != NO_LEADER])
            if markers.waiting:
                self._without_leader.append(markers)

    # --- what the queues ask

    def _keeps_waiting(self, node_id: int, item: _Markers) -> bool:
        if not self._is_current(item.request):
            item.waiting.clear()
        self._tell(item, [one for one in item.waiting if self.leader_of(one) != node_id])
        return bool(item.waiting)

    def _key(self, item: _Markers) -> object:
        return item.request.producer_id

    def _elements(self, item: _Markers) -> int:
        return 1 + len(item.waiting) + len({partition.topic for partition in item.waiting})

    def _give_up(self, item: _Markers) -> None:
        self._tell(item, list(item.waiting), ErrorCode.NETWORK_EXCEPTION)

    def _tell(
        self,
        item: _Markers,
        partitions: list[TopicPartition],
        error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ) -> None:
        """Nothing more is to be heard from there of these partitions: they are asked for again."""
        if partitions:
            item.waiting.difference_update(partitions)
            self._tell_coordinator(item.request, dict.fromkeys(partitions, error))

    async def _ask(self, node_id: int, items: list[_Markers]) -> None:
        request = WriteTxnMarkersRequest(markers=[_marker(item) for item in items])
        response: WriteTxnMarkersResponse = await self._peers.request(node_id, PeerConnection.MARKERS, request)
        answers = {result.producer_id: result for result in response.markers}
        for item in items:
            result = answers.get(item.request.producer_id)
            if result is None:
                continue
            errors = {
                TopicPartition(topic.name, one.partition_index): ErrorCode(one.error_code)
                for topic in result.topics
                for one in topic.partitions
            }
            acknowledged = {partition: error for partition, error in errors.items() if partition in item.waiting}
            item.waiting.difference_update(acknowledged)
            self._tell_coordinator(item.request, acknowledged)


def _marker(item: _Markers) -> WritableTxnMarker:
    request = item.request
    topics: dict[str, WritableTxnMarkerTopic] = {}
    for name, index in sorted(item.waiting):
        topics.setdefault(name, WritableTxnMarkerTopic(name=name)).partition_indexes.append(index)
    return WritableTxnMarker(
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        transaction_result=request.commit,
        topics=list(topics.values()),
        coordinator_epoch=request.coordinator_epoch,
        transaction_version=request.transaction_version,
    )
