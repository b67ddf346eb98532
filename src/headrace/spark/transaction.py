"""The driver's side of a batch's transaction: the client's verbs, the progress topic and its markers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.client.admin import NewTopic
from headrace.client.cluster import BlockingClient
from headrace.client.errors import ProducerFencedError
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.transactions import ProducerIdentity, SharedTransaction, WriteSettings
from headrace.errors import HeadraceError, TopicAlreadyExistsError
from headrace.records import Batch
from headrace.records.columns import Columns, bytes_column, int_column
from headrace.spark.cluster import Cluster
from headrace.spark.markers import Marker, last_decided
from headrace.spark.once import WriteFailedError
from headrace.spark.planning import DataLossError, OffsetRange
from headrace.spark.reading import RangeFetcher, ReadPlan
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.spark")

CommittedOffsets = Mapping[TopicPartition, OffsetAndMetadata]
"""What one consumer group commits."""

PROGRESS_TOPIC = "headrace-spark-progress"


class SinkTransaction:
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
        api_timeout_s: float = 60,
    ) -> None:
        self.transactional_id = transactional_id
        self._client = client
        self._cluster = cluster
        self._kafka = kafka
        self._shared = SharedTransaction(
            client,
            transactional_id,
            WriteSettings.of(kafka),
            transaction_timeout_s=timeout_ms / 1000,
            api_timeout_s=api_timeout_s,
        )
        self._key = transactional_id.encode()
        self._progress = None if progress_topic is None else TopicPartition(progress_topic, 0)
        self._progress_ready = False
        self._read_to = 0
        self._written: bytes | None = None

    # --- fence and look -----------------------------------------------------------------------------------------------

    def fence(self) -> ProducerIdentity:
        """A new epoch. An open transaction of an older one is aborted, in every partition it was enlisted for."""
        return self._shared.fence()

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
        wanted = OffsetRange(self._progress, self._cluster.earliest([self._progress])[self._progress], end)
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
            raise DataLossError(
                f"{progress} ends at offset {end}, but was read up to {self._read_to}: markers are gone, so what was "
                "written cannot be told. Was the topic deleted, or its leader elected out of sync?"
            )
        start = max(self._read_to, cluster.earliest([progress])[progress])
        if start < stable:
            # A marker that is not read is a batch that is written again: nothing may be passed over.
            plan = ReadPlan.of(dict(self._kafka), read_committed=True, fail_on_data_loss=True)
            for piece in RangeFetcher(self._client, plan, OffsetRange(progress, start, stable)).pieces():
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
        for batch, _ in RangeFetcher(self._client, plan, OffsetRange(partition, start, end)).batches():
            yield batch

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

    def enlist(self, identity: ProducerIdentity, partitions: list[TopicPartition]) -> None:
        """Add all partitions, and the marker's, to the transaction."""
        self._make_progress_topic()
        own = [] if self._progress is None else [self._progress]
        with _as_write_failure():
            self._shared.enlist(identity, [*partitions, *own])

    def mark(self, identity: ProducerIdentity, marker: Marker) -> None:
        """The marker, as the last record of the transaction."""
        if self._progress is None:
            return
        columns = Columns(
            int_column("q", [0]),
            int_column("q", [marker.at_ms]),
            bytes_column([self._key]),
            bytes_column([marker.to_bytes()]),
        )
        with _as_write_failure():
            self._shared.mark(identity, self._progress, columns)

    def commit_offsets(self, identity: ProducerIdentity, group: str, offsets: CommittedOffsets) -> None:
        """A consumer group's offsets and their notes, in the same transaction."""
        with _as_write_failure(f"the offsets of group {group} could not be written: "):
            self._shared.commit_offsets(identity, group, offsets)

    def commit(self, identity: ProducerIdentity) -> None:
        """Commit. `OutcomeUnknown` when no answer said so; asking again is harmless, so that is done first."""
        self._shared.end(identity, commit=True)


class _as_write_failure:
    """Errors of the cluster within a transaction: start again, from the first step."""

    def __init__(self, before: str = "") -> None:
        self._before = before

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, HeadraceError) and not isinstance(error, (ProducerFencedError, WriteFailedError)):
            raise WriteFailedError(f"{self._before}{error}") from error
