"""A transaction that several processes write: one of them fences, enlists, marks and ends it, the others write batches
(`TransactionalWriter`) under the identity that it tells them.

It speaks the protocol of transactions as it was before KIP-890's second part, which every Kafka since 0.11 serves, and
Kafka 4 beside the new one: an epoch of one's own for every transaction, got by fencing, does the same service. And
every partition is enlisted before anybody writes, so that the end of the transaction, or the next fence, reaches those
too that a late writer has not written to yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.client.cluster import BlockingClient
from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.errors import ProducerFencedError, TransactionOutcomeUnknownError
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.transactions._coordinator_calls import CoordinatorCalls
from headrace.client.transactions._requests import (
    ProducerIdentity,
    add_offsets,
    add_partitions,
    commit_offsets,
    end_transaction,
    init_producer,
)
from headrace.client.transactions._writer import TransactionalWriter, WriteSettings
from headrace.errors import HeadraceError, InvalidTransactionTimeoutError
from headrace.records.columns import Columns
from headrace.topics import TopicPartition

_PROTOCOL = 1


class SharedTransaction:
    """One transactional id over many transactions, one at a time: `fence`, then `enlist`, writers and `mark`, `end`.

    Whatever fails in between, the way on is to fence again. `ProducerFencedError` says that somebody else did.
    """

    def __init__(
        self,
        client: BlockingClient,
        transactional_id: str,
        settings: WriteSettings,
        *,
        transaction_timeout_s: float,
        api_timeout_s: float = 60,
    ) -> None:
        """`transaction_timeout_s`: after that the coordinator ends the transaction; `api_timeout_s`: for one verb."""
        self.transactional_id = transactional_id
        self._client = client
        self._settings = settings
        self._timeout_ms = round(transaction_timeout_s * 1000)
        self._calls = CoordinatorCalls(client, transactional_id, round(api_timeout_s * 1000))
        self._marks: TransactionalWriter | None = None

    def fence(self) -> ProducerIdentity:
        """A new epoch. Every older transaction of this id is decided when it returns: by an abort, in every partition
        that it was enlisted for, if it was open."""
        try:
            answer = self._calls.take(init_producer(self.transactional_id, self._timeout_ms, ProducerIdentity()))
        except InvalidTransactionTimeoutError as error:
            raise InvalidTransactionTimeoutError(
                f"the brokers allow no transaction time-out of {self._timeout_ms} ms (transaction.max.timeout.ms): "
                "give a smaller transaction_timeout_s, or raise it there"
            ) from error
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def enlist(self, identity: ProducerIdentity, partitions: Iterable[TopicPartition]) -> None:
        """Begin: add every partition that anybody is to write to, all of them or none."""
        self._calls.take(add_partitions(self.transactional_id, identity, list(partitions)))

    def mark(self, identity: ProducerIdentity, partition: TopicPartition, columns: Columns) -> None:
        """Write records of one's own to an enlisted partition that no other writer of this identity writes to.

        They are acknowledged when it returns; of several calls each goes on where the last one ended.
        """
        if self._marks is None or self._marks.identity != identity:
            self._marks = TransactionalWriter(self._client, self._settings, self.transactional_id, identity)
        self._marks.write(partition, columns)
        self._marks.finish()

    def commit_offsets(
        self, identity: ProducerIdentity, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """A consumer group's offsets, which become its own when the transaction is committed."""
        self._calls.take(add_offsets(self.transactional_id, identity, group_id))
        group = ConsumerGroupMetadata(group_id)
        self._calls.take(commit_offsets(self.transactional_id, identity, group, offsets, _PROTOCOL))

    def end(self, identity: ProducerIdentity, *, commit: bool) -> None:
        """Commit or abort; what was asked for is certain when it returns. Asking again is harmless, and is done while
        no answer comes.

        Raises `ProducerFencedError`, after which a commit may have been the last thing before the fence, and
        `TransactionOutcomeUnknownError` for everything else: an attempt before the last may have been heard.
        """
        try:
            self._calls.take(end_transaction(self.transactional_id, identity, commit, _PROTOCOL))
        except ProducerFencedError:
            raise
        except HeadraceError as error:
            wanted = "committed" if commit else "aborted"
            raise TransactionOutcomeUnknownError(
                f"whether the transaction was {wanted} is not known: {error}"
            ) from error
