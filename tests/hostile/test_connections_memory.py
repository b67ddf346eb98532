"""What connections keep between requests, behind one that waits and of one that does not end is bounded too."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from tests.broker import raw
from tests.broker.raw import RawClient
from tests.waiting import eventually

from headrace.net.frames import FrameReader, Spares, up_to
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.testing import EmbeddedBroker, broker

MIB = 1024 * 1024


@pytest.fixture
def kafka() -> Iterator[EmbeddedBroker]:
    with broker(None, {"queued.max.request.bytes": str(16 * MIB)}) as running:
        with RawClient(running.port) as client:
            client.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        yield running


def test_buffers_are_kept_for_the_next_request_only_as_far_as_there_is_room(kafka: EmbeddedBroker) -> None:
    large = raw.produce_request("t", 0, bytes(900_000))
    clients = [RawClient(kafka.port) for _ in range(6)]
    for client in clients:
        client.request(large, raw.PRODUCE_VERSION)
    kept = kafka.call(lambda inside: inside.acceptor.spares.kept_bytes)
    assert 0 < kept <= 2 * MIB  # an eighth
    for client in clients:
        client.request(large, raw.PRODUCE_VERSION)
        client.close()
    eventually(lambda: kafka.call(lambda inside: inside.acceptor.spares.kept_bytes) == 0)


def test_spares_are_counted_through_all_that_readers_do() -> None:
    spares = Spares(100_000)
    readers = [FrameReader(up_to(MIB), spares=spares) for _ in range(3)]

    def receive(reader: FrameReader, size: int) -> memoryview:
        data = struct.pack(">i", size) + bytes(size)
        while True:
            view = reader.buffer()
            count = min(len(view), len(data))
            view[:count], data = data[:count], data[count:]
            frames = reader.received(count)
            if frames:
                return frames[0]

    for reader in readers:
        reader.recycle(receive(reader, 40_000))
    assert spares.kept_bytes == 80_000
    # The buffer is used again, then another is kept instead of it.
    first = receive(readers[0], 30_000)
    assert spares.kept_bytes == 40_000
    readers[0].recycle(first)
    readers[0].recycle(receive(readers[1], 50_000))
    readers[1].drop_spare()
    readers[0].clear()
    readers[2].clear()
    assert spares.kept_bytes == 0


def test_small_requests_behind_one_that_waits_stay_bytes(kafka: EmbeddedBroker) -> None:
    """A thousand frames of 14 bytes are 400 KB of objects. They are answered all the same, in order."""
    waiting = raw.frame(raw.fetch_request("t", 0, 0, max_wait_ms=200), raw.FETCH_VERSION, 1)
    small = raw.frame(ApiVersionsRequest(), 0, 2)
    count = (16 * 1024 - len(waiting)) // len(small)
    with RawClient(kafka.port) as client:
        client.socket.sendall(waiting + small * count)

        def most_frames() -> int:
            return kafka.call(lambda inside: max((len(one._frames) for one in inside.acceptor.connections), default=0))

        eventually(most_frames)
        assert most_frames() <= 32
        client.read_frame()
        assert [client.read_frame()[:4] for _ in range(count)] == [b"\0\0\0\2"] * count
        # And what is left of one that had not come whole.
        client.socket.sendall(small * 40 + small[:7])
        assert [client.read_frame()[:4] for _ in range(40)] == [b"\0\0\0\2"] * 40
        client.socket.sendall(small[7:])
        assert client.read_frame()[:4] == b"\0\0\0\2"
    assert kafka.call(lambda inside: inside.acceptor.held_bytes) == 0


def test_who_sends_all_but_the_end_of_a_megabyte_keeps_nobody_waiting(kafka: EmbeddedBroker) -> None:
    """Nobody's turn would have ended before a minute."""
    hostile = [RawClient(kafka.port) for _ in range(16)]
    for client in hostile:
        client.request(ApiVersionsRequest(), 0)
        client.socket.sendall(struct.pack(">i", MIB) + bytes(MIB - 1024))
    eventually(lambda: kafka.call(lambda inside: inside.acceptor.held_bytes) > 12 * MIB)
    with RawClient(kafka.port, timeout_s=30) as innocent:
        batch = raw.batch([bytes(100_000)])
        answer = innocent.request(raw.produce_request("t", 0, batch), raw.PRODUCE_VERSION)
        assert raw.produced(answer).error_code == 0
    for client in hostile:
        client.close()
    eventually(lambda: kafka.call(lambda inside: inside.acceptor.held_bytes) == 0)


def test_a_large_frame_takes_no_memory_before_it_fills_the_chunk() -> None:
    reader = FrameReader(up_to(100 * MIB))
    view = reader.buffer()
    chunk = view.obj
    view[:4] = struct.pack(">i", 100 * MIB)
    assert reader.received(5_000) == []
    assert reader.buffer().obj is chunk
    reader.received(len(reader.buffer()))
    # It is about to be given more, which is counted before it is taken.
    assert reader.allocated_bytes == 64 * 1024
    assert reader.buffer().obj is not chunk
