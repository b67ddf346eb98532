"""The broker's settings of streams groups that none of them has for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from headrace.config import INT32_MAX, ConfigValue


@dataclass(frozen=True, slots=True)
class StreamsGroupConfig:
    max_size: int = INT32_MAX

    @classmethod
    def from_values(cls, values: Mapping[str, ConfigValue]) -> StreamsGroupConfig:
        """From parsed broker configuration; missing keys have their defaults."""
        return cls(cast(int, values.get("group.streams.max.size", INT32_MAX)))
