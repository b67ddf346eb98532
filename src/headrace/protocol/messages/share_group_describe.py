"""ShareGroupDescribe (key 77): state, epochs, members and assignment of share groups.

Version 1, the only one that a release ever had.
"""

from headrace.protocol.schema import BOOL, INT16, INT32, STRING, UUID, Array, f, request, response, struct


@request(77, "1", flexible=1)
class ShareGroupDescribeRequest:
    group_ids: list[str] = f(Array(STRING))
    include_authorized_operations: bool = f(BOOL)


@struct
class TopicPartitions:
    topic_id: bytes = f(UUID)
    topic_name: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = f(Array(TopicPartitions))


@struct
class Member:
    member_id: str = f(STRING)
    rack_id: str | None = f(STRING, nullable="1+", default=None)
    member_epoch: int = f(INT32)
    client_id: str = f(STRING)
    client_host: str = f(STRING)
    subscribed_topic_names: list[str] = f(Array(STRING))
    assignment: Assignment = f(Assignment)


@struct
class DescribedGroup:
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="1+", default=None)
    group_id: str = f(STRING)
    group_state: str = f(STRING)
    group_epoch: int = f(INT32)
    assignment_epoch: int = f(INT32)
    assignor_name: str = f(STRING)
    members: list[Member] = f(Array(Member))
    authorized_operations: int = f(INT32, default=-2147483648)


@response(77, "1", flexible=1)
class ShareGroupDescribeResponse:
    throttle_time_ms: int = f(INT32)
    groups: list[DescribedGroup] = f(Array(DescribedGroup))
