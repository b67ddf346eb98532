"""Headrace: Kafka in Python, with its data pipeline on Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace._version import __version__

if TYPE_CHECKING:
    from headrace.client.admin import Admin, NewTopic, OffsetAndMetadata, OffsetSpec
    from headrace.client.consumer._subscription import RebalanceListener
    from headrace.client.consumer.blocking import Consumer
    from headrace.client.consumer.errors import CommitFailedError, NoOffsetForPartitionError, WakeupError
    from headrace.client.consumer.records import ConsumerRecord, ConsumerRecords, OffsetAndTimestamp
    from headrace.client.errors import (
        AbortableTransactionError,
        FatalTransactionError,
        ProducerFenced,
        TransactionTimeout,
    )
    from headrace.client.producer.blocking import Producer
    from headrace.client.ranges import RangeReader
    from headrace.client.transactions.exactly_once import exactly_once
    from headrace.topics import TopicPartition

# Loaded when first used, so that `import headrace` costs next to nothing.
_LAZY = {
    "AbortableTransactionError": "headrace.client.errors",
    "Admin": "headrace.client.admin",
    "CommitFailedError": "headrace.client.consumer.errors",
    "Consumer": "headrace.client.consumer.blocking",
    "ConsumerRecord": "headrace.client.consumer.records",
    "ConsumerRecords": "headrace.client.consumer.records",
    "FatalTransactionError": "headrace.client.errors",
    "NewTopic": "headrace.client.admin",
    "NoOffsetForPartitionError": "headrace.client.consumer.errors",
    "OffsetAndMetadata": "headrace.client.offsets",
    "OffsetAndTimestamp": "headrace.client.consumer.records",
    "OffsetSpec": "headrace.client.offsets",
    "Producer": "headrace.client.producer.blocking",
    "ProducerFenced": "headrace.client.errors",
    "RangeReader": "headrace.client.ranges",
    "RebalanceListener": "headrace.client.consumer._subscription",
    "TransactionTimeout": "headrace.client.errors",
    "TopicPartition": "headrace.topics",
    "WakeupError": "headrace.client.consumer.errors",
    "exactly_once": "headrace.client.transactions.exactly_once",
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
    "RebalanceListener",
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
