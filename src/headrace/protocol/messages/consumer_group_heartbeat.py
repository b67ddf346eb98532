"""ConsumerGroupHeartbeat (key 68): join a consumer group, stay in it, say what is owned, hear what is assigned; leave.

Versions 0-1. 1 adds the regular expression, and members bring their own ids. Fields that are null, or -1, have not
changed since the member's last heartbeat.
"""

from headrace.protocol.schema import INT16, INT32, STRING, UUID, Array, f, request, response, struct


@struct
class HeartbeatTopicPartitions:
    topic_id: bytes = f(UUID)
    partitions: list[int] = f(Array(INT32))


@request(68, "0-1", flexible=0)
class ConsumerGroupHeartbeatRequest:
    group_id: str = f(STRING)
    member_id: str = f(STRING)
    member_epoch: int = f(INT32)
    instance_id: str | None = f(STRING, nullable="0+", default=None)
    rack_id: str | None = f(STRING, nullable="0+", default=None)
    rebalance_timeout_ms: int = f(INT32, default=-1)
    subscribed_topic_names: list[str] | None = f(Array(STRING), nullable="0+", default=None)
    subscribed_topic_regex: str | None = f(STRING, "1+", nullable="1+", default=None)
    server_assignor: str | None = f(STRING, nullable="0+", default=None)
    topic_partitions: list[HeartbeatTopicPartitions] | None = f(
        Array(HeartbeatTopicPartitions), nullable="0+", default=None
    )


@struct
class HeartbeatAssignment:
    topic_partitions: list[HeartbeatTopicPartitions] = f(Array(HeartbeatTopicPartitions))


@response(68, "0-1", flexible=0)
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)
    member_id: str | None = f(STRING, nullable="0+", default=None)
    member_epoch: int = f(INT32)
    heartbeat_interval_ms: int = f(INT32)
    assignment: HeartbeatAssignment | None = f(HeartbeatAssignment, nullable="0+", default=None)
