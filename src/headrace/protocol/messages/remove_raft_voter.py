"""RemoveRaftVoter (key 81): take a controller out of KRaft's quorum.

Version 0, flexible.
"""

from headrace.protocol.schema import INT16, INT32, STRING, UUID, f, request, response


@request(81, "0", flexible=0)
class RemoveRaftVoterRequest:
    cluster_id: str | None = f(STRING, nullable="0+")
    voter_id: int = f(INT32)
    voter_directory_id: bytes = f(UUID)


@response(81, "0", flexible=0)
class RemoveRaftVoterResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
