"""The fetch of one small client: the common shape, of records that are in memory and enough to answer with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.partitions.fetching import READ_AHEAD_BYTES
from headrace.broker.partitions.leadership import NO_LEADER_EPOCH, Isolation
from headrace.broker.requests.rights import Operation, Resource
from headrace.errors import KafkaError
from headrace.log import WouldBlockError
from headrace.net.frames import LENGTH_BYTES, FrameReader
from headrace.protocol.common_shapes import (
    FETCH_SINCE_VERSION,
    TOPIC_IDS_SINCE_VERSION,
    FetchShape,
    SmallFetch,
    fetch_parts,
    read_small_fetch,
    small_fetch_answer,
)
from headrace.records import CorruptBatchError
from headrace.runtime import DiskError

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.partitions.replicas import Replicas
    from headrace.broker.requests.access import Rights
    from headrace.broker.requests.pipeline import Route
    from headrace.broker.server.connection import ServerConnection
    from headrace.broker.view import ClusterView
    from headrace.cluster.broker_config import BrokerConfig

_UNCOMMITTED, _COMMITTED = int(Isolation.READ_UNCOMMITTED), int(Isolation.READ_COMMITTED)
# How many kinds of requests are known, and how long what they have in common may be.
_KNOWN_MAX = 1024
_KNOWN_BYTES_MAX = 512


def name_of(cluster: ClusterView, topic: bytes, version: int) -> str:
    """The topic that stands in a small request, by name or by id; nothing that any has, where none has that id."""
    if version < TOPIC_IDS_SINCE_VERSION:
        return str(topic[1:], "utf-8", "replace")
    return cluster.topic_name(topic) or ""


class KnownFetch:
    """Small fetches of one client from one partition, which are answered again without being read anew."""

    __slots__ = ("_cluster", "_config", "_key", "_replicas", "_room", "_shape", "_wanted", "route")

    def __init__(
        self, cluster: ClusterView, replicas: Replicas, route: Route, frame: memoryview, wanted: SmallFetch
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self.route = route
        self._wanted = wanted
        self._key = name_of(cluster, wanted.topic, route.api_version), wanted.partition
        # Room for so many bytes is left by this configuration, which is another whenever something in it has changed.
        self._config = cluster.config
        self._room = _room(wanted, self._config)
        tells_aborted = wanted.isolation == _COMMITTED
        self._shape = FetchShape(frame, wanted.topic, wanted.partition, tells_aborted=tells_aborted)

    def take(self, connection: ServerConnection, reader: FrameReader, nbytes: int) -> bool:
        """Answer the frame in the reader's buffer, if it is one of these; False, having done nothing, otherwise."""
        found = self._shape.read(reader.chunk, nbytes)
        if found is None:
            connection.known = None  # it wants something else now
            return False
        cluster, key = self._cluster, self._key
        partition = self._replicas.partitions.get(key)
        if partition is None or not connection.may_be_answered_at_once(Operation.READ, key[0]):
            return False
        if self.route.api_version >= TOPIC_IDS_SINCE_VERSION and cluster.topic_name(self._wanted.topic) != key[0]:
            return False
        config = cluster.config
        if config is not self._config:
            self._config, self._room = config, _room(self._wanted, config)
        correlation_id, offset = found
        read = _read(partition, offset, self._room, self._wanted)
        if read is None:
            return False
        answer = self._shape.answer(correlation_id, *read)
        return connection.answer_known(self.route, answer, nbytes - LENGTH_BYTES)


class KnownFetches:
    """What is known of small fetches, of whichever connection."""

    def __init__(self, cluster: ClusterView, replicas: Replicas) -> None:
        self.cluster = cluster
        self.replicas = replicas
        self._known: dict[tuple[Route, bytes, bytes], KnownFetch] = {}

    def of(self, route: Route, frame: memoryview, wanted: SmallFetch) -> KnownFetch:
        same = (route, *fetch_parts(frame))
        known = self._known.get(same)
        if known is None:
            known = KnownFetch(self.cluster, self.replicas, route, frame, wanted)
            if len(frame) <= _KNOWN_BYTES_MAX:
                if len(self._known) >= _KNOWN_MAX:
                    self._known.clear()
                self._known[same] = known
        return known


def fetch_at_once(
    frame: memoryview,
    position: int,
    route: Route,
    correlation_id: int,
    rights: Rights,
    connection: ServerConnection | None,
    known: KnownFetches,
) -> bytes | None:
    """The whole answer; None for a fetch that has to wait, goes wrong, is large, or is told more than offsets."""
    version = route.api_version
    if version < FETCH_SINCE_VERSION:
        return None
    wanted = read_small_fetch(frame, position, version)
    if wanted is None:
        return None
    topic, index, isolation = wanted.topic, wanted.partition, wanted.isolation
    cluster = known.cluster
    name = name_of(cluster, topic, version)
    partition = known.replicas.partitions.get((name, index))
    if partition is None or isolation not in (_UNCOMMITTED, _COMMITTED):
        return None
    if not rights.may(Operation.READ, Resource.TOPIC, name):
        return None
    read = _read(partition, wanted.offset, _room(wanted, cluster.config), wanted)
    if read is None:
        return None
    if connection is not None and connection.known is None:
        connection.known = known.of(route, frame, wanted)
    high_watermark, stable, log_start, records = read
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


def _room(wanted: SmallFetch, config: BrokerConfig) -> int:
    return min(wanted.partition_bytes_max, wanted.bytes_max, config.get_int("fetch.max.bytes"))


def _read(
    partition: Partition, offset: int, room: int, wanted: SmallFetch
) -> tuple[int, int, int, bytes | bytearray] | None:
    """High watermark, last stable offset, start of the log, and the records; None where all that is not at hand.

    It looks at things in the order in which `Fetching` does, to which all others are left.
    """
    if room < 0:
        return None
    log = partition.log
    _, wait_ms, bytes_min, _, isolation, _, leader_epoch, _, _ = wanted
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
        if records is None:
            return None
        if records:
            log.check_read(found, records)
            partition.traffic.bytes_out += length
    except (KafkaError, WouldBlockError, DiskError, CorruptBatchError):
        return None
    return high_watermark, stable, log_start, records
