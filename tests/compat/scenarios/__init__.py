"""One short conversation per API key, told once for all its versions and held against what each version can say."""

from __future__ import annotations

from . import (
    configs,
    consumer_groups,
    groups,
    records,
    security_and_quotas,
    share_groups,
    streams_and_telemetry,
    topics,
    transactions,
)
from .told import SCENARIOS

__all__ = [
    "SCENARIOS",
    "configs",
    "consumer_groups",
    "groups",
    "records",
    "security_and_quotas",
    "share_groups",
    "streams_and_telemetry",
    "topics",
    "transactions",
]
