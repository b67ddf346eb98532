"""AddRaftVoter (key 80): let another controller vote in KRaft's quorum.

Versions 0-1, all flexible. 1 says whether to wait until it is in the quorum.
"""

from headrace.protocol.schema import BOOL, INT16, INT32, STRING, UINT16, UUID, Array, f, request, response, struct


@struct
class Listener:
    name: str = f(STRING)
    host: str = f(STRING)
    port: int = f(UINT16)


@request(80, "0-1", flexible=0)
class AddRaftVoterRequest:
    cluster_id: str | None = f(STRING, nullable="0+")
    timeout_ms: int = f(INT32)
    voter_id: int = f(INT32)
    voter_directory_id: bytes = f(UUID)
    listeners: list[Listener] = f(Array(Listener))
    ack_when_committed: bool = f(BOOL, "1+", default=True)


@response(80, "0-1", flexible=0)
class AddRaftVoterResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
