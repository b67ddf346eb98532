"""DeleteAcls (key 31): delete the rules that match filters. Without an authorizer the answer is SECURITY_DISABLED.

Serves versions 1-3. As in Kafka a request with the number that stands for "unknown" closes the connection.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import CloseConnectionError, RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse

UNKNOWN = 0


@handles(ApiKey.DELETE_ACLS, versions=(1, 3), requires=(on_cluster(Operation.ALTER),))
async def delete_acls(
    request: DeleteAclsRequest, context: RequestContext, metadata: MetadataService
) -> DeleteAclsResponse:
    for acl in request.filters:
        if UNKNOWN in (acl.resource_type_filter, acl.pattern_type_filter, acl.operation, acl.permission_type):
            raise CloseConnectionError("DeleteAcls asks for something unknown")
    return await metadata.decide(metadata.controller.delete_acls, request, context=context)
