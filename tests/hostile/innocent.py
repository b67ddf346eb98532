"""The client beside an attack: it writes 64 KB, reads them again, writes a compressed batch of 2,000 records, asks for
metadata, and notes how long it waits for each; and how much of the CPU the broker's event loop has meanwhile, which
does not depend on what else the machine does."""

from __future__ import annotations

import contextlib
import os
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from tests.broker import raw
from tests.broker.raw import RawClient

from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.records import Codec, build_batch

TOPIC = "innocent"
WAIT_S_MAX = 60.0
PAUSE_S = 0.02
LINES = [b"line %d of a log" % number for number in range(2000)]


def loop_s(pid: int | None) -> float:
    """The CPU seconds of a process's main thread, where the system tells them."""
    with contextlib.suppress(OSError):
        if pid is not None:
            return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return 0.0


class Innocent:
    """One connection, and the waits for its answers."""

    def __init__(self, port: int, pid: int | None = None) -> None:
        self.waits: list[float] = []
        self.loops: list[float] = []
        self._pid = pid
        self._client = RawClient(port, timeout_s=WAIT_S_MAX)

    def turn(self) -> None:
        value = os.urandom(64 * 1024)
        batch = raw.batch([value], timestamp_ms=int(time.time() * 1000))
        done = raw.produced(self._ask(raw.produce_request(TOPIC, 0, batch), raw.PRODUCE_VERSION))
        assert done.error_code == 0, done
        read = self._ask(raw.fetch_request(TOPIC, 0, done.base_offset), raw.FETCH_VERSION)
        assert raw.values_of(raw.fetched(read).records)[0] == (done.base_offset, value)
        many = build_batch([(int(time.time() * 1000), None, line, ()) for line in LINES], codec=Codec.LZ4)
        done = raw.produced(self._ask(raw.produce_request(TOPIC, 0, bytes(many)), raw.PRODUCE_VERSION))
        assert done.error_code == 0, done
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
        assert self._ask(request, 9).topics

    def _ask(self, message: Any, version: int) -> Any:
        loop_before, began = loop_s(self._pid), time.monotonic()
        try:
            return self._client.request(message, version)
        finally:
            self.waits.append(time.monotonic() - began)
            self.loops.append(loop_s(self._pid) - loop_before)

    def close(self) -> None:
        self._client.close()


def run(port: int, pipe: Pipe, pid: int | None) -> None:
    """In a process of its own: rounds until it is told to stop; then the waits since it was told to begin, its errors,
    and what the event loop had meanwhile."""
    waits: list[float] = []
    loops: list[float] = [0.0]
    errors: list[str] = []
    client: Innocent | None = None
    pipe.send("ready")
    while True:
        if pipe.poll():
            if pipe.recv() == "stop":
                break
            # What was before has warmed up both ends.
            waits.clear()
            loops = [0.0]
            errors.clear()
            if client is not None:
                client.waits.clear()
                client.loops.clear()
        try:
            client = client or Innocent(port, pid)
            client.turn()
        except (OSError, AssertionError) as error:
            errors.append(repr(error)[:200])
            if client is not None:
                waits += client.waits
                loops += client.loops
                client.close()
            client = None
        time.sleep(PAUSE_S)
    if client is not None:
        waits += client.waits
        loops += client.loops
    with contextlib.suppress(OSError):
        pipe.send((waits or [WAIT_S_MAX], errors, loops))


def begin(pipe: Any) -> None:
    pipe.send("begin")


def outcome(pipe: Any) -> tuple[list[float], list[str], list[float]]:
    pipe.send("stop")
    waits, errors, loops = pipe.recv()
    return waits, errors, loops
