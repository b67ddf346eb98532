"""Fetches of `__cluster_metadata-0` as the controller answers them: other brokers follow the metadata by them.

The leader epoch of that partition is the controller's. Brokers that ask for an offset which is not in memory here are
told that it is out of range, and read the store. To clients there is no such partition, as with Apache Kafka's brokers.
"""

from __future__ import annotations

import asyncio

from headrace.broker.metadata.membership import ClusterMembership
from headrace.broker.metadata.service import MetadataService
from headrace.broker.partitions.purgatory import Waiter
from headrace.broker.requests.dispatch import Pending
from headrace.broker.view import ClusterView
from headrace.cluster.records import METADATA_TOPIC, METADATA_TOPIC_ID
from headrace.errors import ErrorCode
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from headrace.runtime import Clock


def is_of_metadata(request: FetchRequest) -> bool:
    """Whether a request is about the metadata log, and nothing else."""
    if len(request.topics) != 1:
        return False
    [topic] = request.topics
    is_named = topic.topic_id == METADATA_TOPIC_ID or topic.topic == METADATA_TOPIC
    return is_named and [part.partition for part in topic.partitions] == [0]


class MetadataFetches:
    """Answers them in a cluster of several brokers; in a cluster of one nobody follows."""

    def __init__(
        self, clock: Clock, cluster: ClusterView, metadata: MetadataService, membership: ClusterMembership
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._metadata = metadata
        self._membership = membership

    def answer(self, request: FetchRequest, replica_id: int, wait_s: float) -> FetchResponse | Pending[FetchResponse]:
        """The answer to a broker; it waits for an append where there is nothing new."""
        wanted = request.topics[0].partitions[0]
        tail, observers = self._metadata.active.tail, self._membership.observers
        if self._is_stale(replica_id, request.replica_state.replica_epoch):
            return _answer(request, _refused(ErrorCode.STALE_BROKER_EPOCH, _leader(-1, -1)))
        if self._metadata.active.is_active and replica_id in self._cluster.image.brokers:
            observers.fetched(replica_id, wanted.fetch_offset, tail.end_offset, self._clock.now_ms())
            if wanted.current_leader_epoch > tail.epoch:
                observers.know_another = True
            # Those that wait come one after the other; others may overtake them.
            elif wait_s > 0 and wanted.current_leader_epoch == tail.epoch:
                observers.asks_again(replica_id)
        data = self._look(request, wanted)
        if wait_s <= 0:
            return _answer(request, data)
        if data.error_code or data.records:
            return self._answer_to(replica_id, request, data)
        return Pending(self._wait(replica_id, request, wanted, wait_s))

    def _is_stale(self, replica_id: int, broker_epoch: int) -> bool:
        """Whether another life of that broker was registered since; one that starts has no epoch yet, and may read."""
        known = self._cluster.image.brokers.get(replica_id)
        return known is not None and -1 < broker_epoch < known.epoch

    async def _wait(
        self, replica_id: int, request: FetchRequest, wanted: FetchPartition, wait_s: float
    ) -> FetchResponse:
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            if self._is_stale(replica_id, request.replica_state.replica_epoch):
                return _answer(request, _refused(ErrorCode.STALE_BROKER_EPOCH, _leader(-1, -1)))
            data = self._look(request, wanted)
            left_s = deadline - asyncio.get_running_loop().time()
            if data.error_code or data.records or left_s <= 0:
                return self._answer_to(replica_id, request, data)
            await Waiter(1).wait([self._metadata.active.tail.watchers], left_s)

    def _answer_to(self, replica_id: int, request: FetchRequest, data: PartitionData) -> FetchResponse:
        if not data.error_code:
            self._membership.observers.answered(replica_id, self._clock.boottime())
        return _answer(request, data)

    def _look(self, request: FetchRequest, wanted: FetchPartition) -> PartitionData:
        active, membership = self._metadata.active, self._membership
        tail = active.tail
        if not active.is_active:
            seat = membership.seat
            known = _leader(-1, -1) if seat is None else _leader(seat.member.node_id, seat.epoch)
            return _refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, known)
        # One that may have been followed by another tells what it knows, and does not say that it leads.
        is_sure = membership.is_in_touch
        leader = _leader(self._cluster.node_id if is_sure else -1, tail.epoch)
        if wanted.current_leader_epoch not in (-1, tail.epoch):
            is_old = wanted.current_leader_epoch < tail.epoch
            return _refused(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH, leader)
        bytes_max = min(request.max_bytes, wanted.partition_max_bytes)
        records = tail.read(wanted.fetch_offset, bytes_max, self._clock.now_ms())
        if records is None:
            return _refused(ErrorCode.OFFSET_OUT_OF_RANGE, leader)
        return PartitionData(
            partition_index=0,
            high_watermark=tail.end_offset,
            last_stable_offset=tail.end_offset,
            log_start_offset=tail.begin_offset,
            current_leader=leader,
            records=records,
        )


def _leader(node_id: int, epoch: int) -> LeaderIdAndEpoch:
    return LeaderIdAndEpoch(leader_id=node_id, leader_epoch=epoch)


def _refused(error: ErrorCode, leader: LeaderIdAndEpoch) -> PartitionData:
    return PartitionData(partition_index=0, error_code=error, high_watermark=-1, current_leader=leader, records=b"")


def _answer(request: FetchRequest, data: PartitionData) -> FetchResponse:
    topic = request.topics[0]
    return FetchResponse(
        responses=[FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[data])]
    )
