"""Produce and Fetch as nearly all small clients send them: one partition of one topic, and nothing optional."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.protocol.shapes import Shape, ShapeReader, answer_writer, shape_reader

_PRODUCE = Shape(
    ProduceRequest,
    wanted=(
        "topic_data.name|topic_data.topic_id",
        "acks",
        "timeout_ms",
        "topic_data.partition_data.index",
        "topic_data.partition_data.records",
    ),
    always={"transactional_id": None},
)
_PRODUCE_ANSWER = Shape(
    ProduceResponse,
    wanted=(
        "responses.name|responses.topic_id",
        "responses.partition_responses.index",
        "responses.partition_responses.base_offset",
        "responses.partition_responses.log_append_time_ms",
        "responses.partition_responses.log_start_offset",
    ),
    always={},
)
_FETCH = Shape(
    FetchRequest,
    wanted=(
        "topics.topic|topics.topic_id",
        "max_wait_ms",
        "min_bytes",
        "max_bytes",
        "isolation_level",
        "topics.partitions.partition",
        "topics.partitions.current_leader_epoch",
        "topics.partitions.fetch_offset",
        "topics.partitions.partition_max_bytes",
    ),
    # A consumer, and no session.
    always={
        "replica_id": -1,
        "session_id": 0,
        "session_epoch": -1,
        "topics.partitions.last_fetched_epoch": -1,
        "forgotten_topics_data": [],
        "rack_id": "",
    },
)
_ABORTED = "responses.partitions.aborted_transactions"
_FETCH_ANSWER = Shape(
    FetchResponse,
    wanted=(
        "responses.topic|responses.topic_id",
        "responses.partitions.partition_index",
        "responses.partitions.high_watermark",
        "responses.partitions.last_stable_offset",
        "responses.partitions.log_start_offset",
        "responses.partitions.records",
    ),
    always={_ABORTED: None},
)
# That there are no aborted transactions only readers of committed records are told.
_COMMITTED_ANSWER = _FETCH_ANSWER._replace(always={_ABORTED: []})


class SmallProduce(NamedTuple):
    """One batch for one partition, in one version: the topic as it stands there, acks, the time for other replicas,
    the partition, and the batch; and what is answered: the topic, the partition, base offset, append time, log start.
    """

    read: ShapeReader
    answer: Callable[[int, bytes, int, int, int, int], bytes]


class SmallFetch(NamedTuple):
    """One partition without a session, in one version: the topic as it stands there, the wait, least and most bytes,
    the isolation, the partition, the leader epoch, the offset and the most bytes of it; and what is answered: the
    topic, the partition, high watermark, last stable offset, log start and records."""

    read: ShapeReader
    answer: Callable[[int, bytes, int, int, int, int, bytes | bytearray], bytes]
    answer_committed: Callable[[int, bytes, int, int, int, int, bytes | bytearray], bytes]


@cache
def small_produce(version: int) -> SmallProduce:
    return SmallProduce(shape_reader(_PRODUCE, version), answer_writer(_PRODUCE_ANSWER, version))


@cache
def small_fetch(version: int) -> SmallFetch:
    return SmallFetch(
        shape_reader(_FETCH, version),
        answer_writer(_FETCH_ANSWER, version),
        answer_writer(_COMMITTED_ANSWER, version),
    )
