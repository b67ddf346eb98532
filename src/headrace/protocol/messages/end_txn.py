"""EndTxn (key 26): commit or abort a transaction.

Versions 0-5. 1 answers before it throttles; 2 may answer PRODUCER_FENCED; 3 is flexible; 4 may answer
TRANSACTION_ABORTABLE; 5 bumps the epoch with every transaction, and answers the producer's new id and epoch.
"""

from headrace.protocol.schema import BOOL, INT16, INT32, INT64, STRING, f, request, response


@request(26, "0-5", flexible=3)
class EndTxnRequest:
    transactional_id: str = f(STRING)
    producer_id: int = f(INT64)
    producer_epoch: int = f(INT16)
    committed: bool = f(BOOL)


@response(26, "0-5", flexible=3)
class EndTxnResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    producer_id: int = f(INT64, "5+", default=-1)
    producer_epoch: int = f(INT16, "5+", default=-1)
