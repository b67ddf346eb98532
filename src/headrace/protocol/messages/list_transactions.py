"""ListTransactions (key 66): transactions that this broker coordinates.

Versions 0-2, all flexible. 1 filters by duration; 2 by a pattern of transactional ids.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, Array, f, request, response, struct


@request(66, "0-2", flexible=0)
class ListTransactionsRequest:
    state_filters: list[str] = f(Array(STRING))
    producer_id_filters: list[int] = f(Array(INT64))
    duration_filter: int = f(INT64, "1+", default=-1)
    transactional_id_pattern: str | None = f(STRING, "2+", nullable="2+", default=None)


@struct
class TransactionState:
    transactional_id: str = f(STRING)
    producer_id: int = f(INT64)
    transaction_state: str = f(STRING)


@response(66, "0-2", flexible=0)
class ListTransactionsResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    unknown_state_filters: list[str] = f(Array(STRING))
    transaction_states: list[TransactionState] = f(Array(TransactionState))
