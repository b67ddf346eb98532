"""DescribeGroups (key 15): the state, members and assignments of groups.

Serves versions 0-6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.DESCRIBE_GROUPS, versions=(0, 6), requires=(on_groups(Operation.DESCRIBE, "groups"),), each_once=True)
def describe_groups(broker: Broker, context: RequestContext, request: DescribeGroupsRequest) -> Any:
    return broker.groups.call(broker.groups.coordinator.describe_groups, context, request)
