"""The topics of the cluster, as far as groups need them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class TopicLookup(Protocol):
    """Asked whenever a name or an id is met: what it answers changes with the metadata."""

    def topic_name(self, topic_id: bytes) -> str | None: ...
    def topic_id(self, name: str) -> bytes | None: ...
    def partition_count(self, name: str) -> int | None: ...

    def topic_names(self) -> Iterable[str]: ...
    def topic_version(self, name: str) -> int:
        """Another number after every change of the topic; 0 when there is none of that name."""

    def partition_racks(self, name: str) -> Sequence[Sequence[str]]:
        """Of each partition, the racks of its replicas, as far as they have any."""
