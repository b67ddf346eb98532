"""Who keeps the metadata and who follows it, told in the words of a quorum (DescribeQuorum).

The controller is its leader and only voter, since the store keeps the log; all other brokers are observers. How far
those are is what they last fetched from; who has to read the store instead is not heard of meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.metadata.service import MetadataService
from headrace.broker.view import ClusterView
from headrace.cluster.records import METADATA_TOPIC
from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumPartitionState,
    QuorumReplica,
    QuorumTopicState,
)
from headrace.runtime import Clock

_NEVER = -1


@dataclass(slots=True)
class _LastFetch:
    """A broker's last fetch."""

    offset: int
    at_ms: int
    caught_up_ms: int = _NEVER


class Observers:
    """The brokers that follow, as the controller hears of them."""

    def __init__(self) -> None:
        self._fetches: dict[int, _LastFetch] = {}
        #: By the clock's `boottime`: when each of them took this broker for the controller, at least.
        self.heard_at: dict[int, float] = {}
        self._answered_at: dict[int, float] = {}
        #: Whether any of them said that there is a later controller. The store has the last word on that.
        self.know_another = False

    def forget(self) -> None:
        """This broker is the controller anew."""
        self._fetches.clear()
        self.heard_at.clear()
        self._answered_at.clear()
        self.know_another = False

    def asks_again(self, node_id: int) -> None:
        """A broker asks for what comes after an answer: it had that by then, however long ago it asked."""
        if node_id in self._answered_at:
            self.heard_at[node_id] = self._answered_at[node_id]

    def answered(self, node_id: int, at: float) -> None:
        self._answered_at[node_id] = at

    def fetched(self, node_id: int, offset: int, end_offset: int, now_ms: int) -> None:
        known = self._fetches.get(node_id)
        caught_up_ms = now_ms if offset >= end_offset else _NEVER if known is None else known.caught_up_ms
        self._fetches[node_id] = _LastFetch(offset, now_ms, caught_up_ms)

    def replica(self, node_id: int) -> QuorumReplica:
        known = self._fetches.get(node_id)
        if known is None:
            return QuorumReplica(replica_id=node_id, log_end_offset=_NEVER)
        return QuorumReplica(
            replica_id=node_id,
            log_end_offset=known.offset,
            last_fetch_timestamp=known.at_ms,
            last_caught_up_timestamp=known.caught_up_ms,
        )


class Quorum:
    """What the controller tells of the cluster's metadata."""

    def __init__(self, clock: Clock, cluster: ClusterView, metadata: MetadataService, observers: Observers) -> None:
        self._clock = clock
        self._cluster = cluster
        self._metadata = metadata
        self._observers = observers

    def describe(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        """The controller's answer. As in Kafka, who asks for more than the metadata's partition is told nothing."""
        asked = [(topic.topic_name, [part.partition_index for part in topic.partitions]) for topic in request.topics]
        response = DescribeQuorumResponse(error_message="")
        if asked != [(METADATA_TOPIC, [0])]:
            response.topics = [_unknown(name, indexes) for name, indexes in asked]
            return response
        response.topics = [QuorumTopicState(topic_name=METADATA_TOPIC, partitions=[self._state()])]
        known = self._cluster.image.brokers.get(self._cluster.node_id)
        if known is not None:
            listeners = [QuorumListener(name=x.name, host=x.host, port=x.port) for x in known.listeners]
            response.nodes.append(QuorumNode(node_id=self._cluster.node_id, listeners=listeners))
        return response

    def _state(self) -> QuorumPartitionState:
        # What the store has acknowledged: others may have fetched it before it is in the image here.
        end, now_ms = self._metadata.active.tail.end_offset, self._clock.now_ms()
        leader = QuorumReplica(
            replica_id=self._cluster.node_id,
            log_end_offset=end,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
        return QuorumPartitionState(
            partition_index=0,
            leader_id=self._cluster.node_id,
            leader_epoch=self._metadata.controller_epoch,
            high_watermark=end,
            current_voters=[leader],
            observers=[
                self._observers.replica(node_id)
                for node_id, known in sorted(self._cluster.image.brokers.items())
                if node_id != self._cluster.node_id and not known.fenced
            ],
        )


def _unknown(name: str, indexes: list[int]) -> QuorumTopicState:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    states = [
        QuorumPartitionState(partition_index=index, error_code=error, error_message=error.message) for index in indexes
    ]
    return QuorumTopicState(topic_name=name, partitions=states)
