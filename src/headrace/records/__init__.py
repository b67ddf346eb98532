"""What is a batch? v2 batches to columns and back, compression; plain kernels and their compiled twins.

Importing this loads neither numpy nor numba nor pyarrow nor a compression library: each comes with its first use.
"""

from headrace.records.batch import (
    HEADER_BYTES,
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
from headrace.records.build import (
    BatchOptions,
    ControlType,
    RecordTuple,
    build_batch,
    build_batch_from_columns,
    build_batch_of,
    control_batch,
    empty_batch,
)
from headrace.records.columns import BytesColumn, Columns, Record, bytes_column
from headrace.records.compression import DEFAULT_LIMIT_BYTES, LEVELS, check_level, compress, decompress
from headrace.records.errors import CorruptBatchError, DecompressedTooLargeError, MalformedRecordError
from headrace.records.filter import Keep, Retention, filter_batch, keep_offsets
from headrace.records.kernels import use_fast
from headrace.records.legacy import check_legacy, decode_legacy, is_legacy, is_wrapper, legacy_timestamp_type
from headrace.records.murmur2 import murmur2, partition_for_key
from headrace.records.read import (
    ControlMarker,
    decode_columns,
    decode_spans,
    decode_stretch,
    iter_records,
    read_control,
    read_records,
    records_of,
    survey_stretch,
)

__all__ = [
    "DEFAULT_LIMIT_BYTES",
    "HEADER_BYTES",
    "LEVELS",
    "Batch",
    "BatchHeader",
    "BatchOptions",
    "Buffer",
    "BytesColumn",
    "Codec",
    "Columns",
    "ControlMarker",
    "ControlType",
    "CorruptBatchError",
    "DecompressedTooLargeError",
    "Keep",
    "MalformedRecordError",
    "Record",
    "RecordTuple",
    "Retention",
    "TimestampType",
    "assign",
    "build_batch",
    "build_batch_from_columns",
    "build_batch_of",
    "bytes_column",
    "check",
    "check_legacy",
    "check_level",
    "compress",
    "control_batch",
    "decode_columns",
    "decode_legacy",
    "decode_spans",
    "decode_stretch",
    "decompress",
    "empty_batch",
    "filter_batch",
    "increment_sequence",
    "is_legacy",
    "is_wrapper",
    "iter_records",
    "keep_offsets",
    "legacy_timestamp_type",
    "murmur2",
    "partition_for_key",
    "read_control",
    "read_records",
    "records_of",
    "set_max_timestamp",
    "split",
    "survey_stretch",
    "use_fast",
    "valid_bytes",
]
