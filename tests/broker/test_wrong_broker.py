"""What a broker says of a partition that it follows, or has no replica of."""

from __future__ import annotations

from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.topics import TopicPartition

from . import raw
from .several import SeveralBrokers, create, run_several


async def _delete_code(cluster: SeveralBrokers, node_id: int, topic: str) -> int:
    part = DeleteRecordsPartition(partition_index=0, offset=0)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[part])], timeout_ms=5000)
    answer = await cluster.client(node_id).request(request, 2, 60.0)
    code: int = answer.topics[0].partitions[0].error_code
    return code


def test_records_are_deleted_by_the_leader_and_producers_told_by_every_replica() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "t", partitions=1, replicas=2) == ErrorCode.NONE
        state = cluster.running(1).image.topics["t"].partitions[0]
        leader, follower = state.replicas
        outsider = cluster.other_than(leader, follower)
        for node_id in (leader, follower, outsider):
            await cluster.until(lambda n=node_id: "t" in cluster.running(n).image.topics)  # type: ignore[misc]
        records = raw.batch([b"x"], producer_id=7, producer_epoch=0, base_sequence=0)
        answer = await cluster.client(leader).request(raw.produce_request("t", 0, records), raw.PRODUCE_VERSION)
        assert raw.produced(answer).error_code == ErrorCode.NONE
        await cluster.until(lambda: cluster.running(follower).partition("t", 0).log.end_offset == 1)

        not_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await _delete_code(cluster, leader, "t") == ErrorCode.NONE
        assert await _delete_code(cluster, follower, "t") == not_leader
        assert await _delete_code(cluster, outsider, "t") == not_leader
        assert await _delete_code(cluster, outsider, "none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        told = []
        for node_id in (leader, follower, outsider):
            request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
            described = (await cluster.client(node_id).request(request, 0, 60.0)).topics[0].partitions[0]
            told.append((described.error_code, [one.producer_id for one in described.active_producers]))
        assert told == [(ErrorCode.NONE, [7]), (ErrorCode.NONE, [7]), (not_leader, [])]

    run_several(main)


def test_the_brokers_own_records_are_refused_by_whoever_is_asked() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        await cluster.running(1).metadata.ensure_internal(CONSUMER_OFFSETS)
        replicas = cluster.running(1).image.topics[CONSUMER_OFFSETS].partitions[0].replicas
        for node_id in (replicas[0], cluster.other_than(*replicas)):
            await cluster.until(lambda n=node_id: CONSUMER_OFFSETS in cluster.running(n).image.topics)  # type: ignore[misc]
            assert await _delete_code(cluster, node_id, CONSUMER_OFFSETS) == ErrorCode.INVALID_TOPIC_EXCEPTION

    run_several(main, settings={"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "1"})


def test_a_fetch_in_the_name_of_a_broker_without_a_replica_may_be_ahead_of_the_leader() -> None:
    """With a leader epoch, which the leader knows, the fetch may be of a replica that it does not know yet."""

    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "t", partitions=1, replicas=2) == ErrorCode.NONE
        leader, follower = cluster.running(1).image.topics["t"].partitions[0].replicas
        await cluster.until(lambda: ("t", 0) in cluster.running(leader).replicas.partitions)

        async def code(replica_id: int, current_leader_epoch: int) -> int:
            part = FetchPartition(partition=0, current_leader_epoch=current_leader_epoch, partition_max_bytes=1000)
            topic = FetchTopic(topic="t", partitions=[part])
            request = FetchRequest(replica_id=replica_id, max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[topic])
            answer = await cluster.client(leader).request(request, 12, 60.0)
            found: int = answer.responses[0].partitions[0].error_code
            return found

        outsider = cluster.other_than(leader, follower)
        assert await code(outsider, 0) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await code(outsider, -1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await code(follower, 0) == ErrorCode.NONE

    run_several(main)


def test_markers_for_a_partition_that_is_elsewhere_are_told_unknown_to_clients_alone() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "t", partitions=1, replicas=2) == ErrorCode.NONE
        leader, follower = cluster.running(1).image.topics["t"].partitions[0].replicas
        outsider = cluster.other_than(leader, follower)
        topic = WritableTxnMarkerTopic(name="t", partition_indexes=[0])
        marker = WritableTxnMarker(producer_id=7, producer_epoch=0, topics=[topic])

        async def code(node_id: int) -> int:
            await cluster.until(lambda: "t" in cluster.running(node_id).image.topics)
            answer = await cluster.client(node_id).request(WriteTxnMarkersRequest(markers=[marker]), 1, 60.0)
            found: int = answer.markers[0].topics[0].partitions[0].error_code
            return found

        assert await code(follower) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await code(outsider) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # Of a coordinator, whose client id says so, it must not be taken for a topic that was deleted.
        errors = await cluster.running(outsider).transactions.write_markers(7, 0, 0, False, [TopicPartition("t", 0)], 0)
        assert set(errors.values()) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}

    run_several(main)


def test_offsets_of_a_transaction_are_refused_by_a_broker_that_does_not_coordinate_the_group() -> None:
    """Before the transaction is asked about, which may be refused for other reasons."""

    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "t", partitions=1) == ErrorCode.NONE
        # Its coordinator knows of no such transaction.
        await cluster.running(1).metadata.ensure_internal(TRANSACTION_STATE)
        await cluster.running(1).metadata.ensure_internal(CONSUMER_OFFSETS)
        _, follower, _ = cluster.running(1).image.topics[CONSUMER_OFFSETS].partitions[0].replicas
        await cluster.until(lambda: (CONSUMER_OFFSETS, 0) in cluster.running(follower).replicas.partitions)
        part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            producer_id=1,
            producer_epoch=0,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
        )
        answer = await cluster.client(follower).request(request, 3, 60.0)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR

    run_several(main, settings={"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "3"})


def test_a_partition_that_is_about_to_be_made_here_is_not_unknown() -> None:
    """The metadata is heard of before the log is made. Who took it for unknown might take it for deleted."""

    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "t", partitions=1, replicas=2) == ErrorCode.NONE
        for node_id in cluster.running(1).image.topics["t"].partitions[0].replicas:
            broker = cluster.running(node_id)
            await cluster.until(lambda b=broker: ("t", 0) in b.replicas.partitions)  # type: ignore[misc]
            made = broker.replicas.partitions.pop(TopicPartition("t", 0))
            answer = await cluster.client(node_id).request(
                raw.produce_request("t", 0, raw.batch([b"x"])), raw.PRODUCE_VERSION
            )
            assert raw.produced(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert await _delete_code(cluster, node_id, "t") == ErrorCode.NOT_LEADER_OR_FOLLOWER
            broker.replicas.partitions[TopicPartition("t", 0)] = made

    run_several(main)


def test_the_end_of_a_transactions_offsets_is_not_refused_as_that_of_a_deleted_topic() -> None:
    """By a broker without a replica of their partition, nor by one that is about to make it."""

    async def main(cluster: SeveralBrokers) -> None:
        await cluster.running(1).metadata.ensure_internal(CONSUMER_OFFSETS)
        key = TopicPartition(CONSUMER_OFFSETS, 0)
        replicas = cluster.running(1).image.topics[CONSUMER_OFFSETS].partitions[0].replicas

        async def told_by(node_id: int) -> set[ErrorCode]:
            errors = await cluster.running(node_id).transactions.write_markers(7, 0, 0, False, [key], 0)
            return set(errors.values())

        outsider = cluster.other_than(*replicas)
        await cluster.until(lambda: CONSUMER_OFFSETS in cluster.running(outsider).image.topics)
        assert await told_by(outsider) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        here = cluster.running(replicas[-1]).replicas.partitions
        await cluster.until(lambda: key in here)
        made = here.pop(key)
        assert await told_by(replicas[-1]) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        here[key] = made

    run_several(main, settings={"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "2"})
