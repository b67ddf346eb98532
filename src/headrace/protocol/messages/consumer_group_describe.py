"""ConsumerGroupDescribe (key 69): epochs, members and assignments of consumer groups.

Versions 0-1. 1 tells which members speak the classic protocol.
"""

from headrace.protocol.schema import BOOL, INT8, INT16, INT32, STRING, UUID, Array, f, request, response, struct


@request(69, "0-1", flexible=0)
class ConsumerGroupDescribeRequest:
    group_ids: list[str] = f(Array(STRING))
    include_authorized_operations: bool = f(BOOL)


@struct
class DescribedTopicPartitions:
    topic_id: bytes = f(UUID)
    topic_name: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@struct
class DescribedAssignment:
    topic_partitions: list[DescribedTopicPartitions] = f(Array(DescribedTopicPartitions))


@struct
class DescribedConsumerGroupMember:
    member_id: str = f(STRING)
    instance_id: str | None = f(STRING, nullable="0+", default=None)
    rack_id: str | None = f(STRING, nullable="0+", default=None)
    member_epoch: int = f(INT32)
    client_id: str = f(STRING)
    client_host: str = f(STRING)
    subscribed_topic_names: list[str] = f(Array(STRING))
    subscribed_topic_regex: str | None = f(STRING, nullable="0+", default=None)
    assignment: DescribedAssignment = f(DescribedAssignment)
    target_assignment: DescribedAssignment = f(DescribedAssignment)
    member_type: int = f(INT8, "1+", default=-1)


@struct
class DescribedConsumerGroup:
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)
    group_id: str = f(STRING)
    group_state: str = f(STRING)
    group_epoch: int = f(INT32)
    assignment_epoch: int = f(INT32)
    assignor_name: str = f(STRING)
    members: list[DescribedConsumerGroupMember] = f(Array(DescribedConsumerGroupMember))
    authorized_operations: int = f(INT32, default=-2147483648)


@response(69, "0-1", flexible=0)
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int = f(INT32)
    groups: list[DescribedConsumerGroup] = f(Array(DescribedConsumerGroup))
