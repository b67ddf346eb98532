"""Topics that a pipeline reads, which have to be there, and those that it writes to, which are made when missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.client.admin import NewTopic
from headrace.errors import TopicAlreadyExistsError
from headrace.spark.cluster import Cluster, what_to_do
from headrace.spark.pipelines.declaring import HERE, Option
from headrace.spark.pipelines.running import kafka_config


def ensure_topics(
    kafka: Mapping[str, Any], wanted: Mapping[str, Mapping[str, str]], *, like: Iterable[str] = (), partitions: int = 0
) -> list[str]:
    """Create those of `wanted` (name → configs) that are missing; gives their names.

    `partitions`, else as many as the largest topic of `like` has; the broker's default number of replicas.
    """
    cluster = Cluster(kafka)
    try:
        counts = cluster.partition_counts(like) if not partitions else {}
        there = cluster.admin.list_topics()
        missing = [name for name in wanted if name not in there]
        count = partitions or max(counts.values(), default=1)
        made = cluster.admin.create_topics([NewTopic(name, count, configs=dict(wanted[name])) for name in missing])
        for error in made.errors.values():
            # Somebody else was quicker.
            if not isinstance(error, TopicAlreadyExistsError):
                raise error
        return missing
    finally:
        cluster.close()


def missing_topics(declared: Sequence[Option], values: Mapping[str, Any]) -> list[str]:
    """A sentence for every topic that an option names as its source, and that is not there. Asks the brokers."""
    problems: list[str] = []
    known: dict[tuple[str, str], set[str]] = {}
    for option in declared:
        if option.there is None or not values.get(option.name):
            continue
        # Where the options of another cluster are not given, it is this one.
        place = option.there if any(values.get(name) for name in option.there) else HERE
        if place not in known:
            known[place] = _names(kafka_config(values.get(place[0]) or values[HERE[0]], values.get(place[1])))
        given = values[option.name]
        for name in [given] if isinstance(given, str) else given:
            if name not in known[place]:
                problems.append(f"{option.flag}: there is no topic {name}{what_to_do(name, known[place])}")
    return problems


def _names(kafka: Mapping[str, Any]) -> set[str]:
    cluster = Cluster(kafka)
    try:
        return set(cluster.admin.list_topics(list_internal=True))
    finally:
        cluster.close()
