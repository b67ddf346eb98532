"""InitProducerId (key 22): get a producer id and epoch, and fence older producers of a transactional id.

Versions 0-5 (6, two-phase commit, is unstable in Kafka and not declared here). 1 answers before it throttles; 2 is
flexible; 3 adds the producer's current id and epoch, which lets it recover; 4 may answer PRODUCER_FENCED; 5
TRANSACTION_ABORTABLE.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, f, request, response


@request(22, "0-5", flexible=2)
class InitProducerIdRequest:
    transactional_id: str | None = f(STRING, nullable="0+")
    transaction_timeout_ms: int = f(INT32)
    producer_id: int = f(INT64, "3+", default=-1)
    producer_epoch: int = f(INT16, "3+", default=-1)


@response(22, "0-5", flexible=2)
class InitProducerIdResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    producer_id: int = f(INT64, default=-1)
    producer_epoch: int = f(INT16)
