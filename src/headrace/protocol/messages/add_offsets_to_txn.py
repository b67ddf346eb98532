"""AddOffsetsToTxn (key 25): a transaction is about to commit offsets of a group.

Versions 0-4. 1 answers before it throttles; 2 may answer PRODUCER_FENCED; 3 is flexible; 4 may answer
TRANSACTION_ABORTABLE.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, f, request, response


@request(25, "0-4", flexible=3)
class AddOffsetsToTxnRequest:
    transactional_id: str = f(STRING)
    producer_id: int = f(INT64)
    producer_epoch: int = f(INT16)
    group_id: str = f(STRING)


@response(25, "0-4", flexible=3)
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
