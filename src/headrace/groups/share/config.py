"""The broker's settings of share groups that none of them has for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.config import ConfigValue
from headrace.coordination import settings

_KEYS = {
    "max_size": "group.share.max.size",
    "begin_retry_ms": "group.share.initialize.retry.interval.ms",
}


@dataclass(frozen=True, slots=True)
class ShareGroupConfig:
    """`begin_retry_ms`: how long after a state was asked for it is asked for again."""

    max_size: int = 200
    begin_retry_ms: int = 30_000

    @classmethod
    def from_values(cls, values: Mapping[str, ConfigValue]) -> ShareGroupConfig:
        """From parsed broker configuration; missing keys have their defaults."""
        return cls(**settings(_KEYS, values))
