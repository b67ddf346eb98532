"""What is answered to whoever wants to change the voters of KRaft's quorum: there is none here."""

from __future__ import annotations

from typing import Final, TypeVar

from headrace.errors import ErrorCode
from headrace.protocol.messages.add_raft_voter import AddRaftVoterResponse
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterResponse

R = TypeVar("R", AddRaftVoterResponse, RemoveRaftVoterResponse)

_NO_QUORUM: Final = (
    "There is no quorum of controllers whose voters could be changed: any broker can become the controller. Start "
    "another broker, or stop one."
)


def refuse_voter(response: R, asked: str | None, cluster_id: str) -> R:
    """As Kafka does first where the request is meant for another cluster; else that it cannot be done."""
    if asked is not None and asked != cluster_id:
        response.error_code = ErrorCode.INCONSISTENT_CLUSTER_ID
        response.error_message = f'The given id "{asked}" doesn\'t match the cluster id "{cluster_id}"'
    else:
        response.error_code, response.error_message = ErrorCode.UNSUPPORTED_VERSION, _NO_QUORUM
    return response
