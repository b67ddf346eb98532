"""A coordinator as its driver sees it: partitions that come and go, timers, and what became of its outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic

from headrace.coordination.outcome import Job, OutcomeT, Timer, error_after_failed_write
from headrace.coordination.shards import LoadReport, Shards, ShardT
from headrace.coordination.values import Now, Reply, StoredRecord
from headrace.errors import ErrorCode


class Coordinator(ABC, Generic[OutcomeT, ShardT]):
    """Pure: no clock, no socket, no disk. See `headrace.coordination.outcome` for the order of things."""

    def __init__(self, topic: str, outcome: type[OutcomeT], shards: Shards[ShardT]) -> None:
        """`outcome` is its kind of outcome, `shards` are the partitions of `topic` that it serves."""
        self._topic = topic
        self._outcome = outcome
        self._shards = shards

    @property
    def partition_count(self) -> int:
        """How many partitions the topic has, as the names of groups or transactional ids are spread over them."""
        return self._shards.partition_count

    @partition_count.setter
    def partition_count(self, count: int) -> None:
        """For a topic of which nothing is led yet: what was found by another count would not be found again."""
        self._shards.partition_count = count

    def partition_of(self, name: str) -> int:
        """The partition of the topic that keeps the group or transactional id of that name."""
        return self._shards.partition_of(name)

    # --- partitions come and go ---------------------------------------------------------------------------------------

    def begin_load(self, partition: int, leader_epoch: int) -> OutcomeT:
        """This broker leads that partition now, in this epoch. Until `loaded`, nobody is told anything about it."""
        out = self.unload(partition)
        self._shards.begin(partition, leader_epoch)
        return out

    def load(self, partition: int, record: StoredRecord) -> None:
        """Replay one record or marker, in the order of the log."""
        shard = self._shards.get(partition)
        if shard is None or shard.loader is None:
            raise ValueError(f"{self._topic}-{partition} is not being loaded: call begin_load first")
        shard.loader.add(record)

    def loaded(self, partition: int, at: Now) -> OutcomeT:
        """All is replayed: serve the partition."""
        out = self._outcome()
        shard = self._shards.get(partition)
        if shard is None or shard.loader is None:
            return out
        shard.report = shard.loader.report
        self._serve(out, shard, at)
        return out

    def unload(self, partition: int) -> OutcomeT:
        """This broker no longer leads the partition: whoever waits is sent to look for the new coordinator.

        Who waits for a write is answered by what becomes of that.
        """
        out = self._outcome()
        shard = self._shards.end(partition)
        if shard is not None and shard.loader is None:
            self._give_up(out, shard)
        return out

    def is_loaded(self, partition: int) -> bool:
        """Whether this coordinator knows all that the partition holds."""
        return self._shards.served(partition) is not None

    def load_report(self, partition: int) -> LoadReport | None:
        """What the partition held when it was loaded, None when it is not served."""
        shard = self._shards.served(partition)
        return None if shard is None else shard.report

    @abstractmethod
    def _serve(self, out: OutcomeT, shard: ShardT, at: Now) -> None:
        """Take what the shard's loader found, and the loader away: from now on the shard serves."""

    @abstractmethod
    def _give_up(self, out: OutcomeT, shard: ShardT) -> None:
        """A shard that served is served no more: cancel its timers, and answer those who wait for each other."""

    # --- what became of an outcome ------------------------------------------------------------------------------------

    def written(self, outcome: OutcomeT, at: Now) -> OutcomeT:
        """The outcome's records are in the log. Gives its replies, and what else follows."""
        out = self._outcome(replies=outcome.replies)
        for effect in outcome.effects:
            effect.written(out, at)
        return out

    def failed(self, outcome: OutcomeT, error: ErrorCode | Mapping[int, ErrorCode], at: Now) -> OutcomeT:
        """Records of the outcome were not written: none of them, or not those of some effects, by their position.

        If they are in the log all the same, no harm is done: what follows is written after them.
        """
        errors = error if isinstance(error, Mapping) else dict.fromkeys(range(len(outcome.effects)), error)
        if not errors:
            return self.written(outcome, at)
        told = {position: error_after_failed_write(code) for position, code in errors.items()}
        first = next(iter(told.values()))
        out = self._outcome(replies=[self._refused(reply, first) for reply in outcome.replies])
        for position, effect in enumerate(outcome.effects):
            refusal = told.get(position)
            if refusal is None:
                effect.written(out, at)
            else:
                effect.failed(out, refusal, at)
        return out

    def finished(self, job: Job[OutcomeT], result: object, at: Now) -> OutcomeT:
        """A job has ended, with a result or an exception."""
        out = self._outcome()
        if isinstance(result, Exception):
            job.failed(out, result, at)
        else:
            job.done(out, result, at)
        return out

    def _refused(self, reply: Reply, error: ErrorCode) -> Reply:
        """The same reply, now that records could not be written, unless its effects put the error into it."""
        return reply

    @abstractmethod
    def on_timer(self, timer: Timer, at: Now) -> OutcomeT:
        """A timer fired. Firing early, late, or after it was cancelled does no harm."""
