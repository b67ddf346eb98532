"""AlterConfigs (key 33): replace the dynamic configuration of topics and brokers as a whole.

Serves versions 0-2. IncrementalAlterConfigs is the better way: this one resets what is not named.
"""

from __future__ import annotations

from headrace.broker.metadata.config_requests import alter
from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, of_configs
from headrace.broker.security.setup import BrokerSecurity
from headrace.broker.view import ClusterView
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


@handles(ApiKey.ALTER_CONFIGS, versions=(0, 2), requires=of_configs(Operation.ALTER_CONFIGS))
async def alter_configs(
    request: AlterConfigsRequest,
    context: RequestContext,
    metadata: MetadataService,
    cluster: ClusterView,
    security: BrokerSecurity,
) -> AlterConfigsResponse:
    return await alter(
        metadata, cluster, security, context, request, metadata.controller.alter_configs, AlterConfigsResourceResponse
    )
