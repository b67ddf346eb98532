"""A connection, its transport played by the test: every request is answered or its client is told that it is not."""

from __future__ import annotations

import asyncio
import errno
import gc
import warnings
from typing import Any

import pytest

from headrace.protocol.messages.metadata import MetadataRequest
from headrace.runtime.simulated import DiskFault

from . import raw
from .played import World, run

pytestmark = pytest.mark.usefixtures("large_segments")

METADATA_VERSION = 9


WAITING = (raw.fetch_request("t", 0, 1, max_wait_ms=60_000), raw.FETCH_VERSION)
READING = (raw.fetch_request("t", 0, 0), raw.FETCH_VERSION)
ASKING = (MetadataRequest(topics=None), METADATA_VERSION)


@pytest.mark.slow
def test_a_connection_that_is_lost_before_its_request_has_begun_leaves_nothing_behind() -> None:
    async def scenario(world: World) -> None:
        world.send(WAITING)
        assert world.connection.is_handling
        world.lose()
        await asyncio.sleep(0)
        assert len(world.broker.partition("t", 0).watchers) == 0

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run(scenario)
        gc.collect()
    assert [str(warning.message) for warning in warned if "never awaited" in str(warning.message)] == []


def test_a_connection_that_is_lost_while_its_request_waits_leaves_nothing_behind() -> None:
    async def scenario(world: World) -> None:
        world.send(WAITING, ASKING)
        await asyncio.sleep(1)
        assert len(world.broker.partition("t", 0).watchers) == 1
        world.lose()
        await asyncio.sleep(1)
        assert len(world.broker.partition("t", 0).watchers) == 0

    run(scenario)


def test_a_request_that_goes_on_without_its_connection_is_counted_until_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        may_end = asyncio.Event()

        async def slowly(*_: Any, **__: Any) -> None:
            await may_end.wait()

        monkeypatch.setattr(world.broker.metadata, "decide", slowly)
        world.send((raw.create_topics_request({"u": 1}), raw.CREATE_TOPICS_VERSION))
        await asyncio.sleep(1)
        held = world.broker.acceptor.held_bytes
        assert held > 0
        world.lose()
        assert world.broker.acceptor.held_bytes == held
        may_end.set()
        await asyncio.sleep(1)
        assert world.broker.acceptor.held_bytes == 0

    run(scenario)


def test_a_request_that_is_given_up_from_inside_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        async def cancelled(*_: Any, **__: Any) -> None:
            await asyncio.sleep(1)
            raise asyncio.CancelledError

        monkeypatch.setattr(world.broker.metadata, "decide", cancelled)
        world.send((raw.create_topics_request({"u": 1}), raw.CREATE_TOPICS_VERSION), ASKING)
        await asyncio.sleep(2)
        assert world.transport.closed == "aborted"
        assert world.transport.written == b""

    run(scenario)


def test_an_answer_that_cannot_be_read_to_its_end_ends_its_connection(failures: list[str]) -> None:
    async def scenario(world: World) -> None:
        world.transport.is_full = True
        world.send(READING, ASKING)
        await asyncio.sleep(1)
        before = len(world.transport.written)
        log = world.broker.partition("t", 0).log
        world.host.disk.inject(DiskFault("read", errno.EIO, under=log.directory, times=None))
        world.transport.is_full = False
        world.connection.resume_writing()
        await asyncio.sleep(1)
        assert world.transport.closed == "aborted"
        assert len(world.transport.written) == before, "neither the rest nor the next answer may follow"
        assert ["cannot be sent to its end" in text for text in failures] == [True]

    run(scenario)
