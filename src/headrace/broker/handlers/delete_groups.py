"""DeleteGroups (key 42): remove empty groups with their offsets.

Serves versions 0-2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.broker.rights import Operation, on_groups
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.DELETE_GROUPS, versions=(0, 2), requires=(on_groups(Operation.DELETE, "groups_names"),))
def delete_groups(broker: Broker, context: RequestContext, request: DeleteGroupsRequest) -> Any:
    return broker.groups.call(broker.groups.coordinator.delete_groups, context, request)
