"""What is a batch? v2 batches to columns and back, compression; plain kernels and their compiled twins."""

from headrace.records.batch import (
    Batch,
    BatchHeader,
    Buffer,
    Codec,
    TimestampType,
    assign,
    check,
    increment_sequence,
    set_max_timestamp,
    split,
    valid_bytes,
)
from headrace.records.errors import CorruptBatch, InvalidRecord, TooLarge

__all__ = [
    "Batch",
    "BatchHeader",
    "Buffer",
    "Codec",
    "CorruptBatch",
    "InvalidRecord",
    "TimestampType",
    "TooLarge",
    "assign",
    "check",
    "increment_sequence",
    "set_max_timestamp",
    "split",
    "valid_bytes",
]
