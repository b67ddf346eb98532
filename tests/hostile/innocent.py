"""The client beside an attack: it writes 64 KB, reads them again, writes a compressed batch of 2,000 records, asks for
metadata, and notes its longest wait."""

from __future__ import annotations

import contextlib
import os
import time
from multiprocessing.connection import Connection as Pipe
from typing import Any

from tests.broker import raw
from tests.broker.raw import RawClient

from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.records import Codec, build_batch

TOPIC = "innocent"
WAIT_S_MAX = 60.0
PAUSE_S = 0.02
LINES = [b"line %d of a log" % number for number in range(2000)]


def turn(client: RawClient, offset: int) -> int:
    """One round; the next offset."""
    value = os.urandom(64 * 1024)
    batch = raw.batch([value], timestamp_ms=int(time.time() * 1000))
    done = raw.produced(client.request(raw.produce_request(TOPIC, 0, batch), raw.PRODUCE_VERSION))
    assert done.error_code == 0, done
    read = client.request(raw.fetch_request(TOPIC, 0, done.base_offset), raw.FETCH_VERSION)
    assert raw.values_of(raw.fetched(read).records)[0] == (done.base_offset, value)
    batch = build_batch([(int(time.time() * 1000), None, line, ()) for line in LINES], codec=Codec.LZ4)
    done = raw.produced(client.request(raw.produce_request(TOPIC, 0, bytes(batch)), raw.PRODUCE_VERSION))
    assert done.error_code == 0, done
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
    assert client.request(request, 9).topics
    return int(done.base_offset) + len(LINES)


def run(port: int, pipe: Pipe) -> None:
    """In a process of its own: rounds until it is told to stop; then the waits of all of them, and its errors."""
    waits: list[float] = []
    errors: list[str] = []
    client: RawClient | None = None
    offset = 0
    pipe.send("ready")
    while not pipe.poll():
        began = time.monotonic()
        try:
            client = client or RawClient(port, timeout_s=WAIT_S_MAX)
            offset = turn(client, offset)
        except (OSError, AssertionError) as error:
            errors.append(repr(error)[:200])
            client = None
        waits.append(time.monotonic() - began)
        time.sleep(PAUSE_S)
    with contextlib.suppress(OSError):
        pipe.send((waits, errors))


def outcome(pipe: Any) -> tuple[list[float], list[str]]:
    pipe.send("stop")
    waits, errors = pipe.recv()
    return waits, errors
