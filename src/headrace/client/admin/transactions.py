"""Who writes: the producers that a partition remembers, and transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.client.admin.core import (
    TRANSACTION,
    Ask,
    Context,
    Plan,
    Results,
    by_topic,
    coordinators,
    leaders,
    missing,
    nodes,
    refused,
    retried,
    single,
)
from headrace.client.admin.types import ProducerState, TransactionDescription, TransactionListing
from headrace.errors import HeadraceError
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.topics import TopicPartition


def describe_producers(
    context: Context, partitions: Iterable[TopicPartition]
) -> Plan[Results[TopicPartition, list[ProducerState]]]:
    """The producers that partitions remember: who wrote what last, and who has a transaction open."""

    def attempt(pending: list[TopicPartition]) -> Plan[Mapping[TopicPartition, list[ProducerState] | HeadraceError]]:
        by_node, errors = yield from leaders(context, pending)
        outcome: dict[TopicPartition, list[ProducerState] | HeadraceError] = dict(errors)
        replies = yield [
            Ask(
                node_id,
                DescribeProducersRequest(
                    topics=[TopicRequest(name=t, partition_indexes=p) for t, p in by_topic(led).items()]
                ),
            )
            for node_id, led in by_node.items()
        ]
        for led, reply in zip(by_node.values(), replies):
            if reply.error is not None:
                outcome.update(dict.fromkeys(led, reply.error))
                continue
            for topic in reply.response.topics:
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
    running_longer_than_ms: int = -1,
    transactional_id_pattern: str | None = None,
) -> Plan[list[TransactionListing]]:
    """The transactions that every broker coordinates."""
    request = ListTransactionsRequest(
        state_filters=sorted(states),
        producer_id_filters=sorted(producer_ids),
        duration_filter=running_longer_than_ms,
        transactional_id_pattern=transactional_id_pattern,
    )

    def attempt() -> Plan[list[TransactionListing] | HeadraceError]:
        brokers = yield from nodes(context)
        if isinstance(brokers, HeadraceError):
            return brokers
        replies = yield [Ask(node_id, request) for node_id in brokers]
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
) -> Plan[Results[str, TransactionDescription]]:
    """State, producer and partitions of transactions."""

    def attempt(names: list[str]) -> Plan[Mapping[str, TransactionDescription | HeadraceError]]:
        by_node, errors = yield from coordinators(context, names, TRANSACTION)
        outcome: dict[str, TransactionDescription | HeadraceError] = dict(errors)
        replies = yield [
            Ask(node_id, DescribeTransactionsRequest(transactional_ids=led)) for node_id, led in by_node.items()
        ]
        for (node_id, led), reply in zip(by_node.items(), replies):
            if reply.error is not None:
                outcome.update(dict.fromkeys(led, reply.error))
                continue
            for t in reply.response.transaction_states:
                outcome[t.transactional_id] = refused(
                    t.error_code, None, f"transactional id {t.transactional_id}"
                ) or TransactionDescription(
                    t.transactional_id,
                    node_id,
                    t.transaction_state,
                    t.producer_id,
                    t.producer_epoch,
                    t.transaction_timeout_ms,
                    t.transaction_start_time_ms if t.transaction_start_time_ms >= 0 else None,
                    tuple(TopicPartition(topic.topic, index) for topic in t.topics for index in topic.partitions),
                )
        return missing(names, outcome, "DescribeTransactions")

    return (yield from retried(context, transactional_ids, attempt))
