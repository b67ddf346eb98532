"""Consuming in parallel: five models, three orders, retries and dead letters, over any Kafka."""

from headrace.parallel.api import ParallelConsumer, run
from headrace.parallel.errors import (
    BatchFailedError,
    DamagedBatchError,
    HandlerStalledError,
    ParallelError,
    Reject,
    RetriesExhaustedError,
    RetryLater,
    TooManyHangingHandlersError,
    UnreadableRecordError,
    WorkerDiedError,
)
from headrace.parallel.handling import Kind
from headrace.parallel.metrics import Counters, PartitionState, Snapshot
from headrace.parallel.options import Consumers, Exhausted, Limits, Model, Order, Pool, Ranges, Retry, Share, Window

# The names that these had before, for programs that use them.
BatchFailed = BatchFailedError
Damaged = DamagedBatchError
HandlerStalled = HandlerStalledError
Poison = UnreadableRecordError
RetriesExhausted = RetriesExhaustedError
TooManyHangingHandlers = TooManyHangingHandlersError
WorkerDied = WorkerDiedError

__all__ = [
    "BatchFailed",
    "BatchFailedError",
    "Consumers",
    "Counters",
    "Damaged",
    "DamagedBatchError",
    "Exhausted",
    "HandlerStalled",
    "HandlerStalledError",
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
    "RetriesExhaustedError",
    "Retry",
    "RetryLater",
    "Share",
    "Snapshot",
    "TooManyHangingHandlers",
    "TooManyHangingHandlersError",
    "UnreadableRecordError",
    "Window",
    "WorkerDied",
    "WorkerDiedError",
    "run",
]
