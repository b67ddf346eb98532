"""InitializeShareGroupState (key 83): begin what a share group has of partitions.

Serves version 0. Between brokers.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.share_state_service import ShareStateService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.initialize_share_group_state import InitializeShareGroupStateRequest


@handles(ApiKey.INITIALIZE_SHARE_GROUP_STATE, versions=(0, 0), requires=(on_cluster(Operation.CLUSTER_ACTION),))
def initialize_share_group_state(
    request: InitializeShareGroupStateRequest, context: RequestContext, states: ShareStateService
) -> Any:
    return states.call(states.coordinator.initialize, context, request)
