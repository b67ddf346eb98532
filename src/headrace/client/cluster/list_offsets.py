"""Offsets by time, and the start and end of partitions: asked of the leaders, tried again until they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from headrace.client.cluster.core import ClientCore
from headrace.client.consumer.errors import is_retriable, say
from headrace.client.consumer.records import OffsetAndTimestamp
from headrace.client.flows import All, Flow, Pause, When
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    KafkaError,
    RetriableError,
    UnknownTopicOrPartitionError,
    UnsupportedForMessageFormatError,
    error_for,
)
from headrace.net.connection import Call
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.topics import TopicPartition

_CONSUMER = -1
_LATEST = -1
_ROUND_S_MAX = 60.0
NOWHERE_S = 5.0
"""How long a partition is asked for that no broker knows: it may have been added just now."""

Found = dict[TopicPartition, OffsetAndTimestamp | None]


class OffsetLookup:
    """Asks leaders for offsets. One round asks each leader once; `lookup` goes on until all are known."""

    def __init__(self, core: ClientCore, isolation: int, notify: Callable[[], None]) -> None:
        self._core = core
        self._isolation = isolation
        self._notify = notify

    def lookup(self, wanted: Mapping[TopicPartition, int]) -> Flow[Found]:
        """The offset at each timestamp (-1 end, -2 start); None where no record is that young.

        Goes on until every leader has answered, however long that takes: the caller has the deadline.
        """
        found: Found = {}
        left = dict(wanted)
        failures = 0
        nowhere_by = self._core.clock.monotonic() + NOWHERE_S
        while left:
            yield from self.wait_for_leaders(left)
            answers, errors = yield from self.round(left)
            found.update(answers)
            for partition in answers:
                del left[partition]
            for partition, error in errors.items():
                where = say_where(error, partition)
                is_nowhere = self._is_nowhere(partition) and self._core.clock.monotonic() >= nowhere_by
                if is_nowhere or not isinstance(error, RetriableError):
                    raise where
                self._core.retried = where
            if left:
                self._core.refresh_metadata()
                wait_ms = self._core.config.retry_backoff.wait_ms(failures, self._core.rng)
                failures += 1
                yield Pause(self._core.clock.monotonic() + wait_ms / 1000)
        return found

    def _is_nowhere(self, partition: TopicPartition) -> bool:
        """Whether the brokers know the topic, and no such partition of it."""
        view = self._core.view.topics.get(partition.topic)
        return view is not None and not view.error_code and view.partition(partition.partition) is None

    def wait_for_leaders(self, partitions: Iterable[TopicPartition]) -> Flow[None]:
        """Until the metadata of these partitions is there."""
        view = self._core.view
        missing = {
            partition.topic for partition in partitions if view.leader_of(partition.topic, partition.partition) is None
        }
        if not missing:
            return
        for topic in missing:
            self._core.add_topic(topic)
        version = view.version
        self._core.refresh_metadata()
        yield When(lambda: self._core.view.version > version, self._core.clock.monotonic() + _ROUND_S_MAX)
        for partition in partitions:
            topic_view = self._core.view.topics.get(partition.topic)
            if topic_view is not None and topic_view.error_code and not is_retriable(topic_view.error_code):
                raise say(error_for(topic_view.error_code), f"topic {partition.topic}")

    def _why_unknown(self, partition: TopicPartition) -> str:
        view = self._core.view.topics.get(partition.topic)
        if view is None or view.error_code:
            return f"the brokers do not know topic {partition.topic}"
        if view.partition(partition.partition) is None:
            last = len(view.partitions) - 1
            return f"{partition.topic} has partitions 0 to {last}: there is no {partition.partition}"
        return f"{partition} has no leader"

    def round(self, wanted: Mapping[TopicPartition, int]) -> Flow[tuple[Found, dict[TopicPartition, HeadraceError]]]:
        """Ask every leader once: what is known now, and why the rest is not."""
        by_node: dict[int, dict[TopicPartition, int]] = {}
        errors: dict[TopicPartition, HeadraceError] = {}
        for partition, timestamp in wanted.items():
            leader = self._core.view.leader_of(*partition)
            if leader is None:
                errors[partition] = UnknownTopicOrPartitionError(self._why_unknown(partition))
            else:
                by_node.setdefault(leader.id, {})[partition] = timestamp
        calls = {node_id: self._ask(node_id, parts) for node_id, parts in by_node.items()}
        if calls:
            yield All(list(calls.values()))
        found: Found = {}
        for node_id, call in calls.items():
            if call.error is not None:
                errors.update(dict.fromkeys(by_node[node_id], call.error))
                continue
            for topic in call.response.topics:
                for part in topic.partitions:
                    partition = TopicPartition(topic.name, part.partition_index)
                    if partition not in by_node[node_id]:
                        # Nobody asked for it.
                        continue
                    if part.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
                        found[partition] = None
                    elif part.error_code:
                        errors[partition] = error_for(part.error_code)
                    elif part.offset < 0:
                        found[partition] = None
                    else:
                        epoch = part.leader_epoch if part.leader_epoch >= 0 else None
                        found[partition] = OffsetAndTimestamp(part.offset, part.timestamp, epoch)
        return found, errors

    def log_end(self, partition: TopicPartition) -> Flow[int | None]:
        """Where the leader's log ends, whatever is readable of it; None where it cannot say now (ask again).

        A new leader's high watermark may lag behind the old one's, and a leader may not know of its successor. Its log
        alone says what there is.
        """
        leader, epoch = self._core.view.leader_of(*partition), self.leader_epoch(partition)
        if leader is None:
            return None
        if epoch >= 0:
            asked = OffsetForLeaderPartition(
                partition=partition.partition, current_leader_epoch=epoch, leader_epoch=epoch
            )
            topics = [OffsetForLeaderTopic(topic=partition.topic, partitions=[asked])]
            request = OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)
            call = self._core.submit(leader.id, request, lambda _: self._notify())
            yield call
            error, end_offset = call.error, -1
            if error is None:
                told = [(topic.topic, one) for topic in call.response.topics for one in topic.partitions]
                answer = next((one for name, one in told if (name, one.partition) == partition), None)
                if answer is None:
                    return None
                error, end_offset = error_for(answer.error_code) if answer.error_code else None, answer.end_offset
            if isinstance(error, RetriableError):
                return None
            if error is None and end_offset >= 0:
                return int(end_offset)
        # Brokers before 2.1 do not tell epochs, those before 2.3 may not want to, and a leader whose records are of an
        # old format has no books of them. (Since 2.2 one whose watermark lags refuses to tell where it ends.)
        found, errors = yield from self.round({partition: _LATEST})
        failure = errors.get(partition)
        if failure is not None and not isinstance(failure, RetriableError):
            raise say_where(failure, partition)
        end = found.get(partition)
        return None if end is None else end.offset

    def _ask(self, node_id: int, partitions: Mapping[TopicPartition, int]) -> Call:
        topics: dict[str, ListOffsetsTopic] = {}
        for partition, timestamp in partitions.items():
            topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic, partitions=[]))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=partition.partition,
                    current_leader_epoch=self.leader_epoch(partition),
                    timestamp=timestamp,
                )
            )
        request = ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=self._isolation,
            topics=list(topics.values()),
            timeout_ms=self._core.config.request_timeout_ms,
        )
        return self._core.submit(node_id, request, lambda _: self._notify())

    def leader_epoch(self, partition: TopicPartition) -> int:
        topic = self._core.view.topics.get(partition.topic)
        found = None if topic is None else topic.partition(partition.partition)
        return -1 if found is None else found.leader_epoch


def say_where(error: HeadraceError, partition: TopicPartition) -> HeadraceError:
    if isinstance(error, UnsupportedForMessageFormatError) or not isinstance(error, KafkaError):
        return error
    return say(error, f"looking up an offset of {partition}")
