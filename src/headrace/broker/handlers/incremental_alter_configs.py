"""IncrementalAlterConfigs (key 44): set, delete, append to or subtract from single configuration keys.

Serves versions 0-1.
"""

from __future__ import annotations

from headrace.broker.metadata.config_requests import alter
from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, of_configs
from headrace.broker.security.setup import BrokerSecurity
from headrace.broker.view import ClusterView
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), requires=of_configs(Operation.ALTER_CONFIGS))
async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest,
    context: RequestContext,
    metadata: MetadataService,
    cluster: ClusterView,
    security: BrokerSecurity,
) -> IncrementalAlterConfigsResponse:
    return await alter(
        metadata,
        cluster,
        security,
        context,
        request,
        metadata.controller.incremental_alter_configs,
        AlterConfigsResourceResponse,
    )
