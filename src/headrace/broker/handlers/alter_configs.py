"""AlterConfigs (key 33): replace the dynamic configuration of topics and brokers as a whole.

Serves versions 0-2. IncrementalAlterConfigs is the better way: this one resets what is not named.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.ALTER_CONFIGS, versions=(0, 2))
def alter_configs(
    broker: Broker, context: RequestContext, request: AlterConfigsRequest
) -> Coroutine[Any, Any, AlterConfigsResponse]:
    return broker.decide(broker.controller.alter_configs, request)
