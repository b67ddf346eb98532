"""CreateAcls (key 30): add rules. Without an authorizer the answer is SECURITY_DISABLED.

Serves versions 1-3. As in Kafka a request with the number that stands for "unknown" closes the connection.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import CloseConnectionError, RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse

UNKNOWN = 0


@handles(ApiKey.CREATE_ACLS, versions=(1, 3), requires=(on_cluster(Operation.ALTER),))
async def create_acls(
    request: CreateAclsRequest, context: RequestContext, metadata: MetadataService
) -> CreateAclsResponse:
    for acl in request.creations:
        if UNKNOWN in (acl.resource_type, acl.resource_pattern_type, acl.operation, acl.permission_type):
            raise CloseConnectionError("CreateAcls asks for something unknown")
    return await metadata.decide(metadata.controller.create_acls, request, context=context)
