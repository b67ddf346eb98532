"""PushTelemetry (key 72): a client pushes its metrics, in OpenTelemetry's format.

Serves version 0. Refused: a push before its time (THROTTLING_QUOTA_EXCEEDED), for another subscription than the
client's (UNKNOWN_SUBSCRIPTION_ID), over `telemetry.max.bytes` or a multiple of it when it is decompressed
(TELEMETRY_TOO_LARGE), damaged (INVALID_RECORD), or after the last one (INVALID_REQUEST).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import NOTHING
from headrace.broker.telemetry.clients import TelemetryClients
from headrace.broker.telemetry.subscriptions import ClientIdentity
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse


@handles(ApiKey.PUSH_TELEMETRY, versions=(0, 0), requires=NOTHING)
def push_telemetry(
    request: PushTelemetryRequest, context: RequestContext, clients: TelemetryClients
) -> PushTelemetryResponse:
    return PushTelemetryResponse(error_code=clients.push(request, identity_in(context)))


def identity_in(context: RequestContext) -> Callable[[bytes], ClientIdentity]:
    """Who asks, given the id that it has as a client instance."""
    connection = context.connection
    name, version = connection.software

    def identify(instance: bytes) -> ClientIdentity:
        return ClientIdentity(
            str(uuid.UUID(bytes=instance)),
            context.client_id or "",
            name,
            version,
            connection.peer_host,
            str(connection.peer_port),
        )

    return identify
