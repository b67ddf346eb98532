"""WriteShareGroupState (key 85): what became of records that a share group had.

Serves versions 0-1. Between brokers.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.share_state_service import ShareStateService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.write_share_group_state import WriteShareGroupStateRequest


@handles(ApiKey.WRITE_SHARE_GROUP_STATE, versions=(0, 1), requires=(on_cluster(Operation.CLUSTER_ACTION),))
def write_share_group_state(
    request: WriteShareGroupStateRequest, context: RequestContext, states: ShareStateService
) -> Any:
    return states.call(states.coordinator.write, context, request)
