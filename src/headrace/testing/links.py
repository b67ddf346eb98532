"""The network between brokers of a test: whatever one says to another passes here, and can be held back.

Each broker is given an address here for the others to find it by. The name that every broker gives itself in the
requests that it sends to others says which link a connection is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import struct
import threading
from collections.abc import Iterable, Mapping

_PIECE_BYTES_MAX = 64 * 1024
_CALL_TIMEOUT_S = 30.0
# Every request begins with its size, its kind, its version, a number and the client's id.
_HEADER = struct.Struct(">ihhih")
_NAME_BYTES_MAX = 256
_BROKER = re.compile(rb"^(?:headrace-)?broker-(\d+)")


class Links:
    """A place for each broker, on a thread of their own. What is held back by `cut` arrives after `heal`."""

    def __init__(self, node_ids: Iterable[int]) -> None:
        self.ports: dict[int, int] = {}
        self._targets: dict[int, int] = {}
        self._cut: set[tuple[int, int]] = set()
        self._changed = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-links", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(list(node_ids)), self._loop).result(_CALL_TIMEOUT_S)

    def lead_to(self, targets: Mapping[int, int]) -> None:
        """Say on which ports the brokers really listen."""
        self._targets = dict(targets)

    def cut(self, ones: Iterable[int], others: Iterable[int], *, one_way: bool = False) -> None:
        """Nothing gets from these to those any more, nor back unless `one_way`."""
        pairs = set(itertools.product(list(ones), list(others)))
        if not one_way:
            pairs |= {(other, one) for one, other in pairs}
        self._change(self._cut | pairs)

    def heal(self) -> None:
        """Let everything pass that was held back, and all that comes."""
        self._change(set())

    def close(self) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_CALL_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()

    # --- on the thread

    def _change(self, cut: set[tuple[int, int]]) -> None:
        async def change() -> None:
            self._cut = cut
            self._changed.set()
            self._changed = asyncio.Event()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(_CALL_TIMEOUT_S)

    async def _listen(self, node_ids: list[int]) -> None:
        for node_id in node_ids:

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node_id: int = node_id) -> None:
                task = asyncio.get_running_loop().create_task(self._serve(node_id, reader, writer))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self._servers.append(server)
            self.ports[node_id] = server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        left = list(self._serving)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)

    async def _serve(self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        pumps: list[asyncio.Task[None]] = []
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                source, begun = await _who(reader)
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._targets[target])
                writers.append(inner_writer)
                pumps = [
                    asyncio.create_task(self._pump((source, target), reader, inner_writer, begun)),
                    asyncio.create_task(self._pump((target, source), inner_reader, writer)),
                ]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for one in writers:
                one.transport.abort()

    async def _pump(
        self, link: tuple[int, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, piece: bytes = b""
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := piece or await reader.read(_PIECE_BYTES_MAX):
                while link in self._cut:
                    await self._changed.wait()
                writer.write(piece)
                await writer.drain()
                piece = b""


async def _who(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The broker that a connection is from (0: it does not say), and what was read to find out."""
    begun = await reader.readexactly(_HEADER.size)
    length: int = _HEADER.unpack(begun)[4]
    if not 0 < length <= _NAME_BYTES_MAX:
        return 0, begun
    name = await reader.readexactly(length)
    found = _BROKER.match(name)
    return 0 if found is None else int(found[1]), begun + name
