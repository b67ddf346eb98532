"""Transactions of a producer, on its sender's thread: takes the steps of the transaction's core to the coordinators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.client.cluster.core import ANY_NODE, ClientCore, coordinator_key
from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.errors import TransactionStateError, TransactionTimeoutError, copy_of
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.producer._base import check_record
from headrace.client.producer._rows import is_text
from headrace.client.producer._sequences import CurrentIdentity
from headrace.client.producer.config import ProducerSettings
from headrace.client.transactions._core import VERSION_2, TransactionCore, TransactionOperation
from headrace.client.transactions._requests import TransactionRequest
from headrace.net.connection import Call
from headrace.topics import TopicPartition

TRANSACTION_VERSION: Final = "transaction.version"
_PRODUCE_VERSION_MAX_1 = 11
_STEPS_AT_ONCE_MAX = 8
_OFFSET_MAX = 2**63 - 1
CLOSE_ABORT_S = 5.0
"""How long a producer that is closed after an error tries to abort what it leaves open."""


class TransactionDriver:
    """The core with its connections. `on_new_identity` is called when producer id or epoch have changed."""

    def __init__(
        self,
        core: ClientCore,
        settings: ProducerSettings,
        identity: CurrentIdentity,
        on_new_identity: Callable[[], None],
    ) -> None:
        assert settings.transactional_id is not None
        self.core = core
        self.transaction = TransactionCore(
            settings.transactional_id, settings.transaction_timeout_ms, identity, settings.retry_backoff, core.rng
        )
        self._identity = identity
        self._on_new_identity = on_new_identity

    @property
    def produce_version_max(self) -> int | None:
        """From version 12 on a Produce request adds its partitions to the transaction: not in protocol 1."""
        return None if self.transaction.protocol >= VERSION_2 else _PRODUCE_VERSION_MAX_1

    def take_steps(self, now: float, records_left: Callable[[], bool]) -> float:
        """Send what is to be sent; when to look again."""
        for _ in range(_STEPS_AT_ONCE_MAX):
            step = self.transaction.next_step(now, records_left=records_left())
            if step is None:
                break
            self._send(step)
        return self.transaction.due(now)

    def _send(self, step: TransactionRequest) -> None:
        node_id = ANY_NODE
        if step.node is not None:
            self.core.learn_node(step.node)
            # A connection of its own: no large Produce request stands before the end of a transaction.
            node_id = coordinator_key(step.node.id)
        self.core.submit(node_id, step.request, lambda call: self._done(step, call), version_max=step.version_max)

    def _done(self, step: TransactionRequest, call: Call) -> None:
        before = (self._identity.producer_id, self._identity.epoch)
        version = 0
        if call.node_id is not None and call.error is None:
            connection = self.core.connection(call.node_id)
            version = 0 if connection is None else connection.features.get(TRANSACTION_VERSION, 0)
        now = self.core.clock.monotonic()
        self.transaction.answered(step, call.response, call.error, now, transaction_version=version)
        if (self._identity.producer_id, self._identity.epoch) != before:
            self._on_new_identity()


def need_transactions(transaction: TransactionCore | None) -> TransactionCore:
    """The transaction's core of a producer that has one."""
    if transaction is None:
        raise TransactionStateError("this producer has no transactions: give it a transactional.id")
    return transaction


def read_offsets(
    offsets: Mapping[Any, Any], group: ConsumerGroupMetadata | str
) -> tuple[dict[TopicPartition, OffsetAndMetadata], ConsumerGroupMetadata]:
    """Offsets and group in any of the usual shapes."""
    made: dict[TopicPartition, OffsetAndMetadata] = {}
    for partition, one in offsets.items():
        value = one if isinstance(one, OffsetAndMetadata) else OffsetAndMetadata(one)
        if not isinstance(value.offset, int) or not 0 <= value.offset <= _OFFSET_MAX:
            raise ValueError(f"cannot commit offset {value.offset!r} for {partition}: offsets are not negative")
        place = TopicPartition(*partition)
        check_record(place.topic, place.partition, None)
        if value.metadata is not None and not (isinstance(value.metadata, str) and is_text(value.metadata)):
            raise ValueError(f"the metadata of the offset for {partition} is {value.metadata!r}, which is not text")
        made[place] = value
    metadata = ConsumerGroupMetadata(group) if isinstance(group, str) else group
    if not metadata.group_id:
        raise ValueError("offsets need the group they are committed for: pass consumer.group_metadata()")
    return made, metadata


def outcome(operation: TransactionOperation) -> None:
    """Raise what an operation that is done ended with, if anything."""
    error = operation.take_outcome()
    if error is not None:
        raise copy_of(error)


def timed_out(operation: TransactionOperation, seconds: float, trouble: object) -> TransactionTimeoutError:
    name = operation.kind.value
    return TransactionTimeoutError(
        f"{name}() did not end within {seconds} s, and its outcome is not known: call {name}() again to go on waiting, "
        f"or close the producer. Last trouble: {trouble or 'none'}"
    )
