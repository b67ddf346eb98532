"""DescribeAcls (key 29): there is no authorizer, and the answer says so (SECURITY_DISABLED).

Serves versions 1-3. As in Kafka a request with the number that stands for "unknown" closes the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.requests.dispatch import CloseConnectionError, RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

UNKNOWN = 0


@handles(ApiKey.DESCRIBE_ACLS, versions=(1, 3), requires=(on_cluster(Operation.DESCRIBE),))
def describe_acls(broker: Broker, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    if UNKNOWN in (
        request.resource_type_filter,
        request.pattern_type_filter,
        request.operation,
        request.permission_type,
    ):
        raise CloseConnectionError("DescribeAcls asks for something unknown")
    return broker.controller.describe_acls(broker.image, request)
