"""DeleteShareGroupState (key 86): forget what a share group has of partitions.

Serves version 0. Between brokers.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.share_state_service import ShareStateService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.delete_share_group_state import DeleteShareGroupStateRequest


@handles(ApiKey.DELETE_SHARE_GROUP_STATE, versions=(0, 0), requires=(on_cluster(Operation.CLUSTER_ACTION),))
def delete_share_group_state(
    request: DeleteShareGroupStateRequest, context: RequestContext, states: ShareStateService
) -> Any:
    return states.call(states.coordinator.delete, context, request)
