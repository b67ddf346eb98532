"""ListGroups (key 16): the groups that this broker coordinates.

Serves versions 0-5. 4 filters by state, 5 by type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_groups import ListGroupsRequest

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.LIST_GROUPS, versions=(0, 5))
def list_groups(broker: Broker, context: RequestContext, request: ListGroupsRequest) -> Any:
    return broker.groups.call(broker.groups.coordinator.list_groups, context, request)
