"""FindCoordinator (key 10): which broker coordinates a group (key type 0) or a transactional id (1).

Versions 0-6. 1 adds the key type, an error message and the throttle time; 2 answers before it throttles; 3 is
flexible; 4 asks for several keys at once (the answer moves into `coordinators`); 5 may answer TRANSACTION_ABORTABLE;
6 knows share groups (2).
"""

from headrace.protocol.schema import INT8, INT16, INT32, STRING, Array, f, request, response, struct


@request(10, "0-6", flexible=3)
class FindCoordinatorRequest:
    key: str = f(STRING, "0-3")
    key_type: int = f(INT8, "1+")
    coordinator_keys: list[str] = f(Array(STRING), "4+")


@struct
class Coordinator:
    key: str = f(STRING)
    node_id: int = f(INT32)
    host: str = f(STRING)
    port: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")


@response(10, "0-6", flexible=3)
class FindCoordinatorResponse:
    throttle_time_ms: int = f(INT32, "1+")
    error_code: int = f(INT16, "0-3")
    error_message: str | None = f(STRING, "1-3", nullable="1-3")
    node_id: int = f(INT32, "0-3")
    host: str = f(STRING, "0-3")
    port: int = f(INT32, "0-3")
    coordinators: list[Coordinator] = f(Array(Coordinator), "4+")
