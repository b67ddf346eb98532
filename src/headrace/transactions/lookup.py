"""What the coordinator has to know of the cluster's topics."""

from __future__ import annotations

from typing import Protocol


class PartitionLookup(Protocol):
    def partition_count(self, name: str) -> int | None:
        """How many partitions the topic has, None when there is no such topic."""
