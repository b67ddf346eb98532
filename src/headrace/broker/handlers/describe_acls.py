"""DescribeAcls (key 29): the rules that match a filter. Without an authorizer the answer is SECURITY_DISABLED.

Serves versions 1-3. As in Kafka a request with the number that stands for "unknown" closes the connection.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import CloseConnectionError, RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

UNKNOWN = 0


@handles(ApiKey.DESCRIBE_ACLS, versions=(1, 3), requires=(on_cluster(Operation.DESCRIBE),))
def describe_acls(
    request: DescribeAclsRequest, context: RequestContext, metadata: MetadataService
) -> DescribeAclsResponse:
    if UNKNOWN in (
        request.resource_type_filter,
        request.pattern_type_filter,
        request.operation,
        request.permission_type,
    ):
        raise CloseConnectionError("DescribeAcls asks for something unknown")
    return metadata.controller.describe_acls(metadata.image, request)
