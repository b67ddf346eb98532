"""AlterConfigs (key 33): replace the dynamic configuration of topics and brokers as a whole.

Serves versions 0-2. IncrementalAlterConfigs is the better way: this one resets what is not named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.metadata.config_requests import alter
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, of_configs
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.ALTER_CONFIGS, versions=(0, 2), requires=of_configs(Operation.ALTER_CONFIGS))
async def alter_configs(broker: Broker, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    return await alter(broker, context, request, broker.controller.alter_configs, AlterConfigsResourceResponse)
