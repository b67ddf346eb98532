"""A cluster that exists only in memory, behind the client's `Transport`, under a clock that is moved by hand.

It decodes what the client encoded and encodes what it answers, so whole frames are exercised; it keeps logs with
Kafka's rules for producer ids and sequence numbers, and does what a test scripts: errors, cut connections, silence.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.client.cluster.core import ClientCore
from headrace.client.producer._base import ProducerSetup
from headrace.client.producer._core import ProducerCore
from headrace.client.producer.delivery import Delivery
from headrace.errors import ErrorCode
from headrace.net.connection import Connection, ConnectionState
from headrace.net.sasl.exchange import authenticate_by
from headrace.net.sasl.plain import plain
from headrace.net.security import Security
from headrace.protocol.api import ApiKey, api, is_flexible
from headrace.protocol.codec import decode, decode_request_header, encode_response
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.protocol.messages.list_groups import ListGroupsResponse
from headrace.protocol.messages.metadata import (
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from headrace.records import Batch, check, increment_sequence
from headrace.records.read import read_records

CUT = "cut"
"""An answer that is none: the connection breaks after the request was served."""
CUT_BEFORE = "cut before"
"""The connection breaks before the request was served."""
SILENCE = "silence"
"""The request is served and never answered."""

SERVED = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.METADATA: (0, 13),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.LIST_GROUPS: (0, 5),
}


class VirtualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000) + 1_700_000_000_000


@dataclass
class Log:
    """One partition: its records, and what it knows of producers (id → epoch, the last five batches)."""

    records: list[Any] = field(default_factory=list)
    producers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = field(default_factory=dict)

    def append(self, batch: Batch) -> tuple[ErrorCode, int]:
        check(batch)
        header = batch.header()
        if header.producer_id >= 0:
            epoch, recent = self.producers.get(header.producer_id, (header.producer_epoch, deque(maxlen=5)))
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch:
                if header.base_sequence != 0:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                recent = deque(maxlen=5)
            for first, last, offset in recent:
                if (first, last) == (header.base_sequence, header.last_sequence):
                    return ErrorCode.NONE, offset
            if recent and header.base_sequence != increment_sequence(recent[-1][1], 1):
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            recent.append((header.base_sequence, header.last_sequence, len(self.records)))
            self.producers[header.producer_id] = (header.producer_epoch, recent)
        base = len(self.records)
        self.records.extend(read_records(batch))
        return ErrorCode.NONE, base

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


class FakeCluster:
    """Brokers 1..n; `script(node, name, request)` may answer, cut or be silent; None lets the broker do its work."""

    def __init__(self, clock: VirtualClock, brokers: int = 1, topics: dict[str, int] | None = None) -> None:
        self.clock = clock
        self.brokers = list(range(1, brokers + 1))
        self.served = dict(SERVED)
        self.topic_ids: dict[str, bytes] = {}
        self.logs: dict[tuple[str, int], Log] = {}
        self.leaders: dict[tuple[str, int], tuple[int, int]] = {}
        self.script: Callable[[int, str, Any], Any] = lambda node, name, request: None
        self.requests: list[tuple[int, str, int, Any]] = []
        self.message_max_bytes = 1 << 30
        self.down: set[int] = set()
        self.next_producer_id = 5000
        self.opened = 0
        self.events: deque[Callable[[], None]] = deque()
        self.client: ClientCore | None = None
        self._buffers: dict[int, bytearray] = {}
        self._owners: dict[int, ClientCore] = {}
        """Whose each connection is, where there are several clients: the client's that was set when it was opened."""
        for name, partitions in (topics or {}).items():
            self.create(name, partitions)

    def create(self, name: str, partitions: int) -> None:
        self.topic_ids[name] = name.encode().ljust(16, b".")[:16]
        for partition in range(partitions):
            self.logs[(name, partition)] = Log()
            self.leaders[(name, partition)] = (self.brokers[partition % len(self.brokers)], 0)

    # --- Transport ----------------------------------------------------------------------------------------------------

    def open_connection(self, connection: Connection) -> None:
        self.opened += 1
        self._buffers[id(connection)] = bytearray()
        owner = self._owners[id(connection)] = self.client
        port = connection.node.port
        if port - 9000 in self.down:
            self.events.append(lambda: owner.disconnected(connection, ConnectionRefusedError("refused")))
        else:
            self.events.append(lambda: connection.state is ConnectionState.CONNECTING and owner.connected(connection))

    def flush_connection(self, connection: Connection) -> None:
        data = b"".join(connection.outgoing)
        connection.sent(len(data))
        buffer = self._buffers.get(id(connection))
        if buffer is None:
            # Cut, and the client does not know it yet.
            return
        buffer += data
        self.events.append(lambda: self._serve(connection))

    def close_connection(self, connection: Connection) -> None:
        self._buffers.pop(id(connection), None)

    # --- brokers ------------------------------------------------------------------------------------------------------

    def _serve(self, connection: Connection) -> None:
        buffer = self._buffers.get(id(connection))
        while buffer is not None and len(buffer) >= 4 and connection.state is not ConnectionState.CLOSED:
            size = struct.unpack_from(">i", buffer)[0]
            if len(buffer) < size + 4:
                return
            frame = bytes(buffer[4 : 4 + size])
            del buffer[: 4 + size]
            self._handle(connection, frame)

    def _handle(self, connection: Connection, frame: bytes) -> None:
        header = decode_request_header(frame, is_flexible)
        found = api(header.api_key)
        node = connection.node.port - 9000
        version = header.api_version
        if header.api_key == ApiKey.API_VERSIONS and version > self.served[ApiKey.API_VERSIONS][1]:
            refused = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self._versions())
            self._answer(connection, refused, 0, header.correlation_id)
            return
        request = decode(found.request, version, frame, header.body_position)
        self.requests.append((node, found.name, version, request))
        told = self.script(node, found.name, request)
        if told == CUT_BEFORE:
            self._cut(connection)
            return
        answer = told if told not in (None, CUT, SILENCE) else self._work(node, found.name, request, version)
        if told == CUT:
            self._cut(connection)
        elif told != SILENCE and not (found.name == "Produce" and request.acks == 0):
            self._answer(connection, answer, version, header.correlation_id)

    def _cut(self, connection: Connection) -> None:
        self._buffers.pop(id(connection), None)
        owner = self._owners[id(connection)]
        self.events.append(lambda: owner.disconnected(connection, ConnectionResetError("cut")))

    def _answer(self, connection: Connection, answer: Any, version: int, correlation_id: int) -> None:
        frame = b"".join(encode_response(answer, version, correlation_id))[4:]
        owner = self._owners[id(connection)]
        self.events.append(lambda: owner.received(connection, frame))

    def _versions(self) -> list[ApiVersion]:
        return [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in self.served.items()]

    def _work(self, node: int, name: str, request: Any, version: int) -> Any:
        if name == "ApiVersions":
            return ApiVersionsResponse(api_keys=self._versions())
        if name == "Metadata":
            return self._metadata(request)
        if name == "InitProducerId":
            self.next_producer_id += 1
            return InitProducerIdResponse(producer_id=self.next_producer_id, producer_epoch=0)
        if name == "Produce":
            return self._produce(node, request, version)
        return ListGroupsResponse()

    def _metadata(self, request: Any) -> MetadataResponse:
        by_id = {topic_id: name for name, topic_id in self.topic_ids.items()}
        asked = (
            [MetadataRequestTopic(name=name) for name in self.topic_ids] if request.topics is None else request.topics
        )
        topics = []
        for one in asked:
            name = by_id.get(one.topic_id) if one.name is None else one.name
            if name is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID
                topics.append(MetadataResponseTopic(error_code=error, name=None, topic_id=one.topic_id))
                continue
            if name not in self.topic_ids:
                topics.append(MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name))
                continue
            partitions = [
                MetadataResponsePartition(
                    partition_index=p, leader_id=leader, leader_epoch=epoch, replica_nodes=[leader]
                )
                for (topic, p), (leader, epoch) in self.leaders.items()
                if topic == name
            ]
            topics.append(MetadataResponseTopic(name=name, topic_id=self.topic_ids[name], partitions=partitions))
        brokers = [MetadataResponseBroker(node_id=b, host="fake", port=9000 + b) for b in self.brokers]
        return MetadataResponse(brokers=brokers, cluster_id="fake", controller_id=1, topics=topics)

    def _produce(self, node: int, request: Any, version: int) -> ProduceResponse:
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        responses = []
        for topic in request.topic_data:
            name = names[topic.topic_id] if version >= 13 else topic.name
            answers = []
            for data in topic.partition_data:
                code, base = self._append(node, name, data)
                answers.append(PartitionProduceResponse(index=data.index, error_code=code, base_offset=base))
            responses.append(TopicProduceResponse(name=name, topic_id=topic.topic_id, partition_responses=answers))
        return ProduceResponse(responses=responses)

    def _append(self, node: int, name: str, data: Any) -> tuple[ErrorCode, int]:
        if self.leaders[(name, data.index)][0] != node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if len(data.records) > self.message_max_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        return self.logs[(name, data.index)].append(Batch(bytes(data.records)))

    def values(self, topic: str) -> list[bytes | None]:
        return [value for (name, _), log in sorted(self.logs.items()) if name == topic for value in log.values]


class World:
    """A client core (and a producer core) over a fake cluster, moved until something holds."""

    def __init__(self, cluster: FakeCluster, seed: int = 7, **keywords: Any) -> None:
        self.cluster = cluster
        self.clock = cluster.clock
        keywords.setdefault("bootstrap_servers", ",".join(f"fake:{9000 + b}" for b in cluster.brokers))
        self.setup = ProducerSetup(None, keywords)
        self.core = ClientCore(self.setup.connection, self.clock, random.Random(seed), cluster)
        cluster.client = self.core
        self.producer = ProducerCore(self.core, self.setup.settings, self.setup.partitioner, self)

    def authenticate(self) -> None:
        """Have the brokers ask for a password from now on; the cluster's script answers."""
        self.cluster.served |= {ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
        flow = authenticate_by("PLAIN", lambda: plain("user", "password"))
        self.core.settings = replace(self.core.config, security=Security(authenticate=flow))

    def settle(self) -> float:
        """Everything that can happen now; seconds until something is due."""
        for _ in range(10_000):
            due = min(self.producer.turn(), self.core.tick())
            self.producer.settle_flushes()
            if not self.cluster.events:
                return due
            self.cluster.events.popleft()()
        raise AssertionError("this does not come to rest")

    def step(self) -> None:
        """Everything that can happen now; then the clock moves to what is due next."""
        self.clock.now += max(0.0005, min(self.settle(), 5.0))

    def run_until(self, condition: Callable[[], bool], limit_s: float = 300.0) -> None:
        deadline = self.clock.now + limit_s
        while True:
            due = self.settle()
            if condition():
                return
            assert self.clock.now < deadline, f"not reached within {limit_s} virtual seconds"
            self.clock.now += max(0.0005, min(due, 5.0))

    def send(
        self, topic: str, value: bytes | None, key: bytes | None = None, partition: int | None = None, **rest: Any
    ) -> Any:
        record = (
            topic,
            value,
            key,
            partition,
            rest.get("timestamp"),
            rest.get("headers"),
            rest.get("on_delivery"),
            self,
        )
        delivery = Delivery(record)
        self.producer.accumulator.pending.append(delivery)
        return delivery

    def deliver(self, deliveries: list[Any], limit_s: float = 300.0) -> None:
        self.run_until(lambda: all(delivery.done() for delivery in deliveries), limit_s)
