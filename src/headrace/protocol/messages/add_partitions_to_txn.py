"""AddPartitionsToTxn (key 24): partitions that a transaction is about to write to.

Versions 0-5. 1 answers before it throttles; 2 may answer PRODUCER_FENCED; 3 is flexible; 4 is for brokers: several
transactions at once, and the question whether partitions were added already; 5 may answer TRANSACTION_ABORTABLE.
Clients speak 0-3, whose fields have `v3_and_below` in their names.
"""

from headrace.protocol.schema import BOOL, INT16, INT32, INT64, STRING, Array, f, request, response, struct


@struct
class AddPartitionsToTxnTopic:
    name: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: str = f(STRING)
    producer_id: int = f(INT64)
    producer_epoch: int = f(INT16)
    verify_only: bool = f(BOOL)
    topics: list[AddPartitionsToTxnTopic] = f(Array(AddPartitionsToTxnTopic))


@request(24, "0-5", flexible=3)
class AddPartitionsToTxnRequest:
    transactions: list[AddPartitionsToTxnTransaction] = f(Array(AddPartitionsToTxnTransaction), "4+")
    v3_and_below_transactional_id: str = f(STRING, "0-3")
    v3_and_below_producer_id: int = f(INT64, "0-3")
    v3_and_below_producer_epoch: int = f(INT16, "0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = f(Array(AddPartitionsToTxnTopic), "0-3")


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: int = f(INT32)
    partition_error_code: int = f(INT16)


@struct
class AddPartitionsToTxnTopicResult:
    name: str = f(STRING)
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = f(Array(AddPartitionsToTxnPartitionResult))


@struct
class AddPartitionsToTxnResult:
    transactional_id: str = f(STRING)
    topic_results: list[AddPartitionsToTxnTopicResult] = f(Array(AddPartitionsToTxnTopicResult))


@response(24, "0-5", flexible=3)
class AddPartitionsToTxnResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16, "4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = f(Array(AddPartitionsToTxnResult), "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = f(Array(AddPartitionsToTxnTopicResult), "0-3")
