"""ReadShareGroupState (key 84): what a leader of partitions begins with for a share group.

Serves version 0. Between brokers.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.share_state_service import ShareStateService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.read_share_group_state import ReadShareGroupStateRequest


@handles(ApiKey.READ_SHARE_GROUP_STATE, versions=(0, 0), requires=(on_cluster(Operation.CLUSTER_ACTION),))
def read_share_group_state(
    request: ReadShareGroupStateRequest, context: RequestContext, states: ShareStateService
) -> Any:
    return states.call(states.coordinator.read, context, request)
