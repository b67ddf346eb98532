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
    from headrace.client.errors import (
        AbortableTransactionError,
        FatalTransactionError,
        ProducerFenced,
        TransactionTimeout,
    )
    from headrace.client.exactly_once import exactly_once
    from headrace.client.producer import Producer
    from headrace.client.range_reader import RangeReader
    from headrace.topics import TopicPartition

# Loaded when first used, so that `import headrace` costs next to nothing.
_LAZY = {
    "AbortableTransactionError": "headrace.client.errors",
    "Admin": "headrace.client.admin",
    "CommitFailedError": "headrace.client.consumer_errors",
    "Consumer": "headrace.client.consumer",
    "ConsumerRecord": "headrace.client.consumer_records",
    "ConsumerRecords": "headrace.client.consumer_records",
    "FatalTransactionError": "headrace.client.errors",
    "NewTopic": "headrace.client.admin",
    "NoOffsetForPartitionError": "headrace.client.consumer_errors",
    "OffsetAndMetadata": "headrace.client.offsets",
    "OffsetAndTimestamp": "headrace.client.consumer_records",
    "OffsetSpec": "headrace.client.offsets",
    "Producer": "headrace.client.producer",
    "ProducerFenced": "headrace.client.errors",
    "RangeReader": "headrace.client.range_reader",
    "TransactionTimeout": "headrace.client.errors",
    "TopicPartition": "headrace.topics",
    "WakeupError": "headrace.client.consumer_errors",
    "exactly_once": "headrace.client.exactly_once",
}

__all__ = [
    "AbortableTransactionError",
    "Admin",
    "CommitFailedError",
    "Consumer",
    "ConsumerRecord",
    "ConsumerRecords",
    "FatalTransactionError",
    "NewTopic",
    "NoOffsetForPartitionError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetSpec",
    "Producer",
    "ProducerFenced",
    "RangeReader",
    "TopicPartition",
    "TransactionTimeout",
    "WakeupError",
    "__version__",
    "exactly_once",
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
