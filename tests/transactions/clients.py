"""Short words for what transactional producers ask, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.topics import TopicPartition
from headrace.transactions import ADD_VERSION, TransactionConfig, between_brokers, errors_of
from headrace.transactions.records import by_topic

from .driver import Driver

ID = "payments"
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Clients(Driver):
    def __init__(self, config: TransactionConfig | None = None, *, version: int = 2) -> None:
        super().__init__(config, version=version)
        self.topics.known |= {"a": 2, "b": 1}

    def init(
        self, who: tuple[int, int] = (-1, -1), *, name: str | None = ID, version: int = 5, timeout_ms: int = 60_000
    ) -> Any:
        """The answer as (error, producer id, epoch)."""
        request = InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=who[0], producer_epoch=who[1]
        )
        answer = self.ask("init_producer_id", request, version)
        return ErrorCode(answer.error_code), answer.producer_id, answer.producer_epoch

    def started(self, **options: Any) -> tuple[int, int]:
        """A producer id and epoch, asking again as often as the coordinator wants."""
        error, producer_id, epoch = self.init(**options)
        if error == ErrorCode.CONCURRENT_TRANSACTIONS:
            error, producer_id, epoch = self.init(**options)
        assert error == ErrorCode.NONE
        return producer_id, epoch

    def add(
        self, who: tuple[int, int], *partitions: TopicPartition, name: str = ID, version: int = 3
    ) -> dict[TopicPartition, ErrorCode]:
        """As a client of the older protocol does."""
        topics = [AddPartitionsToTxnTopic(name=t, partitions=p) for t, p in by_topic(partitions).items()]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=who[0],
            v3_and_below_producer_epoch=who[1],
            v3_and_below_topics=topics,
        )
        answer = self.ask("add_partitions_to_txn", request, version)
        return {
            TopicPartition(topic.name, result.partition_index): ErrorCode(result.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }

    def produce(
        self, who: tuple[int, int], *partitions: TopicPartition, name: str = ID, verify_only: bool = False
    ) -> dict[TopicPartition, ErrorCode]:
        """As the leader does for a producer of the newer protocol."""
        request = between_brokers(name, *who, partitions, verify_only=verify_only)
        return errors_of(self.ask("add_partitions_to_txn", request, ADD_VERSION), name)

    def add_offsets(self, who: tuple[int, int], group_id: str, version: int = 3) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=ID, producer_id=who[0], producer_epoch=who[1], group_id=group_id
        )
        return ErrorCode(self.ask("add_offsets_to_txn", request, version).error_code)

    def end_request(self, who: tuple[int, int], commit: bool, name: str = ID) -> EndTxnRequest:
        return EndTxnRequest(transactional_id=name, producer_id=who[0], producer_epoch=who[1], committed=commit)

    def end(self, who: tuple[int, int], *, commit: bool = True, name: str = ID, version: int = 3) -> Any:
        """The error; in the newer protocol (version 5) also producer id and epoch."""
        answer = self.ask("end_txn", self.end_request(who, commit, name), version)
        error = ErrorCode(answer.error_code)
        return (error, answer.producer_id, answer.producer_epoch) if version >= 5 else error

    def state(self, name: str = ID) -> str:
        request = DescribeTransactionsRequest(transactional_ids=[name])
        found = self.ask("describe_transactions", request, 0).transaction_states[0]
        return str(found.transaction_state) if found.error_code == 0 else ErrorCode(found.error_code).name

    def listed(self, **filters: Any) -> list[str]:
        answer = self.ask("list_transactions", ListTransactionsRequest(**filters), 2)
        assert answer.error_code == 0
        return sorted(listed.transactional_id for listed in answer.transaction_states)


def all_of(partitions: Iterable[TopicPartition], error: ErrorCode) -> dict[TopicPartition, ErrorCode]:
    return dict.fromkeys(partitions, error)
