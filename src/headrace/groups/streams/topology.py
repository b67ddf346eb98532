"""The topology of an application, as its first member brought it; and what it needs of the cluster's topics.

The coordinator works out how many partitions its internal topics have, and how many tasks each subtopology; the broker
makes the topics that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from headrace.errors import ErrorCode
from headrace.groups.epochs.refusals import RefusedError
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig
from headrace.protocol.stored.streams_groups import (
    StreamsCopartitionGroup,
    StreamsGroupTopologyValue,
    StreamsKeyValue,
    StreamsSubtopology,
    StreamsTopicInfo,
)

_SHOWN_MAX = 10
"""So many names of topics are told in a status; there may be thousands."""


class TopologyStatus(IntEnum):
    """What a member is told beside its tasks, by Kafka's numbers."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


@dataclass(frozen=True, slots=True)
class TopologyProblem:
    status: TopologyStatus
    detail: str


class _ProblemError(Exception):
    def __init__(self, status: TopologyStatus, detail: str) -> None:
        self.problem = TopologyProblem(status, detail)


@dataclass(frozen=True, slots=True)
class StreamsTopology:
    """A topology, in the form of its record."""

    epoch: int
    subtopologies: dict[str, StreamsSubtopology]

    @classmethod
    def of_record(cls, value: StreamsGroupTopologyValue) -> StreamsTopology:
        return cls(value.epoch, {one.subtopology_id: one for one in value.subtopologies or ()})

    @classmethod
    def of_request(cls, told: Any) -> StreamsTopology:
        """Sorted, as Kafka keeps it: the order in which members tell of topics says nothing."""
        made = [_subtopology(one) for one in sorted(told.subtopologies, key=lambda one: one.subtopology_id)]
        return cls(told.epoch, {one.subtopology_id: one for one in made})

    @property
    def record(self) -> StreamsGroupTopologyValue:
        return StreamsGroupTopologyValue(epoch=self.epoch, subtopologies=list(self.subtopologies.values()))

    @property
    def required_topics(self) -> set[str]:
        """All that it reads, or writes for itself."""
        found: set[str] = set()
        for one in self.subtopologies.values():
            found.update(one.source_topics)
            found.update(topic.name for topic in one.repartition_source_topics)
            found.update(topic.name for topic in one.state_changelog_topics)
        return found

    @property
    def sources(self) -> dict[str, str]:
        """Each topic that is read → the subtopology that reads it."""
        found: dict[str, str] = {}
        for name, one in self.subtopologies.items():
            for topic in (*one.source_topics, *(topic.name for topic in one.repartition_source_topics)):
                found[topic] = name
        return found


def _subtopology(told: Any) -> StreamsSubtopology:
    sources, repartition = sorted(told.source_topics), sorted(told.repartition_source_topics, key=_name)
    places = {topic: place for place, topic in enumerate(sources)}
    repartition_places = {topic.name: place for place, topic in enumerate(repartition)}
    groups = [
        StreamsCopartitionGroup(
            source_topics=sorted(places[_at(told.source_topics, index)] for index in group.source_topics),
            source_topic_regex=sorted(group.source_topic_regex),
            repartition_source_topics=sorted(
                repartition_places[_at(told.repartition_source_topics, index).name]
                for index in group.repartition_source_topics
            ),
        )
        for group in told.copartition_groups
    ]
    return StreamsSubtopology(
        subtopology_id=told.subtopology_id,
        source_topics=sources,
        source_topic_regex=sorted(told.source_topic_regex),
        state_changelog_topics=[_topic(one) for one in sorted(told.state_changelog_topics, key=_name)],
        repartition_sink_topics=sorted(told.repartition_sink_topics),
        repartition_source_topics=[_topic(one) for one in repartition],
        copartition_groups=sorted(groups, key=lambda one: (one.source_topics, one.repartition_source_topics)),
    )


def _at(found: list[Any], index: int) -> Any:
    if not 0 <= index < len(found):
        raise invalid_topology(f"A copartition group names the topic with index {index}, of {len(found)}.")
    return found[index]


def _name(topic: Any) -> str:
    name: str = topic.name
    return name


def _topic(told: Any) -> StreamsTopicInfo:
    configs = [StreamsKeyValue(key=one.key, value=one.value) for one in sorted(told.topic_configs, key=lambda c: c.key)]
    return StreamsTopicInfo(
        name=told.name,
        partitions=told.partitions,
        replication_factor=told.replication_factor,
        topic_configs=configs,
    )


def invalid_topology(message: str) -> RefusedError:
    return RefusedError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the application writes for itself, with the number of partitions that it has, or is to have."""

    info: StreamsTopicInfo
    partitions: int

    @property
    def creatable(self) -> CreatableTopic:
        return CreatableTopic(
            name=self.info.name,
            num_partitions=self.partitions,
            replication_factor=self.info.replication_factor or -1,
            configs=[CreatableTopicConfig(name=one.key, value=one.value) for one in self.info.topic_configs],
        )


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    tasks: int
    stored: StreamsSubtopology
    repartition_sources: tuple[InternalTopic, ...]
    changelogs: tuple[InternalTopic, ...]

    @property
    def sources(self) -> set[str]:
        return {*self.stored.source_topics, *(topic.info.name for topic in self.repartition_sources)}


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """A topology over the topics that there are; `problem` says why it cannot run yet."""

    subtopologies: dict[str, ConfiguredSubtopology] | None = None
    missing: tuple[InternalTopic, ...] = ()
    problem: TopologyProblem | None = None
    counts: dict[str, int] = field(default_factory=dict)
    """How many partitions each topic has."""

    @property
    def is_ready(self) -> bool:
        return self.subtopologies is not None and self.problem is None


def configure(topology: StreamsTopology, partition_count: Callable[[str], int | None]) -> ConfiguredTopology:
    """Hold a topology against the topics that there are. One that can never run is refused."""
    try:
        return _configured(topology, partition_count)
    except _ProblemError as error:
        return ConfiguredTopology(problem=error.problem)


def _configured(topology: StreamsTopology, partition_count: Callable[[str], int | None]) -> ConfiguredTopology:
    subtopologies = topology.subtopologies.values()
    missing = sorted({name for one in subtopologies for name in one.source_topics if partition_count(name) is None})
    if missing:
        detail = f"Source topics {_some(missing)} are missing."
        raise _ProblemError(TopologyStatus.MISSING_SOURCE_TOPICS, detail)
    decided = _repartition_counts(list(subtopologies), partition_count)

    def count(name: str) -> int | None:
        found = partition_count(name)
        return decided.get(name) if found is None else found

    _align(list(subtopologies), decided, count)
    configured: dict[str, ConfiguredSubtopology] = {}
    for one in subtopologies:
        counts = [count(name) for name in (*one.source_topics, *(t.name for t in one.repartition_source_topics))]
        tasks = max((number for number in counts if number is not None), default=0)
        if not tasks:
            raise invalid_topology(f"No source topics found for subtopology {one.subtopology_id}")
        decided |= {topic.name: tasks for topic in one.state_changelog_topics}
    for one in subtopologies:
        sources = (*one.source_topics, *(topic.name for topic in one.repartition_source_topics))
        configured[one.subtopology_id] = ConfiguredSubtopology(
            max(count(name) or 0 for name in sources),
            one,
            tuple(
                InternalTopic(topic, topic.partitions or decided[topic.name]) for topic in one.repartition_source_topics
            ),
            tuple(
                InternalTopic(topic, topic.partitions or decided[topic.name]) for topic in one.state_changelog_topics
            ),
        )
    return _with_missing(configured, partition_count, count)


def _internal(topics: Iterable[StreamsTopicInfo], decided: dict[str, int]) -> tuple[InternalTopic, ...]:
    return tuple(InternalTopic(topic, topic.partitions or decided[topic.name]) for topic in topics)


def _with_missing(
    configured: dict[str, ConfiguredSubtopology],
    partition_count: Callable[[str], int | None],
    count: Callable[[str], int | None],
) -> ConfiguredTopology:
    internal = {
        topic.info.name: topic for one in configured.values() for topic in (*one.repartition_sources, *one.changelogs)
    }
    to_make: list[InternalTopic] = []
    for name, topic in sorted(internal.items()):
        there = partition_count(name)
        if there is None:
            to_make.append(topic)
        elif there != topic.partitions:
            raise _ProblemError(
                TopologyStatus.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {topic.partitions}, found {there}",
            )
    problem = None
    if to_make:
        detail = f"Internal topics are missing: {_some([topic.info.name for topic in to_make])}"
        problem = TopologyProblem(TopologyStatus.MISSING_INTERNAL_TOPICS, detail)
    names = {*internal, *(name for one in configured.values() for name in one.stored.source_topics)}
    return ConfiguredTopology(configured, tuple(to_make), problem, {name: count(name) or 0 for name in names})


def _repartition_counts(
    subtopologies: list[StreamsSubtopology], partition_count: Callable[[str], int | None]
) -> dict[str, int]:
    """What is set, and else the most partitions of what the subtopologies read that write the topic."""
    decided = {
        topic.name: topic.partitions
        for one in subtopologies
        for topic in one.repartition_source_topics
        if topic.partitions
    }
    is_open = True
    while is_open:
        is_open = has_progress = False
        for one in subtopologies:
            for sink in one.repartition_sink_topics:
                if sink in decided:
                    continue
                number = _count_of_sources(one, decided, partition_count)
                if number is None:
                    is_open = True
                else:
                    decided[sink] = number
                    has_progress = True
        if is_open and not has_progress:
            raise invalid_topology(
                "Failed to compute number of partitions for all repartition topics. There may be loops in the topology "
                "that cannot be resolved."
            )
    for one in subtopologies:
        if any(topic.name not in decided for topic in one.repartition_source_topics):
            raise invalid_topology(
                "Failed to compute number of partitions for all repartition topics, because a repartition source topic "
                "is never used as a sink topic."
            )
    return decided


def _count_of_sources(
    one: StreamsSubtopology, decided: dict[str, int], partition_count: Callable[[str], int | None]
) -> int | None:
    counts: list[int | None] = [decided.get(topic.name) for topic in one.repartition_source_topics]
    counts += [partition_count(name) for name in one.source_topics]
    found = [number for number in counts if number is not None]
    return max(found, default=None)


def _align(
    subtopologies: list[StreamsSubtopology], decided: dict[str, int], count: Callable[[str], int | None]
) -> None:
    """Topics that are read together have the same number of partitions."""
    repartition = [topic for one in subtopologies for topic in one.repartition_source_topics]
    fixed = {topic.name for topic in repartition if topic.partitions}
    flexible = {topic.name for topic in repartition if not topic.partitions}
    for one in subtopologies:
        for group in one.copartition_groups:
            names = {one.source_topics[place] for place in group.source_topics}
            names |= {one.repartition_source_topics[place].name for place in group.repartition_source_topics}
            if names:
                _align_group({name: count(name) or 0 for name in names}, fixed, flexible, decided)


def _align_group(counts: dict[str, int], fixed: set[str], flexible: set[str], decided: dict[str, int]) -> None:
    """By the topics of others, if there are any; else by those with a fixed number; else by the largest."""
    ours = {name for name in counts if name in fixed or name in flexible}
    others = {name: number for name, number in counts.items() if name not in ours}
    deciding = others or {name: counts[name] for name in ours if name in fixed}
    if len(set(deciding.values())) > 1:
        shown = ", ".join(f"{name}={number}" for name, number in sorted(deciding.items()))
        raise _ProblemError(
            TopologyStatus.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{shown}}}]",
        )
    number = next(iter(deciding.values())) if deciding else max(counts.values())
    for name in sorted(ours):
        if name in fixed and counts[name] != number:
            raise _ProblemError(
                TopologyStatus.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{counts[name]}] of repartition topic [{name}] doesn't match number of "
                f"partitions [{number}] of the source topic.",
            )
        decided[name] = number


def _some(names: Iterable[str]) -> str:
    found = list(names)
    shown = ", ".join(found[:_SHOWN_MAX])
    return shown if len(found) <= _SHOWN_MAX else f"{shown} and {len(found) - _SHOWN_MAX} more"
