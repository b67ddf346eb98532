"""What becomes of an answer when the records that it depends on could not be written."""

from __future__ import annotations

from headrace.coordination import Reply
from headrace.errors import ErrorCode
from headrace.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsResponse
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from headrace.protocol.messages.delete_groups import DeleteGroupsResponse
from headrace.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsResponse
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupResponse
from headrace.protocol.messages.offset_commit import OffsetCommitResponse
from headrace.protocol.messages.offset_delete import OffsetDeleteResponse
from headrace.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatResponse
from headrace.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse
from headrace.protocol.messages.sync_group import SyncGroupResponse
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse


def refused(reply: Reply, error: ErrorCode) -> Reply:
    """The same reply, now that records could not be written. An error that it tells already stays.

    What was asked of several groups or partitions is answered for each: by the effects whose records failed.
    """
    response = reply.response
    match response:
        case JoinGroupResponse():
            if response.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                name = None if response.protocol_name is None else ""
                return Reply(reply.token, JoinGroupResponse(error_code=error, protocol_name=name))
        case LeaveGroupResponse():
            if response.error_code == ErrorCode.NONE:
                return Reply(reply.token, LeaveGroupResponse(error_code=error))
        case SyncGroupResponse():
            if response.error_code == ErrorCode.NONE:
                return Reply(reply.token, SyncGroupResponse(error_code=error))
        case OffsetDeleteResponse():
            if response.error_code == ErrorCode.NONE:
                return Reply(reply.token, OffsetDeleteResponse(error_code=error))
        case (
            ConsumerGroupHeartbeatResponse()
            | ShareGroupHeartbeatResponse()
            | AlterShareGroupOffsetsResponse()
            | DeleteShareGroupOffsetsResponse()
        ):
            if response.error_code == ErrorCode.NONE:
                return Reply(reply.token, type(response)(error_code=error, error_message=error.message))
        case StreamsGroupHeartbeatResponse():
            if response.error_code == ErrorCode.NONE:
                refusal = StreamsGroupHeartbeatResponse(error_code=error, error_message=error.message, status=[])
                return Reply(reply.token, refusal)
        case OffsetCommitResponse() | TxnOffsetCommitResponse() | DeleteGroupsResponse():
            pass
        case _:
            raise TypeError(f"{type(response).__name__} does not depend on a write")
    return reply
