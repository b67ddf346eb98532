"""ReadShareGroupStateSummary (key 87): how far a share group has got in partitions.

Serves versions 0-1. Between brokers.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.share_state_service import ShareStateService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest


@handles(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, versions=(0, 1), requires=(on_cluster(Operation.CLUSTER_ACTION),))
def read_share_group_state_summary(
    request: ReadShareGroupStateSummaryRequest, context: RequestContext, states: ShareStateService
) -> Any:
    return states.call(states.coordinator.summary, context, request)
