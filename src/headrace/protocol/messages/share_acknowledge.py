"""ShareAcknowledge (key 79): say what became of records that a member of a share group acquired.

Versions 1-2. 2 adds renewed acquisition locks. Types of acknowledgement: 0 gap, 1 accept, 2 release, 3 reject, 4 renew.
"""

from headrace.protocol.schema import BOOL, INT8, INT16, INT32, INT64, STRING, UUID, Array, f, request, response, struct


@struct
class AcknowledgementBatch:
    first_offset: int = f(INT64)
    last_offset: int = f(INT64)
    acknowledge_types: list[int] = f(Array(INT8))


@struct
class AcknowledgePartition:
    partition_index: int = f(INT32)
    acknowledgement_batches: list[AcknowledgementBatch] = f(Array(AcknowledgementBatch))


@struct
class AcknowledgeTopic:
    topic_id: bytes = f(UUID)
    partitions: list[AcknowledgePartition] = f(Array(AcknowledgePartition))


@request(79, "1-2", flexible=1)
class ShareAcknowledgeRequest:
    group_id: str | None = f(STRING, nullable="1+", default=None)
    member_id: str | None = f(STRING, nullable="1+", default=None)
    share_session_epoch: int = f(INT32)
    is_renew_ack: bool = f(BOOL, "2+")
    topics: list[AcknowledgeTopic] = f(Array(AcknowledgeTopic))


@struct
class LeaderIdAndEpoch:
    leader_id: int = f(INT32)
    leader_epoch: int = f(INT32)


@struct
class PartitionData:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="1+", default=None)
    current_leader: LeaderIdAndEpoch = f(LeaderIdAndEpoch)


@struct
class ShareAcknowledgeTopicResponse:
    topic_id: bytes = f(UUID)
    partitions: list[PartitionData] = f(Array(PartitionData))


@struct
class NodeEndpoint:
    node_id: int = f(INT32)
    host: str = f(STRING)
    port: int = f(INT32)
    rack: str | None = f(STRING, nullable="1+", default=None)


@response(79, "1-2", flexible=1)
class ShareAcknowledgeResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="1+", default=None)
    acquisition_lock_timeout_ms: int = f(INT32, "2+")
    responses: list[ShareAcknowledgeTopicResponse] = f(Array(ShareAcknowledgeTopicResponse))
    node_endpoints: list[NodeEndpoint] = f(Array(NodeEndpoint))
