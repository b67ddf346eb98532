"""Who gets what? Assignors decide which member of a group reads which partition; they touch nothing else."""

from headrace.assignors.base import (
    NEED_LAG,
    NEED_SIZE,
    AssignableTopics,
    Assignment,
    Assignor,
    AssignorBase,
    AssignorError,
    GroupAssignment,
    RebalanceProtocol,
    Subscription,
    settle,
)
from headrace.assignors.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolError,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.assignors.lag import LagAssignor
from headrace.assignors.partition_list import PartitionList, TopicLayout
from headrace.assignors.ranges import RangeAssignor
from headrace.assignors.registry import resolve
from headrace.assignors.roundrobin import RoundRobinAssignor
from headrace.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from headrace.assignors.weighted import WeightedAssignor

__all__ = [
    "NEED_LAG",
    "NEED_SIZE",
    "PROTOCOL_TYPE",
    "AssignableTopics",
    "Assignment",
    "Assignor",
    "AssignorBase",
    "AssignorError",
    "ConsumerProtocolError",
    "CooperativeStickyAssignor",
    "GroupAssignment",
    "LagAssignor",
    "PartitionList",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
    "Subscription",
    "TopicLayout",
    "WeightedAssignor",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
    "resolve",
    "settle",
]
