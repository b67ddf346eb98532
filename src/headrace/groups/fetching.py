"""OffsetFetch: what groups have committed, in the shapes of all its versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.coordination import Caller
from headrace.errors import ErrorCode
from headrace.groups.group import Group
from headrace.groups.group_offsets import CommittedOffset
from headrace.groups.offsets import TOPIC_ID_VERSION, is_mismatched
from headrace.groups.shards import Shards
from headrace.groups.topics import TopicLookup
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from headrace.protocol.schema import ZERO_UUID

SEVERAL_GROUPS_VERSION = 8
GROUP_ERROR_VERSION = 2  # before it, an error of the group is told with every partition
NO_OFFSET = -1
NO_EPOCH = -1


class OffsetFetches:
    """Answers fetches. Only offsets that are written are told; on demand only those that nothing is about to change."""

    def __init__(self, shards: Shards, topics: TopicLookup) -> None:
        self._shards = shards
        self._topics = topics

    def fetch(self, caller: Caller, request: OffsetFetchRequest) -> OffsetFetchResponse:
        if caller.api_version < SEVERAL_GROUPS_VERSION:
            return self._fetch_one(caller, request)
        response = OffsetFetchResponse()
        with_ids = caller.api_version >= TOPIC_ID_VERSION
        for wanted in request.groups:
            answered = OffsetFetchResponseGroup(group_id=wanted.group_id)
            response.groups.append(answered)
            group, answered.error_code = self._find(wanted.group_id)
            if group is not None and answered.error_code == ErrorCode.NONE:
                answered.error_code = group.may_fetch(wanted.member_id, wanted.member_epoch)
            if answered.error_code != ErrorCode.NONE:
                continue
            if wanted.topics is None:
                answered.topics = self._all(group, request.require_stable, with_ids)
                continue
            for topic in wanted.topics:
                name = self._topics.topic_name(topic.topic_id) if with_ids else topic.name
                topic_id = topic.topic_id if with_ids else self._id_of(topic.name)
                partitions = [
                    self._partition(OffsetFetchResponsePartitions, group, name, topic_id, index, request.require_stable)
                    for index in topic.partition_indexes
                ]
                answered.topics.append(
                    OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
                )
        return response

    def _fetch_one(self, caller: Caller, request: OffsetFetchRequest) -> OffsetFetchResponse:
        group, error = self._find(request.group_id)
        if error != ErrorCode.NONE:
            if caller.api_version >= GROUP_ERROR_VERSION:
                return OffsetFetchResponse(error_code=error)
            return OffsetFetchResponse(topics=_failed(request.topics or [], error))
        topics = []
        if request.topics is None:
            for found in self._all(group, request.require_stable, with_ids=False):
                topics.append(OffsetFetchResponseTopic(name=found.name, partitions=_as_older(found.partitions)))
        else:
            for topic in request.topics:
                topic_id = self._id_of(topic.name)
                partitions = [
                    self._partition(
                        OffsetFetchResponsePartition, group, topic.name, topic_id, index, request.require_stable
                    )
                    for index in topic.partition_indexes
                ]
                topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
        return OffsetFetchResponse(topics=topics)

    def _id_of(self, name: str) -> bytes:
        """Also where a topic is asked for by its name, what was committed for an earlier one of that name is not told.

        Usually it was deleted with that topic, unless the broker failed between the two.
        """
        return self._topics.topic_id(name) or ZERO_UUID

    def _find(self, group_id: str) -> tuple[Group | None, ErrorCode]:
        """The group; a group that does not exist has no offsets, which is no error.

        One whose tombstones are being written has its offsets until they are: the deletion may still fail.
        """
        group = self._shards.groups.get(group_id)
        return group, self._shards.error_for(group_id) if group is None else ErrorCode.NONE

    def _partition(
        self, shape: type[Any], group: Group | None, name: str | None, topic_id: bytes, index: int, require_stable: bool
    ) -> Any:
        if name is None:
            return _none(shape, index, ErrorCode.UNKNOWN_TOPIC_ID)
        if group is None:
            return _none(shape, index, ErrorCode.NONE)
        if require_stable and group.offsets.is_unstable(name, index):
            return _none(shape, index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        offset = group.offsets.get(name, index)
        if offset is None or is_mismatched(offset.topic_id, topic_id):
            return _none(shape, index, ErrorCode.NONE)
        return _found(shape, index, offset)

    def _all(self, group: Group | None, require_stable: bool, with_ids: bool) -> list[OffsetFetchResponseTopics]:
        topics: list[OffsetFetchResponseTopics] = []
        if group is None:
            return topics
        for name, partitions in group.offsets.committed.items():
            topic_id = self._id_of(name)
            if with_ids and topic_id == ZERO_UUID:
                continue  # the topic is gone, and by id nobody could be told which one it was
            found: list[OffsetFetchResponsePartitions] = []
            for index, offset in sorted(partitions.items()):
                if is_mismatched(offset.topic_id, topic_id):
                    continue
                if require_stable and group.offsets.is_unstable(name, index):
                    found.append(_none(OffsetFetchResponsePartitions, index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                else:
                    found.append(_found(OffsetFetchResponsePartitions, index, offset))
            if found:
                told = topic_id if with_ids else ZERO_UUID
                topics.append(OffsetFetchResponseTopics(name=name, topic_id=told, partitions=found))
        return topics


def _found(shape: type[Any], index: int, offset: CommittedOffset) -> Any:
    return shape(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
    )


def _none(shape: type[Any], index: int, error: ErrorCode) -> Any:
    return shape(
        partition_index=index,
        committed_offset=NO_OFFSET,
        committed_leader_epoch=NO_EPOCH,
        metadata="",
        error_code=error,
    )


def _as_older(partitions: Sequence[OffsetFetchResponsePartitions]) -> list[OffsetFetchResponsePartition]:
    return [
        OffsetFetchResponsePartition(
            partition_index=partition.partition_index,
            committed_offset=partition.committed_offset,
            committed_leader_epoch=partition.committed_leader_epoch,
            metadata=partition.metadata,
            error_code=partition.error_code,
        )
        for partition in partitions
    ]


def _failed(topics: Sequence[OffsetFetchRequestTopic], error: ErrorCode) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[_none(OffsetFetchResponsePartition, index, error) for index in topic.partition_indexes],
        )
        for topic in topics
    ]
