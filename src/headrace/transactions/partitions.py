"""Which partitions belong to a transaction: AddPartitionsToTxn, AddOffsetsToTxn, and the question of leaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.cluster.topic_names import CONSUMER_OFFSETS, is_internal
from headrace.coordination import Caller, Now
from headrace.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.topics import TopicPartition, partition_for_group
from headrace.transactions import answers
from headrace.transactions.lookup import PartitionLookup
from headrace.transactions.outcome import Outcome
from headrace.transactions.shards import Shards
from headrace.transactions.state import EPOCH_BUMP_VERSION, TransactionState, extended

#: So many mentions of ids that a request has named before are answered. Kafka answers any number of them.
REPETITIONS_ANSWERED_MAX = 4


class Partitions:
    def __init__(self, shards: Shards, topics: PartitionLookup) -> None:
        self._shards = shards
        self._topics = topics
        self.offsets_partition_count = shards.config.offsets_topic_partitions

    def add(self, out: Outcome, caller: Caller, request: AddPartitionsToTxnRequest, at: Now) -> None:
        if caller.api_version >= answers.ADD_BETWEEN_BROKERS_VERSION:
            answered = self._add_or_verify_all(out, caller, request.transactions, at)
            out.reply(caller, AddPartitionsToTxnResponse(results_by_transaction=answered))
            return
        asked = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            verify_only=False,
            topics=request.v3_and_below_topics,
        )
        result = self._add_or_verify(out, caller, asked, at)
        out.reply(caller, AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results))

    def _add_or_verify_all(
        self, out: Outcome, caller: Caller, transactions: list[AddPartitionsToTxnTransaction], at: Now
    ) -> list[AddPartitionsToTxnResult]:
        """An id that is named again is answered each time, always about the partitions of its last mention.

        Where that is so often, each id is answered once, for its last mention: as many times as many partitions would
        keep everyone waiting for seconds.
        """
        latest = {asked.transactional_id: asked for asked in transactions}
        repetitions = len(transactions) - len(latest)
        if not repetitions or repetitions > REPETITIONS_ANSWERED_MAX:
            return [self._add_or_verify(out, caller, asked, at) for asked in latest.values()]
        named: dict[str, list[AddPartitionsToTxnTopic]] = {}
        results: dict[tuple[str, int, int, bool], AddPartitionsToTxnResult] = {}
        answered = []
        for asked in transactions:
            name = asked.transactional_id
            names = named.setdefault(name, asked.topics)
            said = (name, asked.producer_id, asked.producer_epoch, asked.verify_only)
            if said not in results:
                meant = AddPartitionsToTxnTransaction(
                    transactional_id=name,
                    producer_id=asked.producer_id,
                    producer_epoch=asked.producer_epoch,
                    verify_only=asked.verify_only,
                    topics=latest[name].topics,
                )
                results[said] = self._add_or_verify(out, caller, meant, at, names)
            answered.append(results[said])
        return answered

    def add_offsets(self, out: Outcome, caller: Caller, request: AddOffsetsToTxnRequest, at: Now) -> None:
        index = partition_for_group(request.group_id, self.offsets_partition_count)
        response = AddOffsetsToTxnResponse()

        def answer(error: ErrorCode) -> None:
            response.error_code = answers.fenced(error, caller.api_version)

        self._add(
            out,
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            frozenset((TopicPartition(CONSUMER_OFFSETS, index),)),
            0,
            at,
            answer,
        )
        out.reply(caller, response)

    def _add_or_verify(
        self,
        out: Outcome,
        caller: Caller,
        asked: AddPartitionsToTxnTransaction,
        at: Now,
        names: list[AddPartitionsToTxnTopic] | None = None,
    ) -> AddPartitionsToTxnResult:
        """`names` are those that an addition is answered with: as with Kafka, of the id's first mention."""
        partitions = list(
            dict.fromkeys(TopicPartition(topic.name, index) for topic in asked.topics for index in topic.partitions)
        )
        from_broker = caller.api_version >= answers.ADD_BETWEEN_BROKERS_VERSION
        errors = self._check_partitions(partitions, from_broker=from_broker)
        if not errors and asked.verify_only:
            errors = self.verify(asked.transactional_id, asked.producer_id, asked.producer_epoch, partitions)
        if errors or asked.verify_only:
            return AddPartitionsToTxnResult(
                transactional_id=asked.transactional_id, topic_results=answers.add_results(errors)
            )
        result = AddPartitionsToTxnResult(
            transactional_id=asked.transactional_id,
            topic_results=answers.added(asked.topics if names is None else names),
        )
        self._add(
            out,
            asked.transactional_id,
            asked.producer_id,
            asked.producer_epoch,
            frozenset(partitions),
            EPOCH_BUMP_VERSION if from_broker else 0,
            at,
            lambda error: answers.set_error(result, answers.fenced(error, caller.api_version)),
        )
        return result

    def _check_partitions(
        self, partitions: Iterable[TopicPartition], *, from_broker: bool
    ) -> dict[TopicPartition, ErrorCode]:
        """All or nothing: with one partition that does not exist, or is not for clients, none is added."""
        errors = dict.fromkeys(partitions, ErrorCode.NONE)
        for partition in errors:
            if not from_broker and is_internal(partition.topic):
                errors[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not self._exists(partition):
                errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if all(error == ErrorCode.NONE for error in errors.values()):
            return {}
        return {
            partition: ErrorCode.OPERATION_NOT_ATTEMPTED if error == ErrorCode.NONE else error
            for partition, error in errors.items()
        }

    def _exists(self, partition: TopicPartition) -> bool:
        count = self._topics.partition_count(partition.topic)
        return count is not None and 0 <= partition.partition < count

    def _add(
        self,
        out: Outcome,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        client_version: int,
        at: Now,
        answer: Callable[[ErrorCode], None],
    ) -> None:
        """`answer` is told of an error, now or when the write fails; without one all is well."""
        error = self._reachable(transactional_id)
        entry = self._shards.find(transactional_id) if error == ErrorCode.NONE else None
        if entry is None:
            answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING if error == ErrorCode.NONE else error)
            return
        now = entry.current
        if entry.is_busy:
            # First of all: the producer id itself may be about to change.
            answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        elif now.producer_id != producer_id:
            answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif now.producer_epoch != producer_epoch:
            answer(ErrorCode.PRODUCER_FENCED)
        elif not (now.state is TransactionState.ONGOING and partitions <= now.partitions):
            self._shards.write(out, entry, extended(now, partitions, client_version, at.wall_ms), refuse=answer)

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether these partitions are part of that producer's open transaction."""
        error = self._reachable(transactional_id)
        entry = self._shards.find(transactional_id) if error == ErrorCode.NONE else None
        if error == ErrorCode.NONE:
            if entry is None or entry.current.producer_id != producer_id:
                error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
            elif entry.current.producer_epoch != producer_epoch:
                error = ErrorCode.PRODUCER_FENCED
            elif entry.is_ending:
                error = ErrorCode.CONCURRENT_TRANSACTIONS
        if error != ErrorCode.NONE or entry is None:
            return dict.fromkeys(partitions, error)
        known = entry.current.partitions
        return {
            partition: ErrorCode.NONE if partition in known else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def _reachable(self, transactional_id: str) -> ErrorCode:
        return self._shards.error_for(transactional_id) if transactional_id else ErrorCode.INVALID_REQUEST
