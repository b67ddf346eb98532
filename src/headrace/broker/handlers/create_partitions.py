"""CreatePartitions (key 37): give topics more partitions.

Serves versions 0-3.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.CREATE_PARTITIONS, versions=(0, 3))
def create_partitions(
    broker: Broker, context: RequestContext, request: CreatePartitionsRequest
) -> Coroutine[Any, Any, CreatePartitionsResponse]:
    return broker.decide(broker.controller.create_partitions, request)
