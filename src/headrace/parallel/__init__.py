"""Consuming in parallel: four models, three orders, retries and dead letters, over any Kafka."""

from headrace.parallel.api import ParallelConsumer, run
from headrace.parallel.errors import (
    BatchFailed,
    Damaged,
    HandlerStalled,
    ParallelError,
    Poison,
    Reject,
    RetriesExhausted,
    RetryLater,
    TooManyHangingHandlers,
    WorkerDied,
)
from headrace.parallel.handling import Kind
from headrace.parallel.metrics import Counters, PartitionState, Snapshot
from headrace.parallel.options import Consumers, Exhausted, Limits, Model, Order, Pool, Ranges, Retry, Window

__all__ = [
    "BatchFailed",
    "Consumers",
    "Counters",
    "Damaged",
    "Exhausted",
    "HandlerStalled",
    "Kind",
    "Limits",
    "Model",
    "Order",
    "ParallelConsumer",
    "ParallelError",
    "PartitionState",
    "Poison",
    "Pool",
    "Ranges",
    "Reject",
    "RetriesExhausted",
    "Retry",
    "RetryLater",
    "Snapshot",
    "TooManyHangingHandlers",
    "Window",
    "WorkerDied",
    "run",
]
