"""Topics that a pipeline writes to: made when they are missing, with as many partitions as its source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.client.admin import NewTopic
from headrace.errors import TopicAlreadyExistsError
from headrace.spark.cluster import Cluster


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
