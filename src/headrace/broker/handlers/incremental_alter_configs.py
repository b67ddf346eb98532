"""IncrementalAlterConfigs (key 44): set, delete, append to or subtract from single configuration keys.

Serves versions 0-1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.metadata.config_requests import alter
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, of_configs
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), requires=of_configs(Operation.ALTER_CONFIGS))
async def incremental_alter_configs(
    broker: Broker, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    return await alter(
        broker, context, request, broker.controller.incremental_alter_configs, AlterConfigsResourceResponse
    )
