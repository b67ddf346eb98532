"""The share coordinator: keeps in `__share_group_state` how far share groups have got in each partition.

Group coordinators begin and delete states, leaders of partitions read and write them. Pure, as all coordinators are
(`headrace.coordination`). A state counts as written when its record is; until then it takes no other change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace import coordination
from headrace.cluster.topic_names import SHARE_GROUP_STATE
from headrace.config import ConfigValue
from headrace.coordination import Caller, Coordinator, CoordinatorRecord, Effect, Now, Outcome, Timer, settings
from headrace.errors import ErrorCode
from headrace.groups.share.deliveries import StateBatch
from headrace.groups.share.state_records import (
    NO_COUNT,
    NO_OFFSET,
    Loader,
    StateKey,
    StoredState,
    snapshot_record,
    tombstone,
    update_record,
)
from headrace.protocol.messages import delete_share_group_state as deleting
from headrace.protocol.messages import initialize_share_group_state as beginning
from headrace.protocol.messages import read_share_group_state as reading
from headrace.protocol.messages import read_share_group_state_summary as summing
from headrace.protocol.messages import write_share_group_state as writing

_KEYS = {
    "topic_partitions": "share.coordinator.state.topic.num.partitions",
    "updates_max": "share.coordinator.snapshot.update.records.per.snapshot",
}


@dataclass(frozen=True, slots=True)
class StateConfig:
    """The settings of the share coordinator, with Kafka's defaults. `updates_max`: how many follow a snapshot."""

    topic_partitions: int = 50
    updates_max: int = 500

    @classmethod
    def from_values(cls, values: Mapping[str, ConfigValue]) -> StateConfig:
        """From parsed broker configuration; keys of others are ignored, missing ones have their defaults."""
        return cls(**settings(_KEYS, values))


@dataclass(slots=True, eq=False)
class Shard(coordination.Shard[Loader]):
    states: dict[StateKey, StoredState] = field(default_factory=dict)
    changing: set[StateKey] = field(default_factory=set)


class Shards(coordination.Shards[Shard]):
    def __init__(self, partition_count: int) -> None:
        super().__init__(partition_count, lambda partition, epoch: Shard(partition, epoch, Loader()))


class ShareStateCoordinator(Coordinator[Outcome, Shard]):
    """The states of the partitions of `__share_group_state` that this broker leads.

    `partition_exists` says whether there is such a partition of a topic with that id.
    """

    _shards: Shards

    def __init__(self, config: StateConfig, partition_exists: Callable[[bytes, int], bool]) -> None:
        super().__init__(SHARE_GROUP_STATE, Outcome, Shards(config.topic_partitions))
        self._config = config
        self._partition_exists = partition_exists

    def _serve(self, out: Outcome, shard: Shard, at: Now) -> None:
        loader, shard.loader = shard.loader, None
        assert loader is not None
        shard.states.update(loader.states())

    def _give_up(self, out: Outcome, shard: Shard) -> None:
        """Nobody waits but for writes, and there are no timers."""

    def on_timer(self, timer: Timer, at: Now) -> Outcome:
        return Outcome()

    def states(self, partition: int) -> dict[StateKey, StoredState]:
        """All that is stored in that partition of the topic."""
        shard = self._shards.served(partition)
        return {} if shard is None else dict(shard.states)

    # --- one method per API -------------------------------------------------------------------------------------------

    def initialize(self, caller: Caller, request: beginning.InitializeShareGroupStateRequest, at: Now) -> Outcome:
        """Begin a state, or begin it anew in a later epoch."""
        out = Outcome()
        results = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                key = StateKey(request.group_id, topic.topic_id, asked.partition)
                answer = beginning.PartitionResult(partition=asked.partition)
                answers.append(answer)
                error, shard = self._find(key)
                if shard is None:
                    _refuse(answer, error)
                    continue
                state = shard.states.get(key)
                if state is not None and asked.state_epoch < state.state_epoch:
                    _refuse(answer, ErrorCode.FENCED_STATE_EPOCH)
                    continue
                begun = StoredState(
                    asked.state_epoch,
                    asked.start_offset,
                    snapshot_epoch=0 if state is None else state.snapshot_epoch + 1,
                    snapshot_ms=at.wall_ms,
                    finished_count=NO_COUNT if asked.start_offset == NO_OFFSET else 0,
                    created_ms=at.wall_ms if state is None else state.created_ms,
                )
                self._write(out, shard, key, begun, snapshot_record(shard.partition, key, begun, at.wall_ms), answer)
            results.append(beginning.InitializeStateResult(topic_id=topic.topic_id, partitions=answers))
        out.reply(caller, beginning.InitializeShareGroupStateResponse(results=results))
        return out

    def read(self, caller: Caller, request: reading.ReadShareGroupStateRequest, at: Now) -> Outcome:
        """What a leader begins with. From then on the leaders before it are fenced."""
        out = Outcome()
        results = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                key = StateKey(request.group_id, topic.topic_id, asked.partition)
                answer = reading.PartitionResult(partition=asked.partition)
                answers.append(answer)
                shard, state = self._stored(key, asked.leader_epoch, answer, "Read")
                if shard is None or state is None:
                    continue
                answer.state_epoch = state.state_epoch
                answer.start_offset = state.start_offset
                answer.state_batches = [
                    reading.StateBatch(
                        first_offset=batch.first,
                        last_offset=batch.last,
                        delivery_state=batch.state,
                        delivery_count=batch.delivery_count,
                    )
                    for batch in state.batches
                ]
                if asked.leader_epoch > state.leader_epoch:
                    led = state.updated(asked.leader_epoch, state.start_offset, state.finished_count, ())
                    record = update_record(shard.partition, key, led, state.start_offset, ())
                    self._write(out, shard, key, led, record, answer)
            results.append(reading.ReadStateResult(topic_id=topic.topic_id, partitions=answers))
        out.reply(caller, reading.ReadShareGroupStateResponse(results=results))
        return out

    def summary(self, caller: Caller, request: summing.ReadShareGroupStateSummaryRequest, at: Now) -> Outcome:
        """How far a group has got, for whoever administers it."""
        out = Outcome()
        results = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                key = StateKey(request.group_id, topic.topic_id, asked.partition)
                answer = summing.PartitionResult(partition=asked.partition)
                answers.append(answer)
                error, shard = self._find(key)
                state = None if shard is None else shard.states.get(key)
                if shard is None:
                    _refuse(answer, error)
                elif state is None:
                    # A state that was never begun is none that failed.
                    answer.start_offset = -1
                else:
                    answer.state_epoch = state.state_epoch
                    answer.leader_epoch = state.leader_epoch
                    answer.start_offset = state.start_offset
                    answer.delivery_complete_count = state.finished_count
            results.append(summing.ReadStateSummaryResult(topic_id=topic.topic_id, partitions=answers))
        out.reply(caller, summing.ReadShareGroupStateSummaryResponse(results=results))
        return out

    def write(self, caller: Caller, request: writing.WriteShareGroupStateRequest, at: Now) -> Outcome:
        """What a leader's readers have acknowledged since."""
        out = Outcome()
        results = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                key = StateKey(request.group_id, topic.topic_id, asked.partition)
                answer = writing.PartitionResult(partition=asked.partition)
                answers.append(answer)
                shard, state = self._stored(key, asked.leader_epoch, answer, "Write")
                if shard is None or state is None:
                    continue
                if asked.state_epoch != state.state_epoch:
                    _refuse(answer, ErrorCode.FENCED_STATE_EPOCH)
                    continue
                batches = [
                    StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
                    for batch in asked.state_batches
                ]
                # An older leader does not say how many are finished.
                count = state.finished_count if caller.api_version == 0 else asked.delivery_complete_count
                written = state.updated(asked.leader_epoch, asked.start_offset, count, batches)
                if written.updates > self._config.updates_max:
                    written = replace(
                        written, snapshot_epoch=written.snapshot_epoch + 1, updates=0, snapshot_ms=at.wall_ms
                    )
                    record = snapshot_record(shard.partition, key, written, at.wall_ms)
                else:
                    record = update_record(shard.partition, key, written, asked.start_offset, batches)
                self._write(out, shard, key, written, record, answer)
            results.append(writing.WriteStateResult(topic_id=topic.topic_id, partitions=answers))
        out.reply(caller, writing.WriteShareGroupStateResponse(results=results))
        return out

    def delete(self, caller: Caller, request: deleting.DeleteShareGroupStateRequest, at: Now) -> Outcome:
        """A group has no need of a state any more. It is no error that there is none."""
        out = Outcome()
        results = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                key = StateKey(request.group_id, topic.topic_id, asked.partition)
                answer = deleting.PartitionResult(partition=asked.partition)
                answers.append(answer)
                error, shard = self._find(key, may_be_gone=True)
                if shard is None:
                    _refuse(answer, error)
                elif key in shard.states:
                    self._write(out, shard, key, None, tombstone(shard.partition, key), answer)
            results.append(deleting.DeleteStateResult(topic_id=topic.topic_id, partitions=answers))
        out.reply(caller, deleting.DeleteShareGroupStateResponse(results=results))
        return out

    def snapshot(self, keys: Collection[StateKey], at: Now) -> Outcome:
        """Write states as they are, so that what is before is not needed any more."""
        out = Outcome()
        for key in keys:
            shard = self._shards.served(self._shards.partition_of(key.name))
            state = None if shard is None or key in shard.changing else shard.states.get(key)
            if shard is not None and state is not None:
                written = replace(state, snapshot_epoch=state.snapshot_epoch + 1, updates=0, snapshot_ms=at.wall_ms)
                record = snapshot_record(shard.partition, key, written, at.wall_ms)
                self._write(out, shard, key, written, record, writing.PartitionResult(partition=key.partition))
        return out

    def topics_deleted(self, topic_ids: Collection[bytes], at: Now) -> Outcome:
        """What groups had of these topics is not needed any more. Whoever is just changing one finds that out."""
        out = Outcome()
        for shard in self._shards.all():
            for key in [key for key in shard.states if key.topic_id in topic_ids and key not in shard.changing]:
                answer = deleting.PartitionResult(partition=key.partition)
                self._write(out, shard, key, None, tombstone(shard.partition, key), answer)
        return out

    # --- one state ----------------------------------------------------------------------------------------------------

    def _find(self, key: StateKey, *, may_be_gone: bool = False) -> tuple[ErrorCode, Shard | None]:
        """The shard that has the state, or would have it; or why nothing can be said of it."""
        if not key.group_id or key.partition < 0:
            return ErrorCode.INVALID_REQUEST, None
        error = self._shards.error_for(key.name)
        if error is not ErrorCode.NONE:
            return error, None
        if not may_be_gone and not self._partition_exists(key.topic_id, key.partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        shard = self._shards.serving(key.name)
        if key in shard.changing:
            # A leader that asks again is answered by then.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None
        return ErrorCode.NONE, shard

    def _stored(
        self, key: StateKey, leader_epoch: int, answer: Any, what: str
    ) -> tuple[Shard | None, StoredState | None]:
        """The state for a leader of that epoch; else its answer says why not."""
        error, shard = self._find(key)
        if shard is None:
            _refuse(answer, error)
            return None, None
        state = shard.states.get(key)
        if state is None:
            _refuse(answer, ErrorCode.INVALID_REQUEST)
            answer.error_message = f"{what} operation on uninitialized share partition not allowed."
        elif leader_epoch < state.leader_epoch:
            _refuse(answer, ErrorCode.FENCED_LEADER_EPOCH)
        else:
            return shard, state
        return None, None

    def _write(
        self,
        out: Outcome,
        shard: Shard,
        key: StateKey,
        state: StoredState | None,
        record: CoordinatorRecord,
        answer: Any,
    ) -> None:
        """Let the state be that one, or none, once the record is written."""
        shard.changing.add(key)

        def written(next_out: Outcome, at: Now) -> None:
            shard.changing.discard(key)
            if shard.is_unloaded:
                _refuse(answer, ErrorCode.NOT_COORDINATOR)
            elif state is None:
                shard.states.pop(key, None)
            else:
                shard.states[key] = state

        def failed(next_out: Outcome, error: ErrorCode, at: Now) -> None:
            shard.changing.discard(key)
            _refuse(answer, error)

        out.effects.append(Effect((record,), written, failed))


def _refuse(answer: Any, error: ErrorCode) -> None:
    """Let an answer say nothing but why, whatever it said before."""
    refused = type(answer)(partition=answer.partition, error_code=int(error))
    for declared in answer.SCHEMA.fields:
        setattr(answer, declared.name, getattr(refused, declared.name))
