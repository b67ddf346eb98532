"""AlterClientQuotas (key 49): set and remove quotas. They are kept and shown; nothing is throttled yet.

Serves versions 0-1.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.ALTER_CLIENT_QUOTAS, versions=(0, 1))
def alter_client_quotas(
    broker: Broker, context: RequestContext, request: AlterClientQuotasRequest
) -> Coroutine[Any, Any, AlterClientQuotasResponse]:
    return broker.decide(broker.controller.alter_client_quotas, request)
