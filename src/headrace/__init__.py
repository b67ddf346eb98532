"""Headrace: Kafka in Python, with its data pipeline on Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace._version import __version__

if TYPE_CHECKING:
    from headrace.client.admin import Admin, NewTopic, OffsetAndMetadata, OffsetSpec
    from headrace.client.consumer import Consumer
    from headrace.client.consumer_errors import CommitFailedError, NoOffsetForPartitionError, WakeupError
    from headrace.client.consumer_records import ConsumerRecord, ConsumerRecords, OffsetAndTimestamp
    from headrace.client.producer import Producer
    from headrace.client.range_reader import RangeReader

# Loaded when first used, so that `import headrace` costs next to nothing.
_LAZY = {
    "Admin": "headrace.client.admin",
    "CommitFailedError": "headrace.client.consumer_errors",
    "Consumer": "headrace.client.consumer",
    "ConsumerRecord": "headrace.client.consumer_records",
    "ConsumerRecords": "headrace.client.consumer_records",
    "NewTopic": "headrace.client.admin",
    "NoOffsetForPartitionError": "headrace.client.consumer_errors",
    "OffsetAndMetadata": "headrace.client.offsets",
    "OffsetAndTimestamp": "headrace.client.consumer_records",
    "OffsetSpec": "headrace.client.offsets",
    "Producer": "headrace.client.producer",
    "RangeReader": "headrace.client.range_reader",
    "WakeupError": "headrace.client.consumer_errors",
}

__all__ = [
    "Admin",
    "CommitFailedError",
    "Consumer",
    "ConsumerRecord",
    "ConsumerRecords",
    "NewTopic",
    "NoOffsetForPartitionError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetSpec",
    "Producer",
    "RangeReader",
    "WakeupError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
