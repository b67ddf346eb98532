"""Answers made of parts on disk go out whole, whether the disk has to be waited for or not."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.net.outbox import KERNEL_BYTES, PIECE_BYTES, WAITING_BYTES, FilePart, Outbox
from headrace.runtime import DiskError, OverloadedError, real_runtime
from headrace.runtime.system import RWF_NOWAIT

needs_nowait = pytest.mark.skipif(not RWF_NOWAIT, reason="no reading without a wait here, or it is not to be used")


class FakeTransport:
    """Takes all that is written, at once."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_gone = False

    def is_closing(self) -> bool:
        return self.is_gone

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: Any) -> None:
        self.written += data


class FakeFile:
    def __init__(self, data: bytes, in_memory: bool) -> None:
        self.data = data
        self.in_memory = in_memory

    def read(self, position: int, length: int) -> bytes:
        return self.data[position : position + length]

    def read_into_nowait(self, position: int, buffer: memoryview) -> int | None:
        if not self.in_memory:
            return None
        data = self.read(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def send_nowait(self, position: int, length: int, socket_number: int) -> int | None:
        raise AssertionError("this transport has no socket")


class Sending:
    """An outbox, and what it told."""

    def __init__(self) -> None:
        self.transport = FakeTransport()
        self.drained = 0
        self.errors: list[BaseException] = []
        self.reads: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []
        self.outbox = Outbox(self.transport, self._offload, self._count, self.errors.append)  # type: ignore[arg-type]

    def _count(self) -> None:
        assert self.outbox.is_empty
        self.drained += 1

    def _offload(self, function: Callable[[int, int], Any], *arguments: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.reads.append((future, lambda: function(*arguments)))
        return future

    async def finish_reads(self) -> None:
        while self.reads:
            future, work = self.reads.pop(0)
            future.set_result(work())
            await asyncio.sleep(0)


DATA = bytes(range(256)) * (3 * PIECE_BYTES // 256) + b"rest"


def test_what_has_to_be_read_off_the_loop_is_sent_whole_and_its_end_is_told() -> None:
    async def run() -> None:
        sending = Sending()
        sending.outbox.send([b"head", FilePart(FakeFile(DATA, in_memory=False), 0, len(DATA)), b"tail"])
        assert not sending.outbox.is_empty
        assert sending.drained == 0
        await sending.finish_reads()
        assert sending.transport.written == b"head" + DATA + b"tail"
        assert sending.outbox.is_empty
        assert sending.drained == 1

    asyncio.run(run())


def test_what_is_in_memory_is_sent_at_once() -> None:
    async def run() -> None:
        sending = Sending()
        sending.outbox.send([FilePart(FakeFile(DATA, in_memory=True), 0, len(DATA))])
        assert sending.transport.written == DATA
        assert sending.outbox.is_empty

    asyncio.run(run())


def test_nothing_is_sent_while_the_peer_does_not_read() -> None:
    async def run() -> None:
        sending = Sending()
        sending.outbox.pause()
        sending.outbox.send([FilePart(FakeFile(DATA, in_memory=False), 0, len(DATA))])
        assert not sending.reads
        sending.outbox.resume()
        await sending.finish_reads()
        assert sending.transport.written == DATA
        assert sending.drained == 1

    asyncio.run(run())


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_file_that_ends_too_early_is_told_once(in_memory: bool) -> None:
    async def run() -> None:
        sending = Sending()
        sending.outbox.send([FilePart(FakeFile(b"short", in_memory), 0, 100), b"tail"])
        await sending.finish_reads()
        assert [type(error) for error in sending.errors] == [EOFError]
        assert sending.transport.written == b"short"

    asyncio.run(run())


class SlowTransport(FakeTransport):
    """Holds on to the buffers that are written, without a copy, until it has room: as asyncio does since 3.12."""

    outbox: Outbox

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Any] = []

    def write(self, data: Any) -> None:
        self.held.append(data)
        self.outbox.pause()

    def make_room(self) -> None:
        for data in self.held:
            self.written += data
        self.held.clear()
        self.outbox.resume()


def test_a_buffer_is_not_used_again_while_a_transport_holds_it() -> None:
    def unexpected(*_: Any) -> Any:
        raise AssertionError("nothing is read off the loop, and nothing fails")

    transports = [SlowTransport() for _ in range(3)]
    for transport in transports:
        transport.outbox = Outbox(transport, unexpected, unexpected, unexpected)  # type: ignore[arg-type]
    contents = [bytes([65 + number]) * (2 * PIECE_BYTES + 7) for number in range(3)]
    for transport, content in zip(transports, contents, strict=True):
        transport.outbox.send([b"head", FilePart(FakeFile(content, in_memory=True), 0, len(content))])
    while not all(transport.outbox.is_empty for transport in transports):
        for transport in transports:
            transport.make_room()
    for transport, content in zip(transports, contents, strict=True):
        assert transport.written == b"head" + content


@pytest.mark.parametrize("in_kernel", [pytest.param(True, marks=needs_nowait), False])
def test_what_waits_for_a_peer_that_does_not_read_is_small_or_counted(tmp_path: Path, in_kernel: bool) -> None:
    """Thousands may read nothing: their buffers are memory as much as their answers are."""
    (tmp_path / "file").write_bytes(bytes(4 * KERNEL_BYTES))
    file = real_runtime().disk.open(str(tmp_path / "file"))

    async def run() -> None:
        ours, theirs = socket.socketpair()
        parts = [FilePart(file, 0, 4 * KERNEL_BYTES)]
        transport, answering = await asyncio.get_running_loop().create_connection(
            lambda: _Answering(parts, in_kernel=in_kernel), sock=ours
        )
        outbox = answering.outbox
        assert not outbox.is_empty
        kept = 0 if outbox._buffer is None else len(outbox._buffer)
        assert outbox.held_bytes >= kept + transport.get_write_buffer_size()
        assert in_kernel == (outbox.held_bytes <= WAITING_BYTES)
        transport.abort()
        theirs.close()

    asyncio.run(run())
    file.close()


class _Answering(asyncio.Protocol):
    """A server's side of a connection that has one answer to give."""

    def __init__(self, parts: list[Any], *, in_kernel: bool = True) -> None:
        self.parts, self.in_kernel = parts, in_kernel
        self.errors: list[BaseException] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        runtime = real_runtime()
        self.outbox = Outbox(transport, runtime.offload, lambda: None, self.errors.append)  # type: ignore[arg-type]
        if not self.in_kernel:
            self.outbox._socket = None  # as where TLS is between them
        self.outbox.send(self.parts)

    def pause_writing(self) -> None:
        self.outbox.pause()

    def resume_writing(self) -> None:
        self.outbox.resume()


@pytest.mark.slow
@pytest.mark.parametrize("without", [None, "in kernel", "in memory"])
def test_a_real_socket_gets_every_byte_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str | None
) -> None:
    content = b"".join(number.to_bytes(4, "big") for number in range(3 * KERNEL_BYTES // 4 + 5))
    (tmp_path / "file").write_bytes(content)
    file = real_runtime().disk.open(str(tmp_path / "file"))
    kind, sent_in_kernel = type(file), 0
    in_kernel = kind.send_nowait

    def counted(self: Any, position: int, length: int, number: int) -> int | None:
        nonlocal sent_in_kernel
        if without is not None:
            return 0 if without == "in kernel" else None
        count = in_kernel(self, position, length, number)
        sent_in_kernel += count or 0
        return count

    monkeypatch.setattr(kind, "send_nowait", counted)
    if without == "in memory":
        monkeypatch.setattr(kind, "read_into_nowait", lambda self, position, buffer: None)

    async def run() -> bytes:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        parts = [b"head", FilePart(file, 7, len(content) - 7), b"middle", FilePart(file, 0, 3), b"tail"]
        expected = sum(map(len, parts))
        transport, answering = await asyncio.get_running_loop().create_connection(lambda: _Answering(parts), sock=ours)
        received = bytearray()
        while len(received) < expected:
            received += await asyncio.get_running_loop().sock_recv(theirs, 100_000)
        assert answering.outbox.is_empty
        assert not answering.errors
        transport.abort()
        theirs.close()
        return bytes(received)

    received = asyncio.run(run())
    file.close()
    assert received == b"head" + content[7:] + b"middle" + content[:3] + b"tail"
    assert (sent_in_kernel > len(content) // 2) == (without is None and RWF_NOWAIT != 0)


class FailingFile(FakeFile):
    """In memory until its disk fails, or its topic is deleted."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, in_memory=True)
        self.error: Exception | None = None

    def read_into_nowait(self, position: int, buffer: memoryview) -> int | None:
        if self.error is not None:
            raise self.error
        return super().read_into_nowait(position, buffer)


@pytest.mark.parametrize(
    "error", [DiskError("open", "/data/t-0/0.log", errno.ENOENT), OverloadedError("too much to read")]
)
def test_what_keeps_the_rest_of_an_answer_from_being_read_is_told_when_the_peer_reads_on(error: Exception) -> None:
    errors: list[BaseException] = []
    transport = SlowTransport()
    outbox = transport.outbox = Outbox(transport, _never, _never, errors.append)  # type: ignore[arg-type]
    file = FailingFile(DATA)
    outbox.send([FilePart(file, 0, len(DATA)), b"tail"])
    file.error = error
    transport.make_room()
    assert errors == [error]
    transport.make_room()
    assert errors == [error]
    assert transport.written == DATA[:PIECE_BYTES]


def _never(*_: Any) -> Any:
    raise AssertionError("nothing is read off the loop, and nothing is drained")


def test_a_failure_after_a_read_off_the_loop_is_told() -> None:
    async def run() -> None:
        sending = Sending()
        file = FailingFile(b"second")
        file.error = DiskError("read", "/data/t-0/0.log", errno.EIO)
        sending.outbox.send([FilePart(FakeFile(b"first", in_memory=False), 0, 5), FilePart(file, 0, 6)])
        await sending.finish_reads()
        assert sending.errors == [file.error]
        assert sending.transport.written == b"first"

    asyncio.run(run())


def test_a_read_that_was_given_up_is_told() -> None:
    async def run() -> None:
        sending = Sending()
        sending.outbox.send([FilePart(FakeFile(DATA, in_memory=False), 0, len(DATA))])
        sending.reads.pop()[0].cancel()
        await asyncio.sleep(0)
        assert [type(error) for error in sending.errors] == [asyncio.CancelledError]

    asyncio.run(run())


def test_nothing_is_read_for_a_peer_that_is_gone() -> None:
    transport = SlowTransport()
    outbox = transport.outbox = Outbox(transport, _never, _never, _never)  # type: ignore[arg-type]
    file = FailingFile(DATA)
    outbox.send([FilePart(file, 0, len(DATA)), b"tail"])
    transport.is_gone = True
    file.error = AssertionError("read for nobody")
    transport.make_room()
    assert outbox.is_empty


def test_what_waits_is_sent_when_the_owner_closes_the_transport() -> None:
    transport = SlowTransport()
    outbox = transport.outbox = Outbox(transport, _never, _never, _never)  # type: ignore[arg-type]
    outbox.send([FilePart(FakeFile(DATA, in_memory=True), 0, len(DATA)), b"tail"])
    outbox.finish()
    transport.is_gone = True
    while not outbox.is_empty:
        transport.make_room()
    assert transport.written == DATA + b"tail"
