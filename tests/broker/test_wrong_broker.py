"""What a broker says of a partition that it follows, or has no replica of."""

from __future__ import annotations

from headrace.cluster.topic_names import CONSUMER_OFFSETS
from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest

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
