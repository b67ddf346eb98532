"""ListConfigResources (key 74): which resources have a dynamic configuration.

Serves versions 0-1.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse


@handles(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1), requires=(on_cluster(Operation.DESCRIBE_CONFIGS),))
def list_config_resources(
    request: ListConfigResourcesRequest, context: RequestContext, metadata: MetadataService
) -> ListConfigResourcesResponse:
    return metadata.controller.list_config_resources(metadata.image, request, context.api_version)
