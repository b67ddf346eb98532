"""GetTelemetrySubscriptions (key 71): which of its metrics a client is to push, how often and how compressed.

Serves version 0. A client asks once per push interval; one that asks earlier is told THROTTLING_QUOTA_EXCEEDED, unless
its last push was refused for an old subscription.
"""

from __future__ import annotations

from headrace.broker.handlers.push_telemetry import identity_in
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import NOTHING
from headrace.broker.telemetry.clients import TelemetryClients
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)


@handles(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions=(0, 0), requires=NOTHING)
def get_telemetry_subscriptions(
    request: GetTelemetrySubscriptionsRequest, context: RequestContext, clients: TelemetryClients
) -> GetTelemetrySubscriptionsResponse:
    return clients.subscribe(request.client_instance_id, identity_in(context))
