"""The topics of the cluster, as far as groups need them."""

from __future__ import annotations

from typing import Protocol


class TopicLookup(Protocol):
    """Asked whenever a name or an id is met: what it answers changes with the metadata."""

    def topic_name(self, topic_id: bytes) -> str | None: ...
    def topic_id(self, name: str) -> bytes | None: ...
    def partition_count(self, name: str) -> int | None: ...
