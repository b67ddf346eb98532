"""DescribeTransactions (key 65): state, producer and partitions of transactional ids.

Version 0, flexible.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, Array, f, request, response, struct


@request(65, "0", flexible=0)
class DescribeTransactionsRequest:
    transactional_ids: list[str] = f(Array(STRING))


@struct
class TopicData:
    topic: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@struct
class TransactionState:
    error_code: int = f(INT16)
    transactional_id: str = f(STRING)
    transaction_state: str = f(STRING)
    transaction_timeout_ms: int = f(INT32)
    transaction_start_time_ms: int = f(INT64)
    producer_id: int = f(INT64)
    producer_epoch: int = f(INT16)
    topics: list[TopicData] = f(Array(TopicData))


@response(65, "0", flexible=0)
class DescribeTransactionsResponse:
    throttle_time_ms: int = f(INT32)
    transaction_states: list[TransactionState] = f(Array(TransactionState))
