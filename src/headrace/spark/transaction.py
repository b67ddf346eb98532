"""The driver's side of a transaction: fence, marker, partitions, offsets, commit; over one blocking client.

It speaks the protocol of transactions as it was before KIP-890's second part, which every Kafka since 0.11 serves, and
Kafka 4 beside the new one: an epoch of one's own for every batch, got by fencing, does the same service.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.client.admin import NewTopic
from headrace.client.cluster.core import ANY_NODE, coordinator_key
from headrace.client.cluster.drivers import BlockingClient
from headrace.client.offsets import OffsetAndMetadata
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    InvalidTransactionTimeoutError,
    KafkaError,
    RequestTimedOutError,
    RetriableError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    error_for,
)
from headrace.net.node import Node
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.records import Batch
from headrace.records.columns import Columns, bytes_column, int_column
from headrace.spark.cluster import Cluster
from headrace.spark.markers import Marker, last_decided
from headrace.spark.once import Fenced, Identity, OutcomeUnknown, WriteFailed
from headrace.spark.planning import DataLoss, Range
from headrace.spark.producing import TransactionalWriter, WriteSettings, record_sizes
from headrace.spark.reading import RangeFetcher, ReadPlan
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.spark")

CommittedOffsets = Mapping[TopicPartition, OffsetAndMetadata]
"""What one consumer group commits."""

PROGRESS_TOPIC = "headrace-spark-progress"
_TRANSACTION, _GROUP = 1, 0
_RETRY_S = 0.05
# The last versions before KIP-890's second part.
_ADD_PARTITIONS_MAX, _ADD_OFFSETS_MAX, _OFFSET_COMMIT_MAX, _END_MAX = 3, 3, 3, 4
_FENCED = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
_LOST_COORDINATOR = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class Coordinators:
    """Requests to the coordinators of transactions and groups, tried again while it may help."""

    def __init__(self, client: BlockingClient, timeout_ms: int) -> None:
        self._client = client
        self._timeout_ms = timeout_ms
        self._nodes: dict[tuple[int, str], Node] = {}

    def ask(
        self, kind: int, name: str, request: Any, code_of: Callable[[Any], int], *, version_max: int | None = None
    ) -> Any:
        """The answer. Raises `Fenced`, the error that does not pass, or `RequestTimedOutError` when time is over."""
        clock = self._client.core.clock
        deadline = clock.monotonic() + self._timeout_ms / 1000
        last: HeadraceError | None = None
        while clock.monotonic() < deadline:
            try:
                node = self._node(kind, name)
                response = self._client.request(coordinator_key(node.id), request, version_max=version_max)
            except RetriableError as error:
                self._nodes.pop((kind, name), None)
                last = error
            else:
                code = code_of(response)
                if code == ErrorCode.NONE:
                    return response
                if code in _FENCED:
                    raise Fenced(f"{type(request).__name__.removesuffix('Request')} of {name}: {error_for(code)}")
                last = error_for(code)
                if not isinstance(last, RetriableError):
                    raise last
                if code in _LOST_COORDINATOR:
                    self._nodes.pop((kind, name), None)
            self._client.poll_until(lambda: False, clock.monotonic() + _RETRY_S)
        raise RequestTimedOutError(
            f"{type(request).__name__.removesuffix('Request')} of {name} was not done within {self._timeout_ms} ms; "
            f"the last answer was: {last}"
        ) from last

    def _node(self, kind: int, name: str) -> Node:
        known = self._nodes.get((kind, name))
        if known is not None:
            return known
        request = FindCoordinatorRequest(key=name, key_type=kind, coordinator_keys=[name])
        response = self._client.request(ANY_NODE, request)
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code:
            raise error_for(found.error_code, found.error_message)
        node = Node(found.node_id, found.host, found.port)
        self._client.core.learn_node(node)
        self._nodes[kind, name] = node
        return node


class Transaction:
    """One transactional id, over many batches. `partitions` are all that a batch may write to."""

    def __init__(
        self,
        client: BlockingClient,
        cluster: Cluster,
        kafka: Mapping[str, Any],
        transactional_id: str,
        *,
        progress_topic: str | None,
        timeout_ms: int,
        api_timeout_ms: int = 60_000,
    ) -> None:
        self.transactional_id = transactional_id
        self._client = client
        self._cluster = cluster
        self._kafka = kafka
        self._settings = WriteSettings.of(kafka)
        self._coordinators = Coordinators(client, api_timeout_ms)
        self._timeout_ms = timeout_ms
        self._key = transactional_id.encode()
        self._progress = None if progress_topic is None else TopicPartition(progress_topic, 0)
        self._progress_ready = False
        self._read_to = 0
        self._written: bytes | None = None

    # --- fence and look -----------------------------------------------------------------------------------------------

    def fence(self) -> Identity:
        """A new epoch. An open transaction of an older one is aborted, in every partition it was enlisted for."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self._timeout_ms, producer_id=-1
        )
        try:
            answer = self._coordinators.ask(_TRANSACTION, self.transactional_id, request, lambda r: int(r.error_code))
        except InvalidTransactionTimeoutError as error:
            raise InvalidTransactionTimeoutError(
                f"the brokers allow no transaction time-out of {self._timeout_ms} ms (transaction.max.timeout.ms): "
                "give a smaller transaction_timeout_ms, or raise it there"
            ) from error
        return Identity(answer.producer_id, answer.producer_epoch)

    def last_marker(self) -> Marker | None:
        """The last committed marker. Only right after `fence`, when every transaction of ours is decided."""
        written = self.last_written()
        return None if written is None else Marker.from_bytes(written)

    def last_written(self) -> bytes | None:
        """The last committed marker as `mark` wrote it, for those whose markers say more. Only right after `fence`."""
        if self._progress is None:
            return None
        self._make_progress_topic()
        for value in self._markers_from(self._progress):
            self._written = value
        return self._written

    def known_keys(self) -> set[str]:
        """Whose markers there are, whether their transactions were committed or not."""
        if self._progress is None:
            return set()
        self._make_progress_topic()
        end = self._cluster.latest([self._progress], read_committed=False)[self._progress]
        wanted = Range(self._progress, self._cluster.earliest([self._progress])[self._progress], end)
        plan = ReadPlan.of(dict(self._kafka), read_committed=False, fail_on_data_loss=True)
        return {
            key.decode(errors="replace")
            for piece in RangeFetcher(self._client, plan, wanted).pieces()
            for key in piece.columns.keys.to_list()
            if key is not None
        }

    def _markers_from(self, progress: TopicPartition) -> Iterator[bytes]:
        cluster = self._cluster
        # First the end, then what is stable: what lies between is ours to decide.
        end = cluster.latest([progress], read_committed=False)[progress]
        stable = min(end, cluster.latest([progress], read_committed=True)[progress])
        if end < self._read_to:
            raise DataLoss(
                f"{progress} ends at offset {end}, but was read up to {self._read_to}: markers are gone, so what was "
                "written cannot be told. Was the topic deleted, or its leader elected out of sync?"
            )
        start = max(self._read_to, cluster.earliest([progress])[progress])
        if start < stable:
            # A marker that is not read is a batch that is written again: nothing may be passed over.
            plan = ReadPlan.of(dict(self._kafka), read_committed=True, fail_on_data_loss=True)
            for piece in RangeFetcher(self._client, plan, Range(progress, start, stable)).pieces():
                for key, value in zip(piece.columns.keys.to_list(), piece.columns.values.to_list()):
                    if key == self._key and value is not None:
                        yield value
        # What is not stable now is looked at again next time: it is not known yet to be committed.
        self._read_to = max(start, stable)
        if max(start, stable) < end:
            found = last_decided(self._raw_batches(progress, max(start, stable), end), self._key)
            if found is not None:
                yield found

    def _raw_batches(self, partition: TopicPartition, start: int, end: int) -> Iterator[Batch]:
        """The batches of a range as they are in the log, markers and all."""
        plan = ReadPlan.of(dict(self._kafka), read_committed=False, fail_on_data_loss=True)
        for batch, _ in RangeFetcher(self._client, plan, Range(partition, start, end)).batches():
            yield batch

    def _leader(self, partition: TopicPartition) -> int:
        core = self._client.core
        deadline = core.clock.monotonic() + core.config.request_timeout_ms / 1000
        while (leader := core.view.leader_of(*partition)) is None:
            core.add_topic(partition.topic)
            self._client.ensure_metadata(deadline)
            if core.clock.monotonic() > deadline:
                raise UnknownTopicOrPartitionError(f"{partition} has no leader, or does not exist")
        return leader.id

    def _make_progress_topic(self) -> None:
        if self._progress_ready or self._progress is None:
            return
        wanted = NewTopic(
            self._progress.topic, num_partitions=1, replication_factor=-1, configs={"cleanup.policy": "compact"}
        )
        for error in self._cluster.admin.create_topics([wanted]).errors.values():
            if not isinstance(error, TopicAlreadyExistsError):
                raise error
        self._progress_ready = True

    # --- within a transaction -----------------------------------------------------------------------------------------

    def enlist(self, identity: Identity, partitions: list[TopicPartition]) -> None:
        """Add all partitions, and the marker's, to the transaction."""
        self._make_progress_topic()
        wanted: dict[str, list[int]] = {}
        for topic, index in [*partitions, *([self._progress] if self._progress is not None else [])]:
            wanted.setdefault(topic, []).append(index)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=at) for name, at in wanted.items()],
        )
        with _as_write_failure():
            self._coordinators.ask(
                _TRANSACTION, self.transactional_id, request, _added_code, version_max=_ADD_PARTITIONS_MAX
            )

    def mark(self, identity: Identity, marker: Marker) -> None:
        """The marker, as the last record of the transaction."""
        if self._progress is None:
            return
        columns = Columns(
            int_column("q", [0]),
            int_column("q", [marker.at_ms]),
            bytes_column([self._key]),
            bytes_column([marker.to_bytes()]),
        )
        self._leader(self._progress)
        writer = TransactionalWriter(self._client, self._settings, self.transactional_id, identity)
        with _as_write_failure():
            writer.write(self._progress, columns, record_sizes(columns))
            writer.finish()

    def commit_offsets(self, identity: Identity, group: str, offsets: CommittedOffsets) -> None:
        """A consumer group's offsets and their notes, in the same transaction."""
        added = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            group_id=group,
        )
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, index), wanted in offsets.items():
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=wanted.offset,
                    committed_leader_epoch=-1 if wanted.leader_epoch is None else wanted.leader_epoch,
                    committed_metadata=wanted.metadata,
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            member_id="",
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
        )
        with _as_write_failure(f"the offsets of group {group} could not be written: "):
            self._coordinators.ask(
                _TRANSACTION,
                self.transactional_id,
                added,
                lambda r: int(r.error_code),
                version_max=_ADD_OFFSETS_MAX,
            )
            self._coordinators.ask(_GROUP, group, request, _committed_code, version_max=_OFFSET_COMMIT_MAX)

    def commit(self, identity: Identity) -> None:
        """Commit. `OutcomeUnknown` when no answer said so; asking again is harmless, so that is done first."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=True,
        )
        try:
            self._coordinators.ask(
                _TRANSACTION, self.transactional_id, request, lambda r: int(r.error_code), version_max=_END_MAX
            )
        except Fenced:
            raise
        except (RequestTimedOutError, KafkaError) as error:
            raise OutcomeUnknown(f"whether the transaction was committed is not known: {error}") from error


class _as_write_failure:
    """Errors of the cluster within a transaction: start again, from the first step."""

    def __init__(self, before: str = "") -> None:
        self._before = before

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, HeadraceError) and not isinstance(error, (Fenced, WriteFailed)):
            raise WriteFailed(f"{self._before}{error}") from error


def _added_code(response: Any) -> int:
    codes = [
        one.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    ]
    return _worst(codes)


def _committed_code(response: Any) -> int:
    return _worst([one.error_code for topic in response.topics for one in topic.partitions])


def _worst(codes: list[int]) -> int:
    """The error that says most: partitions that were not attempted only say that another one failed."""
    wrong = [code for code in codes if code]
    said = [code for code in wrong if code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return (said or wrong or [0])[0]
