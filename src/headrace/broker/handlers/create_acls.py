"""CreateAcls (key 30): there is no authorizer, and the answer says so (SECURITY_DISABLED).

Serves versions 1-3.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.CREATE_ACLS, versions=(1, 3))
def create_acls(
    broker: Broker, context: RequestContext, request: CreateAclsRequest
) -> Coroutine[Any, Any, CreateAclsResponse]:
    return broker.decide(broker.controller.create_acls, request)
