"""A session with the store lives only as long as the event loop that it speaks for, whatever sends its pings."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.cluster.store.kazoo_session import KazooSession
from headrace.cluster.store.loop_watch import LoopWatch
from headrace.cluster.store.session import Create, SessionState
from headrace.runtime import real_runtime
from headrace.testing import ZooKeeperProcess

from .store_homes import zookeeper


def test_a_loop_that_does_not_run_counts_as_hung_and_one_that_is_slow_does_not() -> None:
    watch = LoopWatch()
    for _ in range(50):
        watch.beat()
        assert not any(watch.look() for _ in range(7))
    assert not watch.look()
    assert watch.look()


def test_a_loop_counts_as_hung_before_a_stopped_process_would_and_after_what_is_sure_of_its_session() -> None:
    assert 0.5 * 6.0 < LoopWatch.hung_after_s(6.0) < 6.0
    assert 8 * LoopWatch.every_s(6.0) == pytest.approx(LoopWatch.hung_after_s(6.0))


class _OtherLoop:
    """A broker's session, on an event loop of its own thread, which may hang."""

    def __init__(self, where: str, timeout_s: float) -> None:
        self._where = where
        self._timeout_s = timeout_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.states: list[SessionState] = []
        self.session = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(30.0)

    async def _open(self) -> KazooSession:
        session = KazooSession(real_runtime(), self._where, timeout_s=self._timeout_s)
        session.on_change(lambda: self.states.append(session.state))
        await session.start()
        await session.apply([Create("/alive", b"", is_ephemeral=True)])
        return session

    def hang(self, for_s: float) -> None:
        self._loop.call_soon_threadsafe(time.sleep, for_s)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.session.close(), self._loop).result(30.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperProcess]:
    with zookeeper() as process:
        yield process


@pytest.mark.slow
def test_a_session_with_zookeeper_ends_when_its_loop_hangs(server: ZooKeeperProcess) -> None:
    """kazoo's own thread went on pinging: the broker was never fenced, and as the controller stopped all decisions."""
    timeout_s, hangs_s = 3.0, 9.0

    async def watch(other: _OtherLoop) -> float:
        session = KazooSession(real_runtime(), f"{server.address}/hung", timeout_s=timeout_s)
        await session.start()
        try:
            assert await session.get("/alive") is not None
            other.hang(hangs_s)
            began = time.monotonic()
            while await session.get("/alive") is not None and time.monotonic() - began < hangs_s:
                await asyncio.sleep(0.05)
            return time.monotonic() - began
        finally:
            await session.close()

    other = _OtherLoop(f"{server.address}/hung", timeout_s)
    try:
        assert 0.5 * timeout_s < asyncio.run(watch(other)) < 2 * timeout_s
        deadline = time.monotonic() + hangs_s + 10.0
        while SessionState.EXPIRED not in other.states and time.monotonic() < deadline:
            time.sleep(0.05)
        assert other.states[-1] is SessionState.EXPIRED
    finally:
        other.close()
