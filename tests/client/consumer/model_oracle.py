"""What an application of the consumer's model was given, and what it may be given next."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.client.consumer.model_cluster import ModelCluster

from headrace.topics import TopicPartition


class BrokenInvariantError(AssertionError):
    """What must not happen did."""


class RaisedByCallbackError(Exception):
    """What callbacks of the application raise."""


class Oracle:
    """What the application was given, and what it may be given next."""

    def __init__(self, rng: random.Random, protocol: str = "classic") -> None:
        self.rng = rng
        self.protocol = protocol
        self.cluster = ModelCluster(rng, rng.randint(1, 3), self.commit_limit, protocol)
        self.next: dict[TopicPartition, int | None] = {}
        """The next offset of each partition; None: wherever a rebalance or a reset puts it."""
        self.handed: dict[TopicPartition, int] = {}
        """The highest position that the application had, of which commits may speak."""
        self.has_epoch: set[TopicPartition] = set()
        """Partitions whose position was read, and not sought: the consumer knows its leader epoch."""
        self.owned: set[TopicPartition] | None = None
        """What the listener was told to be this consumer's; None without a group."""
        self.begins: dict[TopicPartition, int | None] = {}
        """Partitions that were assigned and of which nothing came yet, and what came next of them before that."""
        self.paused: set[TopicPartition] = set()
        self.doubtful: set[TopicPartition] = set()
        """Partitions whose position was sought in a call that was ended: whether it was done is not known."""
        self.auto_commits = False
        self.is_blocking = False
        self.expected_callbacks = 0
        self.callbacks: list[int] = []
        self.uncertain: set[int] = set()
        self.log: list[str] = []

    def commit_limit(self, name: TopicPartition) -> int:
        limit = self.handed.get(name, 0)
        # Markers behind the last record hold none.
        values = self.cluster.values[name]
        while (name, limit) in self.cluster.markers or (limit < self.cluster.end(*name) and limit not in values):
            limit += 1
        if limit:
            self.handed[name] = limit
        return limit

    def say(self, what: str) -> None:
        self.log.append(f"{self.cluster.clock.now:9.3f} {what}")

    def forget(self, name: TopicPartition) -> None:
        self.next[name] = None
        self.begins.pop(name, None)

    def sought(self, name: TopicPartition, offset: int) -> None:
        self.next[name] = offset
        self.begins.pop(name, None)
        self.doubtful.discard(name)
        self.has_epoch.discard(name)
        self.handed[name] = max(offset, self.handed.get(name, 0))

    def handed_out(self, name: TopicPartition, offset: int, value: bytes, epoch: int, *, is_new: bool = True) -> None:
        """`is_new`: they are given as they were taken; when they block the caller, nothing has happened meanwhile."""
        cluster = self.cluster
        self.say(f"{name} {offset} {value!r}")
        if (offset, value) not in cluster.history[name]:
            raise BrokenInvariantError(f"{name} {offset}: {value!r} was never written there")
        cut_in = cluster.gone[name].get((offset, value))
        if is_new and self.is_blocking and cut_in is not None and self._known_epoch(name) >= cut_in:
            raise BrokenInvariantError(
                f"{name} {offset} was cut off in epoch {cut_in}, which was known when it was handed out"
            )
        if self.owned is not None and name not in self.owned:
            raise BrokenInvariantError(
                f"{name} {offset} was handed out, but the listener was not told that {name} is assigned"
            )
        newer = cluster.newer
        if is_new and newer.member and name.partition not in {one for _, one in newer.assigned | newer.to_revoke}:
            raise BrokenInvariantError(f"{name} {offset} was handed out, but the coordinator gave {name} to others")
        if name in self.paused:
            raise BrokenInvariantError(f"{name} {offset} was handed out, but {name} is paused")
        expected = self.next.get(name)
        # Records that were fetched before the log was cut back, or deleted, may come for a while.
        new = [(cut, number) for cut, number in cluster.cuts[name] if int(value) >= number]
        if expected is None:
            limit = max(self.commit_limit(name), self.first(name))
            if offset > limit and not self._is_gap(name, limit, offset):
                raise BrokenInvariantError(f"{name} begins at {offset}, but was handed out only up to {limit}")
            self._check_beginning(name, offset)
        elif expected <= offset and self._is_gap(name, expected, offset):
            # Only markers between the cut and this: it is also what comes first behind the cut.
            behind = [cut for cut, _ in new if cut < expected and not self._is_gap(name, cut, offset)]
            if behind and name in self.has_epoch:
                raise BrokenInvariantError(f"{name} goes on at {offset}, though the log was cut back to {min(new)[0]}")
        elif not self._may_jump(name, offset):
            raise BrokenInvariantError(
                f"{name}: {offset} was handed out where {expected} comes next (cut: {cluster.cuts[name]})"
            )
        if new:
            cluster.cuts[name] = [one for one in cluster.cuts[name] if one not in new]
        self.next[name] = offset + 1
        self.begins.pop(name, None)
        self.doubtful.discard(name)
        # Messages of before format 2 have none.
        (self.has_epoch.add if epoch >= 0 else self.has_epoch.discard)(name)
        self.handed[name] = max(offset + 1, self.handed.get(name, 0))

    def _known_epoch(self, name: TopicPartition) -> int:
        """The leader epoch that the consumer has heard of."""
        client = self.cluster.client
        topic = None if client is None else client.view.topics.get(name.topic)
        if topic is None or topic.topic_id != self.cluster.topic_ids[name.topic]:
            return -1
        found = topic.partition(name.partition)
        return -1 if found is None else found.leader_epoch

    def handed_out_record(self, record: Any, *, is_new: bool = True) -> None:
        name = TopicPartition(record.topic, record.partition)
        self.handed_out(name, record.offset, record.value, record.leader_epoch, is_new=is_new)

    def first(self, name: TopicPartition) -> int:
        return min(self.cluster.values[name], default=self.cluster.end(*name))

    def _is_gap(self, name: TopicPartition, start: int, end: int) -> bool:
        """Whether there are only markers there."""
        values = self.cluster.values[name]
        return all(
            (name, offset) in self.cluster.markers or (offset not in values and offset < self.cluster.end(*name))
            for offset in range(start, end)
        )

    def _may_jump(self, name: TopicPartition, offset: int) -> bool:
        """Whether something has happened that puts the position there."""
        cuts = self.cluster.cuts[name]
        if name in self.cluster.resets or cuts:
            if self._is_gap(name, 0, offset) or (cuts and name not in self.has_epoch):
                return True
            return any(cut <= offset and self._is_gap(name, cut, offset) for cut, _ in cuts)
        return False

    def _check_beginning(self, name: TopicPartition, offset: int) -> None:
        """The first record after a rebalance: at the group's offset, or where this consumer was before."""
        cluster = self.cluster
        if name not in self.begins or name in cluster.resets or name in cluster.ever_cut:
            return
        starts = [cluster.committed.get(name, 0), self.begins[name]]
        if not any(start is not None and start <= offset and self._is_gap(name, start, offset) for start in starts):
            raise BrokenInvariantError(
                f"{name} begins at {offset} after a rebalance; committed and handed out were {starts}"
            )

    def _expected(self, name: TopicPartition) -> int | None:
        """What comes next, where that is known: not of a partition that was assigned anew in a call that was ended,
        since the listener hears of that with the next poll."""
        return None if self.owned is not None and name not in self.owned else self.next.get(name)

    def check_position(self, name: TopicPartition, position: int) -> None:
        """A position is what comes next; markers may lie before it."""
        expected = self._expected(name)
        if expected is None or (expected <= position and self._is_gap(name, expected, position)):
            return
        # A log that was cut back may have had the position put anywhere before.
        if name not in self.cluster.ever_cut and not self._may_jump(name, position):
            raise BrokenInvariantError(f"the position of {name} is said to be {position}, but {expected} comes next")

    def check_committed(self, name: TopicPartition) -> None:
        """A commit of what was handed out has succeeded."""
        committed, expected = self.cluster.committed.get(name), self._expected(name)
        if expected is None or self.cluster.cuts[name] or name in self.cluster.resets:
            return
        if committed is None or committed < expected or not self._is_gap(name, expected, committed):
            raise BrokenInvariantError(f"a commit of {name} at {expected} succeeded, but committed is {committed}")

    def check_commits(self) -> None:
        if self.cluster.failures:
            raise BrokenInvariantError("; ".join(self.cluster.failures))

    # --- callbacks ----------------------------------------------------------------------------------------------------

    def may_raise(self, chance: float) -> None:
        if self.rng.random() < chance and self.cluster.hostility:
            raise RaisedByCallbackError

    def deserialize(self, value: bytes) -> bytes:
        self.may_raise(0.003)
        return value

    def commit_callback(self) -> Callable[[Any, Any], None]:
        number = self.expected_callbacks
        self.expected_callbacks += 1

        def called(error: Any, offsets: Any) -> None:
            self.callbacks.append(number)
            self.may_raise(0.2)

        return called

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.say(f"assigned {[name.partition for name in partitions]}")
        for name in partitions:
            before = self.next.get(name)
            self.forget(name)
            if name not in self.doubtful:
                self.begins[name] = before
            self.paused.discard(name)
        if self.owned is not None:
            self.owned |= set(partitions)
        self.may_raise(0.1)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.say(f"revoked {[name.partition for name in partitions]}")
        for name in partitions:
            self.paused.discard(name)
        if self.owned is not None:
            self.owned -= set(partitions)
        self.may_raise(0.1)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.on_partitions_revoked(partitions)

    def config(self) -> dict[str, Any]:
        rng = self.rng
        self.auto_commits = rng.random() < 0.5
        made = {
            "group_id": "g",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": self.auto_commits,
            "auto_commit_interval_ms": rng.choice([10, 500, 5000]),
            "max_poll_records": rng.choice([1, 7, 500]),
            "partition_assignment_strategy": rng.choice(["range", "cooperative-sticky"]),
            "request_timeout_ms": 2000,
            "default_api_timeout_ms": 5000,
            "session_timeout_ms": 10000,
            "max_poll_interval_ms": rng.choice([4000, 300000]),
            "metadata_max_age_ms": rng.choice([1000, 300000]),
            "value_deserializer": self.deserialize if rng.random() < 0.7 else None,
            "bootstrap_servers": ",".join(f"fake:{9000 + b}" for b in self.cluster.brokers),
        }
        if self.protocol == "consumer":
            del made["partition_assignment_strategy"], made["session_timeout_ms"]
            made["group_protocol"] = "consumer"
        return made
