"""Clients that speak the bare protocol: a blocking one on a socket, an asyncio one on any runtime's network."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from headrace.net.frames import FrameReader, up_to
from headrace.protocol import codec
from headrace.protocol.api import ApiKey, api
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.records import build_batch, read_records, split
from headrace.runtime import Buffer, Runtime

CLIENT_ID = "raw"
FRAME_BYTES_MAX = 256 * 1024 * 1024
PRODUCE_VERSION, FETCH_VERSION, CREATE_TOPICS_VERSION = 9, 11, 5
TIMESTAMP_MS = 1_700_000_000_000


# --- requests ---------------------------------------------------------------------------------------------------------


def batch(values: Iterable[bytes], *, timestamp_ms: int = TIMESTAMP_MS, **options: Any) -> bytearray:
    return build_batch([(timestamp_ms, None, value, ()) for value in values], **options)


def produce_request(topic: str, partition: int, records: Buffer, *, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def produced(response: ProduceResponse) -> PartitionProduceResponse:
    """The answer to a produce request for one partition."""
    return response.responses[0].partition_responses[0]


def fetch_request(
    topic: str, partition: int, offset: int, *, max_wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 20
) -> FetchRequest:
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )


def fetched(response: Any) -> PartitionData:
    """The answer to a fetch request for one partition."""
    found: PartitionData = response.responses[0].partitions[0]
    return found


def values_of(records: Buffer | None) -> list[tuple[int, bytes]]:
    """Offset and value of every record in fetched data."""
    return [
        (record.offset, bytes(record.value or b"")) for found in split(records or b"") for record in read_records(found)
    ]


def create_topics_request(topics: dict[str, int], **configs: str) -> CreateTopicsRequest:
    """Topics by name with their number of partitions, all with the same configs (underscores stand for dots)."""
    entries = [CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()]
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name, num_partitions=count, replication_factor=1, configs=entries)
            for name, count in topics.items()
        ],
        timeout_ms=60_000,
    )


def frame(message: Any, version: int, correlation_id: int = 1, client_id: str = CLIENT_ID) -> bytes:
    return b"".join(codec.encode_request(message, version, correlation_id, client_id))


def response_class(message: Any) -> type:
    return api(ApiKey(message.SCHEMA.api_key)).response


# --- blocking ---------------------------------------------------------------------------------------------------------


class RawClient:
    """One socket. Sends frames or any bytes; reads answers when asked to, not before."""

    def __init__(self, port: int, *, timeout_s: float = 60.0, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(timeout_s)
        self.socket.connect(("127.0.0.1", port))
        self._correlation_ids = itertools.count(1)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, message: Any, version: int) -> int:
        correlation_id = next(self._correlation_ids)
        self.socket.sendall(frame(message, version, correlation_id))
        return correlation_id

    def read_frame(self) -> bytes:
        size = struct.unpack(">i", self._read(4))[0]
        return self._read(size)

    def receive(self, message: Any, version: int) -> tuple[int, Any]:
        """The next answer, to be decoded as that of `message`: correlation id and body."""
        return codec.decode_response(response_class(message), version, self.read_frame())

    def request(self, message: Any, version: int) -> Any:
        sent = self.send(message, version)
        correlation_id, response = self.receive(message, version)
        assert correlation_id == sent
        return response

    def is_closed_by_peer(self, timeout_s: float = 60.0) -> bool:
        """Whether the broker ends the connection within the time, having sent nothing more."""
        self.socket.settimeout(timeout_s)
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            piece = self.socket.recv(min(count - len(parts), 1 << 20))
            if not piece:
                raise ConnectionResetError("the broker closed the connection")
            parts += piece
        return bytes(parts)


# --- asyncio ----------------------------------------------------------------------------------------------------------


class AsyncRawClient(asyncio.BufferedProtocol):
    """One connection over a runtime's network: one request at a time, each with a time-out."""

    def __init__(self) -> None:
        self._frames: deque[bytes | bytearray] = deque()
        self._reader = FrameReader(up_to(FRAME_BYTES_MAX))
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._lost = False
        self._correlation_ids = itertools.count(1)

    @classmethod
    async def connect(cls, runtime: Runtime, host: str, port: int, timeout_s: float = 1.0) -> AsyncRawClient:
        _, client = await runtime.network.connect(cls, host, port, timeout_s=timeout_s)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.extend(self._reader.received(nbytes))
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def request(self, message: Any, version: int, timeout_s: float = 5.0) -> Any:
        """The answer, or a ConnectionError or TimeoutError, after which the connection is of no use."""
        return await self.answer(message, version, self.send(message, version), timeout_s)

    def send(self, message: Any, version: int) -> int:
        """Send a request whose answer is asked for later; what to ask for it with."""
        if self._lost or self._transport is None:
            raise ConnectionResetError("the connection is gone")
        correlation_id = next(self._correlation_ids)
        self._transport.write(frame(message, version, correlation_id))
        return correlation_id

    async def answer(self, message: Any, version: int, correlation_id: int, timeout_s: float = 5.0) -> Any:
        """The answer to the earliest request that has had none."""
        async with asyncio.timeout(timeout_s):
            while not self._frames:
                if self._lost:
                    raise ConnectionResetError("the broker closed the connection")
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        answered, response = codec.decode_response(response_class(message), version, self._frames.popleft())
        assert answered == correlation_id, "answers come in the order of the requests"
        return response

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
