"""DescribeClientQuotas (key 48): the quotas that are set, by user, client id and address.

Serves versions 0-1.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1), requires=(on_cluster(Operation.DESCRIBE_CONFIGS),))
def describe_client_quotas(
    request: DescribeClientQuotasRequest, context: RequestContext, metadata: MetadataService
) -> DescribeClientQuotasResponse:
    return metadata.controller.describe_client_quotas(metadata.image, request)
