"""FindCoordinator (key 10): which broker coordinates a group or a transactional id.

Serves versions 0-6. 4 asks for several keys at once. The internal topic is created when it is first needed. Share
groups (key type 2) are not served.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_transactional_ids, when
from headrace.cluster.answers import Answers
from headrace.cluster.records import NO_LEADER
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

BATCHED_SINCE_VERSION = 4
GROUP_KEY, TRANSACTION_KEY = 0, 1
_TOPIC_OF_KEY_TYPE = {GROUP_KEY: CONSUMER_OFFSETS, TRANSACTION_KEY: TRANSACTION_STATE}


@dataclass(frozen=True, slots=True)
class _Where:
    groups: GroupService
    transactions: TransactionService
    metadata: MetadataService
    answers: Answers


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
    request: FindCoordinatorRequest,
    context: RequestContext,
    where: _Where,
) -> FindCoordinatorResponse:
    if context.api_version >= BATCHED_SINCE_VERSION:
        found = [await _find(where, context.listener, request.key_type, key) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(where, context.listener, request.key_type, request.key)
    # Old versions carry the error's name as its message, also when there is none.
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=ErrorCode(one.error_code).name,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(where: _Where, listener: str, key_type: int, key: str) -> Coordinator:
    topic = _TOPIC_OF_KEY_TYPE.get(key_type)
    missing = Coordinator(key=key, node_id=-1, host="", port=-1, error_message="")
    if topic is None:
        missing.error_code = ErrorCode.INVALID_REQUEST
        missing.error_message = f"There are no coordinators of key type {key_type} here."
        return missing
    await where.metadata.ensure_internal(topic)
    coordinator = where.groups.coordinator if topic == CONSUMER_OFFSETS else where.transactions.coordinator
    # None while the coordinators have not heard of a topic that was just created with other settings than theirs.
    state = where.metadata.image.partition(topic, coordinator.partition_of(key))
    leader = NO_LEADER if state is None else state.leader
    # By the address that this client can reach: that of the listener it came through.
    node = next((one for one in where.answers.brokers(listener) if one.node_id == leader), None)
    if node is None:
        missing.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return missing
    return Coordinator(key=key, node_id=node.node_id, host=node.host, port=node.port, error_message="")
