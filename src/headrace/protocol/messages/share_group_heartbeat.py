"""ShareGroupHeartbeat (key 76): join a share group, stay in it and hear what is assigned; leave.

Version 1, the only one that a release ever had. Members bring their own ids. Nothing is revoked: several members may
have the same partition, so a member does not say what it owns.
"""

from headrace.protocol.schema import INT16, INT32, STRING, UUID, Array, f, request, response, struct


@request(76, "1", flexible=1)
class ShareGroupHeartbeatRequest:
    group_id: str = f(STRING)
    member_id: str = f(STRING)
    member_epoch: int = f(INT32)
    rack_id: str | None = f(STRING, nullable="1+", default=None)
    subscribed_topic_names: list[str] | None = f(Array(STRING), nullable="1+", default=None)


@struct
class TopicPartitions:
    topic_id: bytes = f(UUID)
    partitions: list[int] = f(Array(INT32))


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = f(Array(TopicPartitions))


@response(76, "1", flexible=1)
class ShareGroupHeartbeatResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="1+", default=None)
    member_id: str | None = f(STRING, nullable="1+", default=None)
    member_epoch: int = f(INT32)
    heartbeat_interval_ms: int = f(INT32)
    assignment: Assignment | None = f(Assignment, nullable="1+", default=None)
