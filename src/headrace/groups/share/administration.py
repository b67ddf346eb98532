"""Where a share group starts in partitions, set or forgotten by hand: only while it has no members.

Each is done in three steps: the group's record says what is about to change, the share coordinator changes the states,
and the record says what has changed. Whoever runs a coordinator does the step between.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.coordination import Caller, Now
from headrace.errors import ErrorCode
from headrace.groups.epochs.finding import existing_group
from headrace.groups.epochs.refusals import RefusedError
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.group import GroupKind
from headrace.groups.outcome import Outcome, StateBeginning
from headrace.groups.share.group import ShareGroup
from headrace.groups.share.moving import ShareMoves
from headrace.groups.topics import TopicLookup
from headrace.protocol.messages import alter_share_group_offsets as altering
from headrace.protocol.messages import delete_share_group_offsets as deleting

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_UNKNOWN_WORDS = "This server does not host this topic-partition."
_NO_OFFSETS_WORDS = "There is no offset information to delete."


class ShareStateChanges:
    def __init__(self, moves: ShareMoves, topics: TopicLookup) -> None:
        self._moves = moves
        self._shards = moves.shards
        self._topics = topics

    def alter(self, caller: Caller, request: altering.AlterShareGroupOffsetsRequest, at: Now) -> Outcome:
        """The answer, and in `beginnings` what the share coordinator is to be asked first. A group is made of need."""
        out = Outcome()
        response = altering.AlterShareGroupOffsetsResponse()
        try:
            group, is_new = self._group_to_alter(request.group_id)
        except RefusedError as refused:
            response.error_code, response.error_message = refused.error, refused.message
            out.reply(caller, response)
            return out
        step = GroupStep(self._shards, out, group, at)
        if is_new:
            self._moves.begin(step)
        asked: dict[tuple[bytes, int], int] = {}
        for topic in request.topics:
            topic_id, count = self._topics.topic_id(topic.topic_name), self._topics.partition_count(topic.topic_name)
            answer = altering.AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, partitions=[])
            response.responses.append(answer)
            known: set[int] = set()
            for part in topic.partitions:
                result = altering.AlterShareGroupOffsetsResponsePartition(partition_index=part.partition_index)
                answer.partitions.append(result)
                if topic_id is None or count is None or not 0 <= part.partition_index < count:
                    result.error_code, result.error_message = _UNKNOWN, _UNKNOWN_WORDS
                else:
                    known.add(part.partition_index)
                    asked[topic_id, part.partition_index] = part.start_offset
            if topic_id is not None:
                answer.topic_id = topic_id
                if known:
                    group.begin(topic_id, topic.topic_name, known, at.monotonic_ms)
        if asked:
            step.put(group.states_record())
            out.beginnings.append(StateBeginning(group.group_id, group.epoch, asked))
        out.reply(caller, response)
        step.end()
        return out

    def _group_to_alter(self, group_id: str) -> tuple[ShareGroup, bool]:
        if not group_id:
            raise RefusedError(ErrorCode.INVALID_GROUP_ID, ErrorCode.INVALID_GROUP_ID.message)
        group, is_new = self._moves.group_to_join(group_id)
        if group.members:
            raise RefusedError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
        return group, is_new

    def delete(self, caller: Caller, request: deleting.DeleteShareGroupOffsetsRequest, at: Now) -> Outcome:
        """The answer, in which topics without an error are those whose states are to be deleted next."""
        out = Outcome()
        response = deleting.DeleteShareGroupOffsetsResponse()
        out.reply(caller, response)
        try:
            if not request.group_id:
                raise RefusedError(ErrorCode.INVALID_GROUP_ID, ErrorCode.INVALID_GROUP_ID.message)
            group = existing_group(self._shards, request.group_id, ShareGroup, GroupKind.SHARE)
            if group.members:
                raise RefusedError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
        except RefusedError as refused:
            response.error_code, response.error_message = refused.error, refused.message
            return out
        step = GroupStep(self._shards, out, group, at)
        for topic in request.topics:
            topic_id = self._topics.topic_id(topic.topic_name)
            result = deleting.DeleteShareGroupOffsetsResponseTopic(topic_name=topic.topic_name)
            response.responses.append(result)
            if topic_id is None:
                result.error_code, result.error_message = _UNKNOWN, _UNKNOWN_WORDS
            elif topic_id not in group.begun and topic_id not in group.deleting:
                result.error_code, result.error_message = _UNKNOWN, _NO_OFFSETS_WORDS
            else:
                result.topic_id = topic_id
                group.begun.pop(topic_id, None)
                group.deleting[topic_id] = topic.topic_name
        step.put(group.states_record())
        step.end()
        return out

    def states_deleted(self, group_id: str, topic_ids: Collection[bytes], at: Now) -> Outcome:
        """The share coordinator has no states of these topics any more."""
        out = Outcome()
        group = self._shards.groups.get(group_id)
        if isinstance(group, ShareGroup) and not group.is_dead:
            step = GroupStep(self._shards, out, group, at)
            for topic_id in topic_ids:
                group.forget_topic(topic_id)
            step.put(group.states_record())
            step.end()
        return out
