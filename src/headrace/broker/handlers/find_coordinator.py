"""FindCoordinator (key 10): which broker coordinates a group or a transactional id.

Serves versions 0-6. 4 asks for several keys at once. The internal topic is created when it is first needed. Keys of
type 2 (from 6 on) are those of the states of share groups: group, topic id and partition, with colons between.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from headrace import coordination
from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.coordinators.share_state_service import ShareStateService
from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster, on_groups, on_transactional_ids, when
from headrace.cluster.answers import Answers
from headrace.cluster.records import NO_LEADER
from headrace.cluster.topic_names import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

BATCHED_SINCE_VERSION = 4
SHARE_SINCE_VERSION = 6
GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2
_TOPIC_OF_KEY_TYPE = {
    GROUP_KEY: CONSUMER_OFFSETS,
    TRANSACTION_KEY: TRANSACTION_STATE,
    SHARE_KEY: SHARE_GROUP_STATE,
}
_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Where:
    groups: GroupService
    transactions: TransactionService
    share_states: ShareStateService
    metadata: MetadataService
    answers: Answers


def _asks_for_groups(request: FindCoordinatorRequest, version: int) -> bool:
    return request.key_type == GROUP_KEY


def _asks_for_transactions(request: FindCoordinatorRequest, version: int) -> bool:
    return request.key_type == TRANSACTION_KEY


def _asks_for_share_states(request: FindCoordinatorRequest, version: int) -> bool:
    return request.key_type == SHARE_KEY


@handles(
    ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    requires=(
        when(_asks_for_groups, on_groups(Operation.DESCRIBE, "key", "coordinator_keys")),
        when(_asks_for_transactions, on_transactional_ids(Operation.DESCRIBE, "key", "coordinator_keys")),
        when(_asks_for_share_states, on_cluster(Operation.CLUSTER_ACTION)),
    ),
    each_once=True,
)
async def find_coordinator(
    request: FindCoordinatorRequest,
    context: RequestContext,
    where: _Where,
) -> FindCoordinatorResponse:
    if context.api_version >= BATCHED_SINCE_VERSION:
        found = [await _find(where, context, request.key_type, key) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(where, context, request.key_type, request.key)
    # Old versions carry the error's name as its message, also when there is none.
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=ErrorCode(one.error_code).name,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(where: _Where, context: RequestContext, key_type: int, key: str) -> Coordinator:
    topic = _TOPIC_OF_KEY_TYPE.get(key_type)
    missing = Coordinator(key=key, node_id=-1, host="", port=-1, error_message="")
    if topic is None:
        missing.error_code = ErrorCode.INVALID_REQUEST
        missing.error_message = f"There are no coordinators of key type {key_type} here."
        return missing
    if key_type == SHARE_KEY and (context.api_version < SHARE_SINCE_VERSION or not _names_share_state(key)):
        missing.error_code = ErrorCode.INVALID_REQUEST
        missing.error_message = "The key of a share group's state is group:topicId:partition, from version 6 on."
        return missing
    await where.metadata.ensure_internal(topic)
    coordinators: dict[int, coordination.Coordinator[Any, Any]] = {
        GROUP_KEY: where.groups.coordinator,
        TRANSACTION_KEY: where.transactions.coordinator,
        SHARE_KEY: where.share_states.coordinator,
    }
    coordinator = coordinators[key_type]
    # None while the coordinators have not heard of a topic that was just created with other settings than theirs.
    state = where.metadata.image.partition(topic, coordinator.partition_of(key))
    leader = NO_LEADER if state is None else state.leader
    # By the address that this client can reach: that of the listener it came through.
    node = next((one for one in where.answers.brokers(context.listener) if one.node_id == leader), None)
    if node is None:
        missing.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return missing
    return Coordinator(key=key, node_id=node.node_id, host=node.host, port=node.port, error_message="")


def _names_share_state(key: str) -> bool:
    # From the right: groups may have colons in their names.
    rest, _, partition = key.rpartition(":")
    group_id, _, topic_id = rest.rpartition(":")
    try:
        is_id = len(base64.urlsafe_b64decode(topic_id + "==")) == _ID_BYTES
    except (binascii.Error, ValueError):
        return False
    return bool(group_id.strip()) and is_id and partition.isdecimal()
