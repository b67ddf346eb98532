"""Who writes: the producers that a partition remembers, and transactions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from headrace.client.admin.core import (
    Ask,
    Context,
    Results,
    answers,
    ask_all,
    by_topic,
    coordinators,
    leaders,
    missing,
    nodes,
    refused,
    retried,
    single,
)
from headrace.client.admin.topics import describe_topics, list_topics
from headrace.client.admin.types import OpenTransaction, ProducerState, TransactionDescription, TransactionListing
from headrace.client.cluster.coordinator import CoordinatorKind
from headrace.client.flows import Flow
from headrace.errors import HeadraceError
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.topics import TopicPartition

MAX_TRANSACTION_TIMEOUT_S = 900.0
"""What `transaction.max.timeout.ms` is by default: no transaction may be open for longer."""
_FENCE_TIMEOUT_MS = 1
_OPEN_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


def describe_producers(
    context: Context, partitions: Iterable[TopicPartition]
) -> Flow[Results[TopicPartition, list[ProducerState]]]:
    """The producers that partitions remember: who wrote what last, and who has a transaction open."""

    def attempt(pending: list[TopicPartition]) -> Flow[Mapping[TopicPartition, list[ProducerState] | HeadraceError]]:
        by_node, errors = yield from leaders(context, pending)
        outcome: dict[TopicPartition, list[ProducerState] | HeadraceError] = dict(errors)
        replies = yield from ask_all(
            context,
            [
                Ask(
                    node_id,
                    DescribeProducersRequest(
                        topics=[TopicRequest(name=t, partition_indexes=p) for t, p in by_topic(led).items()]
                    ),
                )
                for node_id, led in by_node.items()
            ],
        )
        for _, response in answers(by_node, replies, outcome):
            for topic in response.topics:
                for result in topic.partitions:
                    partition = TopicPartition(topic.name, result.partition_index)
                    outcome[partition] = refused(result.error_code, result.error_message, str(partition)) or [
                        ProducerState(
                            p.producer_id,
                            p.producer_epoch,
                            p.last_sequence,
                            p.last_timestamp,
                            p.coordinator_epoch if p.coordinator_epoch >= 0 else None,
                            p.current_txn_start_offset if p.current_txn_start_offset >= 0 else None,
                        )
                        for p in result.active_producers
                    ]
        return missing(pending, outcome, "DescribeProducers")

    return (yield from retried(context, partitions, attempt))


def list_transactions(
    context: Context,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    running_longer_than_s: float | None = None,
    transactional_id_pattern: str | None = None,
) -> Flow[list[TransactionListing]]:
    """The transactions that every broker coordinates."""
    request = ListTransactionsRequest(
        state_filters=sorted(states),
        producer_id_filters=sorted(producer_ids),
        duration_filter=-1 if running_longer_than_s is None else int(running_longer_than_s * 1000),
        transactional_id_pattern=transactional_id_pattern,
    )

    def attempt() -> Flow[list[TransactionListing] | HeadraceError]:
        brokers = yield from nodes(context)
        if isinstance(brokers, HeadraceError):
            return brokers
        replies = yield from ask_all(context, [Ask(node_id, request) for node_id in brokers])
        found: list[TransactionListing] = []
        for reply in replies:
            error = reply.error or refused(reply.response.error_code)
            if error is not None:
                return error
            found += [
                TransactionListing(t.transactional_id, t.producer_id, t.transaction_state)
                for t in reply.response.transaction_states
            ]
        return sorted(found, key=lambda listing: listing.transactional_id)

    return (yield from single(context, attempt))


def describe_transactions(
    context: Context, transactional_ids: Iterable[str]
) -> Flow[Results[str, TransactionDescription]]:
    """State, producer and partitions of transactions."""

    def attempt(names: list[str]) -> Flow[Mapping[str, TransactionDescription | HeadraceError]]:
        by_node, errors = yield from coordinators(context, names, CoordinatorKind.TRANSACTION)
        outcome: dict[str, TransactionDescription | HeadraceError] = dict(errors)
        replies = yield from ask_all(
            context,
            [Ask(node_id, DescribeTransactionsRequest(transactional_ids=led)) for node_id, led in by_node.items()],
        )
        for node_id, response in answers(by_node, replies, outcome):
            for t in response.transaction_states:
                outcome[t.transactional_id] = refused(
                    t.error_code, None, f"transactional id {t.transactional_id}"
                ) or TransactionDescription(
                    t.transactional_id,
                    node_id,
                    t.transaction_state,
                    t.producer_id,
                    t.producer_epoch,
                    t.transaction_timeout_ms / 1000,
                    t.transaction_start_time_ms if t.transaction_start_time_ms >= 0 else None,
                    tuple(TopicPartition(topic.topic, index) for topic in t.topics for index in topic.partitions),
                )
        return missing(names, outcome, "DescribeTransactions")

    return (yield from retried(context, transactional_ids, attempt))


def fence_producers(context: Context, transactional_ids: Iterable[str]) -> Flow[Results[str, tuple[int, int]]]:
    """Fence the producers of transactional ids: their open transactions are aborted. Gives producer id and epoch."""

    def attempt(names: list[str]) -> Flow[Mapping[str, tuple[int, int] | HeadraceError]]:
        by_node, errors = yield from coordinators(context, names, CoordinatorKind.TRANSACTION)
        outcome: dict[str, tuple[int, int] | HeadraceError] = dict(errors)
        asked = [(node_id, name) for node_id, led in by_node.items() for name in led]
        replies = yield from ask_all(
            context,
            [
                Ask(
                    node_id,
                    InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=_FENCE_TIMEOUT_MS),
                )
                for node_id, name in asked
            ],
        )
        for (_, name), reply in zip(asked, replies):
            error = reply.error or refused(reply.response.error_code, None, f"transactional id {name}")
            outcome[name] = error or (reply.response.producer_id, reply.response.producer_epoch)
        return missing(names, outcome, "InitProducerId")

    return (yield from retried(context, transactional_ids, attempt))


def abort_transaction(
    context: Context,
    partition: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int | None = None,
) -> Flow[None]:
    """Write an abort marker for a producer to a partition: the way to end a hanging transaction (KIP-664).

    For transactions that no coordinator will end, as `find_hanging_transactions` gives them: a marker behind the back
    of a coordinator that still works on the transaction would tear it.
    """

    def attempt(pending: list[TopicPartition]) -> Flow[Mapping[TopicPartition, HeadraceError | None]]:
        by_node, errors = yield from leaders(context, pending)
        outcome: dict[TopicPartition, HeadraceError | None] = dict(errors)
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
            coordinator_epoch=0 if coordinator_epoch is None else coordinator_epoch,
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        replies = yield from ask_all(context, [Ask(node_id, request) for node_id in by_node])
        for _, response in answers(by_node, replies, outcome):
            for written in response.markers:
                for topic in written.topics:
                    for result in topic.partitions:
                        where = TopicPartition(topic.name, result.partition_index)
                        what = f"an abort marker for producer {producer_id} in {where}"
                        outcome[where] = refused(result.error_code, None, what)
        return missing(pending, outcome, "WriteTxnMarkers")

    results: Results[TopicPartition, None] = yield from retried(context, [partition], attempt)
    results.all()


def find_hanging_transactions(
    context: Context,
    topics: Iterable[str] | None = None,
    *,
    open_for_longer_than_s: float = MAX_TRANSACTION_TIMEOUT_S,
) -> Flow[list[OpenTransaction]]:
    """Transactions that are open in partitions for that long, and that no coordinator is going to end.

    Without topics all are looked at, Kafka's own too. A younger one may simply be at work.
    """
    names = sorted((yield from list_topics(context, list_internal=True)) if topics is None else topics)
    described = (yield from describe_topics(context, names)).all()
    partitions = [
        TopicPartition(topic.name, info.partition) for topic in described.values() for info in topic.partitions
    ]
    producers = (yield from describe_producers(context, partitions)).all()
    latest = context.core.clock.now_ms() - open_for_longer_than_s * 1000
    candidates = [
        OpenTransaction(
            partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
            producer.current_transaction_start_offset,
            producer.last_timestamp,
        )
        for partition, found in producers.items()
        for producer in found
        if producer.current_transaction_start_offset is not None and producer.last_timestamp <= latest
    ]
    if not candidates:
        return []
    listed = yield from list_transactions(context, producer_ids={one.producer_id for one in candidates})
    ids = {listing.producer_id: listing.transactional_id for listing in listed}
    known = (yield from describe_transactions(context, sorted(set(ids.values())))).ok
    hanging = []
    for one in candidates:
        name = ids.get(one.producer_id)
        transaction = None if name is None else known.get(name)
        is_alive = (
            transaction is not None
            and transaction.state in _OPEN_STATES
            and one.topic_partition in transaction.topic_partitions
        )
        if not is_alive:
            hanging.append(dataclasses.replace(one, transactional_id=name))
    return sorted(hanging, key=lambda one: (one.topic_partition, one.start_offset))
