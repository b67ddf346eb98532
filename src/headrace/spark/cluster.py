"""What the driver asks the cluster: which partitions there are, where they start and end, and a group's offsets."""

from __future__ import annotations

import base64
import contextlib
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.admin import Admin
from headrace.client.admin.drivers import ADMIN_CONFIGS
from headrace.client.offsets import OffsetSpec
from headrace.client.other_names import in_kafkas_words
from headrace.client.reachable import unreachable
from headrace.errors import HeadraceError, NetworkError, UnknownTopicOrPartitionError
from headrace.spark.options import EARLIEST, Bound, NoMatch, Topics
from headrace.spark.planning import Offsets, resolved
from headrace.topics import TopicPartition
from headrace.words import did_you_mean

_INTERNAL = "exclude.internal.topics"
_SERVERS = "bootstrap.servers"
# Brokers that are just started again are waited for so long, by a query that begins; one that runs has more patience.
_PATIENCE_S = 5.0
_AGAIN_S = 0.5


class StartNotFoundError(HeadraceError):
    """No record is at or after the time that was to be the start."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """How many partitions a topic has, and its id ("": the brokers are too old to have them)."""

    partitions: int
    id: str


def _id_text(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=") if any(topic_id) else ""


def admin_values(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a client's settings that an Admin knows."""
    words = in_kafkas_words(kafka, ADMIN_CONFIGS)
    return {name: value for name, value in words.items() if name in ADMIN_CONFIGS}


def what_to_do(name: str, there: Iterable[str]) -> str:
    """For the end of a sentence about a topic that there is not."""
    return did_you_mean(name, there) or f"; make it with: headrace topic create {name}"


class Cluster:
    """The driver's connection to the cluster. `kafka` is the configuration by Kafka's names."""

    def __init__(self, kafka: Mapping[str, Any], admin: Admin | None = None) -> None:
        self.admin = Admin(admin_values(kafka)) if admin is None else admin
        self._kafka = kafka
        self._id: str | None = None
        self.ids: dict[str, str] = {}
        """The ids of topics as they were when `partitions` last asked."""

    @property
    def id(self) -> str | None:
        """The cluster's own id: the same whatever broker is asked."""
        if self._id is None:
            self._id = self.admin.describe_cluster().cluster_id
        return self._id

    def close(self) -> None:
        self.admin.close()

    def check_reachable(self, patience_s: float = _PATIENCE_S) -> None:
        """Raise soon where nobody listens: a query that begins has no reason to wait for an address that is wrong."""
        servers = admin_values(self._kafka)[_SERVERS]
        until = time.monotonic() + patience_s
        while problems := unreachable(servers, patience_s):
            if time.monotonic() > until:
                raise NetworkError(
                    f"no broker can be reached at {', '.join(problems)}. Check kafka.bootstrap.servers, and that the "
                    "brokers run"
                )
            time.sleep(_AGAIN_S)

    # --- partitions ---------------------------------------------------------------------------------------------------

    def partitions(self, topics: Topics) -> list[TopicPartition]:
        """The partitions that are meant, now. A topic named has to exist; a pattern may match none."""
        if topics.assigned:
            there = set(self._partitions_of(sorted({one.topic for one in topics.assigned})))
            missing = [one for one in topics.assigned if one not in there]
            if missing:
                raise UnknownTopicOrPartitionError(f"assign names {missing[0]}, which does not exist")
            return list(topics.assigned)
        names: Iterable[str] = topics.names
        if topics.pattern is not None:
            wanted = re.compile(topics.pattern)
            internal = str(self._kafka.get(_INTERNAL, "true")).lower() == "false"
            names = [name for name in self.admin.list_topics(list_internal=internal) if wanted.fullmatch(name)]
            return self._partitions_of(names, may_vanish=True)
        return self._partitions_of(names)

    def _partitions_of(self, names: Iterable[str], *, may_vanish: bool = False) -> list[TopicPartition]:
        described = self.admin.describe_topics(names)
        found: list[TopicPartition] = []
        for name in sorted(described):
            if isinstance(described.errors.get(name), UnknownTopicOrPartitionError):
                if may_vanish:
                    continue
                raise self._no_topic(name)
            found += [TopicPartition(name, info.partition) for info in described[name].partitions]
            if topic_id := _id_text(described[name].topic_id):
                self.ids[name] = topic_id
        return found

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """How many partitions each topic has; a topic that does not exist is an error that says what to do."""
        return {name: one.partitions for name, one in self.described(names).items()}

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """The ids of topics, where the brokers have them: made anew under its name, a topic has another one."""
        return {name: one.id for name, one in self.described(names).items() if one.id}

    def described(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """What topics are; one that does not exist is an error that says what to do."""
        described = self.admin.describe_topics(names)
        for name, error in described.errors.items():
            if isinstance(error, UnknownTopicOrPartitionError):
                raise self._no_topic(name) from error
        return {
            name: TopicFacts(len(described[name].partitions), _id_text(described[name].topic_id)) for name in described
        }

    def _no_topic(self, name: str) -> UnknownTopicOrPartitionError:
        there: Iterable[str] = ()
        with contextlib.suppress(HeadraceError):
            there = self.admin.list_topics(list_internal=True)
        return UnknownTopicOrPartitionError(f"there is no topic {name}{what_to_do(name, there)}")

    # --- offsets ------------------------------------------------------------------------------------------------------

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._offsets(partitions, OffsetSpec.earliest())

    def latest(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> Offsets:
        """Where each ends; for read_committed before the first transaction that is open."""
        return self._offsets(partitions, OffsetSpec.latest(), read_committed=read_committed)

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec, *, read_committed: bool = False
    ) -> Offsets:
        isolation = "read_committed" if read_committed else "read_uncommitted"
        asked = dict.fromkeys(partitions, spec)
        if not asked:
            return {}
        found = self.admin.list_offsets(asked, isolation_level=isolation).all()
        return {partition: info.offset for partition, info in found.items()}

    def bound(
        self,
        bound: Bound,
        partitions: list[TopicPartition],
        *,
        read_committed: bool,
        no_match: NoMatch,
        option: str,
    ) -> Offsets:
        """The offsets that an end of what is read stands for."""
        if bound.is_timed:
            return self._timed(bound, partitions, read_committed, no_match, option)
        if bound.everywhere is not None:
            if bound.everywhere == EARLIEST:
                return self.earliest(partitions)
            return self.latest(partitions, read_committed=read_committed)
        _check_cover(bound.offsets, partitions, option)
        if all(offset >= 0 for offset in bound.offsets.values()):
            return dict(bound.offsets)
        latest = self.latest(partitions, read_committed=read_committed)
        return resolved(bound.offsets, self.earliest(partitions), latest)

    def _timed(
        self, bound: Bound, partitions: list[TopicPartition], read_committed: bool, no_match: NoMatch, option: str
    ) -> Offsets:
        times = bound.times_ms
        if bound.time_ms is not None:
            times = dict.fromkeys(partitions, bound.time_ms)
        _check_cover(times, partitions, f"{option}ByTimestamp")
        specs = {partition: OffsetSpec.for_timestamp(time) for partition, time in times.items()}
        # Times are looked up within what may be read: a record of an open transaction is not found by read_committed.
        isolation = "read_committed" if read_committed else "read_uncommitted"
        answers = self.admin.list_offsets(specs, isolation_level=isolation).all()
        found = {one: info.offset for one, info in answers.items()}
        unmatched = sorted(one for one, offset in found.items() if offset < 0)
        if unmatched and no_match is NoMatch.ERROR:
            raise StartNotFoundError(
                f"no record of {unmatched[0]} is at or after the time {times[unmatched[0]]}. To start at the end of "
                "such partitions, set startingOffsetsByTimestampStrategy to latest"
            )
        found.update(self.latest(unmatched, read_committed=read_committed))
        return found

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Let a consumer group show how far the query is."""
        if offsets:
            self.admin.alter_group_offsets(group, dict(offsets)).all()


def _check_cover(given: Mapping[TopicPartition, int], partitions: list[TopicPartition], option: str) -> None:
    missing = sorted(set(partitions) - given.keys())
    extra = sorted(given.keys() - set(partitions))
    if missing:
        raise ValueError(
            f"{option} leaves out {', '.join(map(str, missing))}: give every partition that is read "
            "(-1 is the end, -2 the start)"
        )
    if extra:
        raise ValueError(f"{option} names {', '.join(map(str, extra))}, which is not read")
