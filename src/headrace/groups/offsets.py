"""The requests about offsets: commit, commit in a transaction, fetch, delete; and the expiry of those nobody needs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from headrace.config import INT64_MAX, INT64_MIN
from headrace.coordination import NO_PRODUCER_ID, Caller, Now, is_storable
from headrace.errors import ErrorCode
from headrace.groups.config import GroupConfig
from headrace.groups.group import CommitClaim, Group
from headrace.groups.group_offsets import NO_EXPIRY, CommittedOffset
from headrace.groups.outcome import Outcome, TransactionalProducer, nothing_failed, one_record
from headrace.groups.records import offset_record, offset_tombstone
from headrace.groups.shards import Shard, Shards
from headrace.groups.topics import TopicLookup
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headrace.protocol.schema import ZERO_UUID
from headrace.topics import TopicPartition

TOPIC_ID_VERSION = 10  # of OffsetCommit and OffsetFetch
GROUP_ID_NOT_FOUND_VERSION = 9  # of OffsetCommit
LOAD_IN_PROGRESS_VERSION = 2  # of TxnOffsetCommit
NO_RETENTION_TIME = -1
_MISSING = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_Answered = TypeVar("_Answered", OffsetCommitResponseTopic, TxnOffsetCommitResponseTopic)


class _Commit(NamedTuple):
    """An offset to be written, and where its answer tells if it could not be."""

    partition: TopicPartition
    offset: CommittedOffset
    answered: OffsetCommitResponsePartition | TxnOffsetCommitResponsePartition


class OffsetChanges:
    """Changes of offsets. A change takes effect when it is written; until then its partition counts as unstable."""

    def __init__(self, config: GroupConfig, shards: Shards, topics: TopicLookup) -> None:
        self._config = config
        self._shards = shards
        self._topics = topics

    # --- commit -------------------------------------------------------------------------------------------------------

    def commit(self, out: Outcome, caller: Caller, request: OffsetCommitRequest, at: Now) -> None:
        with_ids = caller.api_version >= TOPIC_ID_VERSION
        expire_ms = NO_EXPIRY
        if request.retention_time_ms != NO_RETENTION_TIME:
            expire_ms = min(max(at.wall_ms + request.retention_time_ms, INT64_MIN), INT64_MAX)
        response = OffsetCommitResponse()
        commits: list[_Commit] = []
        claim = CommitClaim(
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            caller.api_version,
            is_transactional=False,
        )
        may_commit = self._checker(request.group_id, claim, lambda: self._without_group(caller, request))
        for topic in request.topics:
            name = self._topics.topic_name(topic.topic_id) if with_ids else topic.name
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if with_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answered = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
            if topic.partitions or name is None or self._topics.partition_count(name) is None:
                response.topics.append(answered)
            for wanted in topic.partitions:
                error = self._check_partition(name, unknown, wanted, may_commit)
                result = OffsetCommitResponsePartition(partition_index=wanted.partition_index, error_code=error)
                answered.partitions.append(result)
                if error == ErrorCode.NONE and name is not None:
                    # Also with a commit by name: so it is never taken for one to a later topic of that name.
                    topic_id = topic.topic_id if with_ids else self._topics.topic_id(name) or ZERO_UUID
                    offset = _offset_of(wanted, at.wall_ms, expire_ms, topic_id)
                    commits.append(_Commit(TopicPartition(name, wanted.partition_index), offset, result))
        response.topics = _missing_first(response.topics, lambda topic: topic.topic_id if with_ids else topic.name)
        out.reply(caller, response)
        if commits:
            group = self._write(out, request.group_id, commits, NO_PRODUCER_ID, at)
            group.committed_by(out, request.member_id, at)

    def commit_in_transaction(
        self, out: Outcome, caller: Caller, request: TxnOffsetCommitRequest, at: Now, refused: ErrorCode
    ) -> None:
        response = TxnOffsetCommitResponse()
        commits: list[_Commit] = []
        claim = CommitClaim(
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            caller.api_version,
            is_transactional=True,
        )
        if refused == ErrorCode.NONE and not request.group_id:
            # Consumers of old may commit for a group without a name, so there may be one; producers may not.
            refused = ErrorCode.INVALID_GROUP_ID
        may_commit = self._checker(
            request.group_id, claim, lambda: self._without_group_transactional(caller, request), refused
        )
        for topic in request.topics:
            answered = TxnOffsetCommitResponseTopic(name=topic.name)
            if topic.partitions or self._topics.partition_count(topic.name) is None:
                response.topics.append(answered)
            for wanted in topic.partitions:
                error = self._check_partition(topic.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, wanted, may_commit)
                result = TxnOffsetCommitResponsePartition(partition_index=wanted.partition_index, error_code=error)
                answered.partitions.append(result)
                if error == ErrorCode.NONE:
                    topic_id = self._topics.topic_id(topic.name) or ZERO_UUID
                    offset = _offset_of(wanted, at.wall_ms, NO_EXPIRY, topic_id)
                    commits.append(_Commit(TopicPartition(topic.name, wanted.partition_index), offset, result))
        response.topics = _missing_first(response.topics, lambda topic: topic.name)
        out.reply(caller, response)
        if commits:
            out.producer = TransactionalProducer(request.producer_id, request.producer_epoch)
            self._write(out, request.group_id, commits, request.producer_id, at)

    def _checker(
        self,
        group_id: str,
        claim: CommitClaim,
        without_group: Callable[[], ErrorCode],
        refused: ErrorCode = ErrorCode.NONE,
    ) -> Callable[[str, int], ErrorCode]:
        """Whether a partition may be committed. The group is asked once, and only if there is one that exists."""
        group = self._shards.groups.get(group_id)
        found: list[ErrorCode] = []

        def check() -> ErrorCode:
            if refused != ErrorCode.NONE:
                return refused
            if group is None:
                return without_group()
            return ErrorCode.COORDINATOR_NOT_AVAILABLE if group.is_dead else group.may_commit(claim)

        def ask(topic: str, partition: int) -> ErrorCode:
            if not found:
                found.append(check())
            if found[0] != ErrorCode.NONE or group is None:
                return found[0]
            return group.may_commit_partition(claim, self._topics.topic_id(topic) or ZERO_UUID, partition)

        return ask

    def _check_partition(
        self, name: str | None, unknown: ErrorCode, wanted: Any, may_commit: Callable[[str, int], ErrorCode]
    ) -> ErrorCode:
        count = None if name is None else self._topics.partition_count(name)
        if name is None or count is None:
            return unknown
        if not 0 <= wanted.partition_index < count:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error = may_commit(name, wanted.partition_index)
        metadata = wanted.committed_metadata
        if error == ErrorCode.NONE and (
            _java_length(metadata) > self._config.offset_metadata_max_bytes or not is_storable(metadata)
        ):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return error

    def _without_group(self, caller: Caller, request: OffsetCommitRequest) -> ErrorCode:
        """Of a group that nobody knows, anyone may commit who claims no generation."""
        if not is_storable(request.group_id):
            return ErrorCode.INVALID_GROUP_ID
        error = self._shards.error_for(request.group_id)
        if error != ErrorCode.NONE or request.generation_id_or_member_epoch < 0:
            return error
        new = caller.api_version >= GROUP_ID_NOT_FOUND_VERSION
        return ErrorCode.GROUP_ID_NOT_FOUND if new else ErrorCode.ILLEGAL_GENERATION

    def _without_group_transactional(self, caller: Caller, request: TxnOffsetCommitRequest) -> ErrorCode:
        if not is_storable(request.group_id):
            return ErrorCode.INVALID_GROUP_ID
        error = self._shards.error_for(request.group_id)
        if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and caller.api_version < LOAD_IN_PROGRESS_VERSION:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # old producers do not know the other
        if error != ErrorCode.NONE or request.generation_id < 0:
            return error
        return ErrorCode.ILLEGAL_GENERATION

    def _write(self, out: Outcome, group_id: str, commits: Iterable[_Commit], producer_id: int, at: Now) -> Group:
        """Each offset counts for itself, as it is answered for itself: many may need several batches."""
        group = self._shards.groups.get(group_id) or self._shards.create(group_id, at.wall_ms)
        shard = self._shards.of(group)
        for commit in commits:
            self._shards.number(shard, commit.offset)
            group.offsets.begin_write(commit.partition)
            out.effects.append(
                one_record(
                    offset_record(shard.partition, group_id, *commit.partition, commit.offset),
                    partial(self._committed, shard, group, commit, producer_id),
                    partial(self._not_committed, group, commit),
                )
            )
        return group

    def _committed(self, shard: Shard, group: Group, commit: _Commit, producer_id: int, out: Outcome, at: Now) -> None:
        group.offsets.end_write(commit.partition)
        if not shard.is_unloaded:
            self._shards.apply_offset(shard, group.group_id, *commit.partition, commit.offset, producer_id)

    def _not_committed(self, group: Group, commit: _Commit, out: Outcome, error: ErrorCode, at: Now) -> None:
        commit.answered.error_code = error
        group.offsets.end_write(commit.partition)
        if group.is_vacant and not group.is_dead:
            self._shards.remove(out, group)  # it was made for this commit alone

    # --- delete -------------------------------------------------------------------------------------------------------

    def delete(self, out: Outcome, caller: Caller, request: OffsetDeleteRequest) -> None:
        group = self._shards.groups.get(request.group_id)
        error = self._check_delete(group, request.group_id)
        if error != ErrorCode.NONE or group is None:
            out.reply(caller, OffsetDeleteResponse(error_code=error))
            return
        known = group.offsets.partitions()
        gone: list[TopicPartition] = []
        # As Kafka, which answers for what does not exist before it asks the group: that comes first.
        missing: dict[str, OffsetDeleteResponseTopic] = {}
        there: list[OffsetDeleteResponseTopic] = []
        for topic in request.topics:
            count = self._topics.partition_count(topic.name)
            answered = OffsetDeleteResponseTopic(name=topic.name)
            if count is None:
                missing.setdefault(topic.name, OffsetDeleteResponseTopic(name=topic.name))
            for wanted in topic.partitions:
                partition = TopicPartition(topic.name, wanted.partition_index)
                into = answered
                if count is None or not 0 <= wanted.partition_index < count:
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    into = missing.setdefault(topic.name, OffsetDeleteResponseTopic(name=topic.name))
                elif group.is_subscribed_to(topic.name):
                    error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                else:
                    error = ErrorCode.NONE
                    if partition in known:
                        gone.append(partition)
                into.partitions.append(
                    OffsetDeleteResponsePartition(partition_index=wanted.partition_index, error_code=error)
                )
            if answered.partitions:
                there.append(answered)
        out.reply(caller, OffsetDeleteResponse(topics=_merged(missing, there)))
        self.write_tombstones(out, group, gone)

    def _check_delete(self, group: Group | None, group_id: str) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            error = self._shards.error_for(group_id)
            return ErrorCode.GROUP_ID_NOT_FOUND if error == ErrorCode.NONE else error
        return ErrorCode.GROUP_ID_NOT_FOUND if group.is_dead else group.may_delete_offsets()

    def write_tombstones(
        self,
        out: Outcome,
        group: Group,
        partitions: Iterable[TopicPartition],
        failed: Callable[[Outcome, ErrorCode, Now], None] = nothing_failed,
    ) -> None:
        """Delete these offsets, each once that is written. If it is not, it stays, and the next pass tries again."""
        shard = self._shards.of(group)
        for partition in sorted(set(partitions)):
            tombstone = offset_tombstone(shard.partition, group.group_id, *partition)
            out.effects.append(one_record(tombstone, partial(self._deleted, shard, group.group_id, partition), failed))

    def _deleted(self, shard: Shard, group_id: str, partition: TopicPartition, out: Outcome, at: Now) -> None:
        if not shard.is_unloaded:
            self._shards.apply_offset(shard, group_id, *partition, None)

    def is_of_earlier_topic(self, topic: str, offset: CommittedOffset) -> bool:
        """Whether the topic was deleted and made anew since; then nobody can want the offset any more."""
        topic_id = self._topics.topic_id(topic)
        return topic_id is not None and is_mismatched(offset.topic_id, topic_id)


def is_mismatched(stored: bytes, asked: bytes) -> bool:
    """Whether two topic ids are of different topics; without an id nobody can tell, and the name counts."""
    return ZERO_UUID not in (stored, asked) and stored != asked


def _missing_first(topics: list[_Answered], key: Callable[[_Answered], object]) -> list[_Answered]:
    """An answer in Kafka's order: what does not exist leads, each topic once. (One without partitions is unknown.)"""
    if all(topic.partitions and all(part.error_code not in _MISSING for part in topic.partitions) for topic in topics):
        return topics
    arranged: dict[object, _Answered] = {}
    for missing in (True, False):
        for topic in topics:
            parts = [part for part in topic.partitions if (part.error_code in _MISSING) is missing]
            if key(topic) in arranged:
                arranged[key(topic)].partitions += parts
            elif parts or (missing and not topic.partitions):
                arranged[key(topic)] = copy.copy(topic)
                arranged[key(topic)].partitions = parts
    return list(arranged.values())


def _offset_of(wanted: Any, now_ms: int, expire_ms: int, topic_id: bytes) -> CommittedOffset:
    return CommittedOffset(
        wanted.committed_offset,
        wanted.committed_leader_epoch,
        wanted.committed_metadata or "",
        now_ms,
        expire_ms,
        topic_id,
    )


def _java_length(text: str | None) -> int:
    """Kafka's limit on metadata is in UTF-16 units, whatever its name says."""
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _merged(
    missing: dict[str, OffsetDeleteResponseTopic], there: list[OffsetDeleteResponseTopic]
) -> list[OffsetDeleteResponseTopic]:
    """The topics that lack something first, each with what it has behind it; then the others."""
    others = []
    for topic in there:
        if topic.name in missing:
            missing[topic.name].partitions += topic.partitions
        else:
            others.append(topic)
    return [*missing.values(), *others]
