"""Which broker coordinates a group or a transactional id: the question, and what its answer says, for every client."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from headrace.errors import CoordinatorNotAvailableError, ErrorCode, KafkaError, error_for
from headrace.net.node import Node
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest

NOT_THE_COORDINATOR = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Who answers so is to be asked no more: the coordinator is to be found anew."""


class CoordinatorKind(IntEnum):
    """What a coordinator is for; Kafka's key types."""

    GROUP = 0
    TRANSACTION = 1


def find_coordinator(kind: CoordinatorKind, name: str) -> FindCoordinatorRequest:
    """Ask any broker for one coordinator. The name is in the old field and in the new: every Kafka understands it."""
    return FindCoordinatorRequest(key=name, key_type=int(kind), coordinator_keys=[name])


def found_coordinator(response: Any) -> Node | KafkaError:
    """The broker that an answer names, or why it names none."""
    found = response.coordinators[0] if response.coordinators else response
    if found.error_code:
        return error_for(found.error_code, found.error_message)
    if found.node_id < 0:
        return CoordinatorNotAvailableError("there is no coordinator now")
    return Node(found.node_id, found.host, found.port)
