"""Records of `__transaction_state`: one per transactional id, with its producer and its partitions.

Of the value, 1 is flexible and can carry the producer ids before and after this one, and the client's version of
transactions.
"""

from headrace.protocol.schema import INT8, INT16, INT32, INT64, STRING, Array, data, f, struct
from headrace.protocol.stored.coordinator import RecordTypes


@data("0", record_type=0)
class TransactionLogKey:
    transactional_id: str = f(STRING)


@struct
class PartitionsSchema:
    topic: str = f(STRING)
    partition_ids: list[int] = f(Array(INT32))


@data("0-1", flexible=1, record_type=0)
class TransactionLogValue:
    producer_id: int = f(INT64)
    previous_producer_id: int = f(INT64, "1+", default=-1, tag=0)
    next_producer_id: int = f(INT64, "1+", default=-1, tag=1)
    producer_epoch: int = f(INT16)
    next_producer_epoch: int = f(INT16, "1+", default=-1, tag=3)
    transaction_timeout_ms: int = f(INT32)
    transaction_status: int = f(INT8)
    transaction_partitions: list[PartitionsSchema] | None = f(Array(PartitionsSchema), nullable="0+")
    transaction_last_update_timestamp_ms: int = f(INT64)
    transaction_start_timestamp_ms: int = f(INT64)
    client_transaction_version: int = f(INT16, "1+", tag=2)


RECORD_TYPES = RecordTypes(
    topic="__transaction_state",
    classes={0: (TransactionLogKey, TransactionLogValue)},
    names={0: "TRANSACTION_LOG"},
)

encode_record = RECORD_TYPES.encode
decode_record = RECORD_TYPES.decode
