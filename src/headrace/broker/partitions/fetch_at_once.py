"""The fetch of one small client: the common shape, of records that are in memory and enough to answer with."""

from __future__ import annotations

from headrace.broker.partitions.fetching import READ_AHEAD_BYTES
from headrace.broker.partitions.leadership import NO_LEADER_EPOCH, Isolation
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.requests.client import Client
from headrace.broker.requests.rights import Operation, Resource
from headrace.broker.requests.route import Route
from headrace.broker.view import ClusterView
from headrace.errors import KafkaError
from headrace.log import WouldBlockError
from headrace.records import CorruptBatchError
from headrace.runtime import DiskError

_UNCOMMITTED, _COMMITTED = int(Isolation.READ_UNCOMMITTED), int(Isolation.READ_COMMITTED)
_NAMES_BY_ID_SINCE = 13  # of Produce and Fetch


def name_of(cluster: ClusterView, topic: bytes, route: Route) -> str:
    """The topic that stands in a small request, by name or by id; nothing that any has, where none has that id."""
    if route.api_version < _NAMES_BY_ID_SINCE:
        return str(topic[1:] if route.has_tags else topic[2:], "utf-8", "replace")
    return cluster.topic_name(topic) or ""


def fetch_at_once(
    frame: memoryview,
    position: int,
    route: Route,
    correlation_id: int,
    connection: Client,
    may_put_off: bool,
    cluster: ClusterView,
    replicas: Replicas,
) -> bytes | None:
    """The whole answer; None for a fetch that has to wait, goes wrong, is large, or is told more than offsets.

    It looks at things in the order in which `Fetching` does, to which all others are left.
    """
    wanted = route.shape.read(frame, position)
    if wanted is None:
        return None
    topic, wait_ms, bytes_min, bytes_max, isolation, index, leader_epoch, offset, room = wanted
    name = name_of(cluster, topic, route)
    partition = replicas.partitions.get((name, index))
    rights = connection.rights
    if partition is None or rights is None or not rights.may(Operation.READ, Resource.TOPIC, name):
        return None
    bytes_max = min(bytes_max, cluster.fetch_bytes_max)
    if room > bytes_max:
        room = bytes_max
    if room < 0:
        return None
    log = partition.log
    try:
        partition.check_leader(leader_epoch if leader_epoch > NO_LEADER_EPOCH else NO_LEADER_EPOCH)
        log_start, stable, high_watermark = log.offsets()
        if isolation == _UNCOMMITTED:
            limit, answer = high_watermark, route.shape.answer
        elif isolation == _COMMITTED:
            limit, answer = stable, route.shape.answer_committed
        else:
            return None
        found = log.locate(offset, room, limit=limit, at_least_one=True, nowait=True)
        length = found.length
        if length > READ_AHEAD_BYTES or (wait_ms > 0 and length < max(bytes_min, 1)):
            return None
        if isolation == _COMMITTED and log.aborted_transactions(offset, found, nowait=True):
            return None
        records = found.file.read_nowait(found.position, length) if length else b""
        if records is None:
            return None
        if records:
            log.check_read(found, records)
            partition.traffic.bytes_out += length
    except (KafkaError, WouldBlockError, DiskError, CorruptBatchError):
        return None
    whole: bytes = answer(correlation_id, topic, index, high_watermark, stable, log_start, records)
    return whole
