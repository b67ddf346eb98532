"""Records of committed offsets in `__consumer_offsets`, in Kafka's own format, and their tombstones."""

from __future__ import annotations

from headrace.coordination import CoordinatorRecord
from headrace.groups.group_offsets import NO_EXPIRY, CommittedOffset
from headrace.protocol.stored.consumer_offsets import OffsetCommitKey, OffsetCommitValue, encode_record

# What Kafka 4.3 writes. Only version 1 of an offset has an expiry of its own.
OFFSET_VERSION = 4
OFFSET_WITH_EXPIRY_VERSION = 1


def offset_record(
    group_partition: int, group_id: str, topic: str, partition: int, offset: CommittedOffset
) -> CoordinatorRecord:
    value = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
        expire_timestamp=offset.expire_timestamp_ms,
        topic_id=offset.topic_id,
    )
    version = OFFSET_VERSION if offset.expire_timestamp_ms == NO_EXPIRY else OFFSET_WITH_EXPIRY_VERSION
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return CoordinatorRecord(group_partition, *encode_record(key, value, version))


def offset_tombstone(group_partition: int, group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return CoordinatorRecord(group_partition, *encode_record(key, None, OFFSET_VERSION))
