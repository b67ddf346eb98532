"""ListConfigResources (key 74): which resources have a dynamic configuration.

Serves versions 0-1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1), requires=(on_cluster(Operation.DESCRIBE_CONFIGS),))
def list_config_resources(
    broker: Broker, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    return broker.controller.list_config_resources(broker.image, request, context.api_version)
