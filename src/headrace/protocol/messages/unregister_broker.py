"""UnregisterBroker (key 64): forget a broker that will not come back.

Version 0, flexible.
"""

from headrace.protocol.schema import INT16, INT32, STRING, f, request, response


@request(64, "0", flexible=0)
class UnregisterBrokerRequest:
    broker_id: int = f(INT32)


@response(64, "0", flexible=0)
class UnregisterBrokerResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
