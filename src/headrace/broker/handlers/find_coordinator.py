"""FindCoordinator (key 10): which broker coordinates a group or a transactional id.

Serves versions 0-6. 4 asks for several keys at once. The internal topic is created when it is first needed. Share
groups (key type 2) are not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_transactional_ids, when
from headrace.cluster.records import NO_LEADER
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

BATCHED_SINCE_VERSION = 4
GROUP_KEY, TRANSACTION_KEY = 0, 1
_TOPIC_OF_KEY_TYPE = {GROUP_KEY: CONSUMER_OFFSETS, TRANSACTION_KEY: TRANSACTION_STATE}


def _asks_for_groups(request: FindCoordinatorRequest, version: int) -> bool:
    return request.key_type == GROUP_KEY


def _asks_for_transactions(request: FindCoordinatorRequest, version: int) -> bool:
    return request.key_type == TRANSACTION_KEY


@handles(
    ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    requires=(
        when(_asks_for_groups, on_groups(Operation.DESCRIBE, "key", "coordinator_keys")),
        when(_asks_for_transactions, on_transactional_ids(Operation.DESCRIBE, "key", "coordinator_keys")),
    ),
    each_once=True,
)
async def find_coordinator(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    if context.api_version >= BATCHED_SINCE_VERSION:
        found = [await _find(broker, context, request.key_type, key) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(broker, context, request.key_type, request.key)
    # Old versions carry the error's name as its message, also when there is none.
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=ErrorCode(one.error_code).name,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(broker: Broker, context: RequestContext, key_type: int, key: str) -> Coordinator:
    topic = _TOPIC_OF_KEY_TYPE.get(key_type)
    missing = Coordinator(key=key, node_id=-1, host="", port=-1, error_message="")
    if topic is None:
        missing.error_code = ErrorCode.INVALID_REQUEST
        missing.error_message = f"There are no coordinators of key type {key_type} here."
        return missing
    await broker.metadata.ensure_internal(topic)
    coordinator = broker.groups.coordinator if topic == CONSUMER_OFFSETS else broker.transactions.coordinator
    # None while the coordinators have not heard of a topic that was just created with other settings than theirs.
    state = broker.image.partition(topic, coordinator.partition_of(key))
    leader = NO_LEADER if state is None else state.leader
    # By the address that this client can reach: that of the listener it came through.
    node = next((one for one in broker.answers.brokers(context.listener) if one.node_id == leader), None)
    if node is None:
        missing.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return missing
    return Coordinator(key=key, node_id=node.node_id, host=node.host, port=node.port, error_message="")
