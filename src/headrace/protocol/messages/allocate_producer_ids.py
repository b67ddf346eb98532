"""AllocateProducerIds (key 67): a broker asks the controller for producer ids that nobody else gives out.

Version 0, between brokers, flexible.
"""

from headrace.protocol.schema import INT16, INT32, INT64, f, request, response


@request(67, "0", flexible=0)
class AllocateProducerIdsRequest:
    broker_id: int = f(INT32)
    broker_epoch: int = f(INT64, default=-1)


@response(67, "0", flexible=0)
class AllocateProducerIdsResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    producer_id_start: int = f(INT64)
    producer_id_len: int = f(INT32)
