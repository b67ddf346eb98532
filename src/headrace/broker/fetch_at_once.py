"""The fetch of one small client: the common shape, of records that are in memory and enough to answer with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.fetching import READ_AHEAD_BYTES
from headrace.broker.leadership import NO_LEADER_EPOCH, Isolation
from headrace.errors import KafkaError
from headrace.log import WouldBlockError
from headrace.protocol.common_shapes import (
    FETCH_SINCE_VERSION,
    TOPIC_IDS_SINCE_VERSION,
    read_small_fetch,
    small_fetch_answer,
)
from headrace.records import CorruptBatchError
from headrace.runtime import DiskError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.connection import ServerConnection
    from headrace.broker.pipeline import Route

_UNCOMMITTED, _COMMITTED = int(Isolation.READ_UNCOMMITTED), int(Isolation.READ_COMMITTED)


def name_of(broker: Broker, topic: bytes, version: int) -> str:
    """The topic that stands in a small request, by name or by id; nothing that any has, where none has that id."""
    if version < TOPIC_IDS_SINCE_VERSION:
        return str(topic[1:], "utf-8", "replace")
    return broker.topic_name(topic) or ""


def fetch_at_once(
    broker: Broker,
    frame: memoryview,
    position: int,
    route: Route,
    correlation_id: int,
    connection: ServerConnection | None,
) -> bytes | None:
    """The whole answer; None for a fetch that has to wait, goes wrong, is large, or is told more than offsets.

    It looks at things in the order in which `Fetching` does, to which all others are left.
    """
    version = route.api_version
    if version < FETCH_SINCE_VERSION:
        return None
    wanted = read_small_fetch(frame, position, version)
    if wanted is None:
        return None
    topic, wait_ms, bytes_min, bytes_max, isolation, index, leader_epoch, offset, partition_bytes_max = wanted
    partition = broker.replicas.partitions.get((name_of(broker, topic, version), index))
    if partition is None or isolation not in (_UNCOMMITTED, _COMMITTED):
        return None
    bytes_max = min(bytes_max, broker.config.get_int("fetch.max.bytes"))
    room = min(partition_bytes_max, bytes_max)
    if room < 0:
        return None
    log = partition.log
    try:
        partition.check_leader(leader_epoch if leader_epoch > NO_LEADER_EPOCH else NO_LEADER_EPOCH)
        log_start, stable, high_watermark = log.offsets()
        limit = high_watermark if isolation == _UNCOMMITTED else stable
        found = log.locate(offset, room, limit=limit, at_least_one=True, nowait=True)
        length = found.length
        if length > READ_AHEAD_BYTES or (wait_ms > 0 and length < max(bytes_min, 1)):
            return None
        if isolation == _COMMITTED and log.aborted_transactions(offset, found, nowait=True):
            return None
        records = found.file.read_nowait(found.position, length) if length else b""
        if records:
            log.check_read(found, records)
    except (KafkaError, WouldBlockError, DiskError, CorruptBatchError):
        return None
    if records is None:
        return None
    return small_fetch_answer(
        correlation_id,
        topic,
        index,
        high_watermark,
        stable,
        log_start,
        tells_aborted=isolation == _COMMITTED,
        records=records,
    )
