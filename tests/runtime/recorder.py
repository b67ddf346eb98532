"""A protocol for tests, which remembers."""

from __future__ import annotations

import asyncio


class Recorder(asyncio.Protocol):
    """Keeps what happens to a connection, and lets a test wait for it."""

    def __init__(self, *, echo: bool = False):
        self.echo = echo
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.events: list[str] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def data_received(self, data):
        assert self.events[0] == "made"
        self.received += data
        self._changed.set()
        if self.echo:
            self.transport.write(data)

    def eof_received(self):
        self.events.append("eof")
        self._changed.set()

    def connection_lost(self, error):
        self.events.append("lost")
        self.lost.set_result(error)

    def pause_writing(self):
        self.events.append("pause")
        self._changed.set()

    def resume_writing(self):
        self.events.append("resume")
        self._changed.set()

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class BufferedRecorder(Recorder, asyncio.BufferedProtocol):
    """The same, with a buffer of its own for what comes: the broker's kind of protocol."""

    def __init__(self, *, echo: bool = False):
        super().__init__(echo=echo)
        self.buffer = bytearray(3000)

    def get_buffer(self, sizehint):
        return memoryview(self.buffer)

    def buffer_updated(self, count):
        self.data_received(bytes(self.buffer[:count]))
