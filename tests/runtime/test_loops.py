"""The loop of async handlers: timers to the microsecond, and everything else as asyncio has it."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Iterator

import pytest

from headrace.runtime import loops
from headrace.runtime.loops import make_loop
from headrace.runtime.system import HAS_EPOLL

needs_epoll = pytest.mark.skipif(not HAS_EPOLL, reason="epoll is not there, or not to be used")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = make_loop()
    yield made
    made.close()


class _Waits(list[float]):
    """In place of `select`: writes down how long it was to wait, and finds nothing."""

    def select(
        self, read: list[object], write: list[object], other: list[object], timeout: float
    ) -> tuple[list[object], ...]:
        self.append(timeout)
        return [], [], []


@needs_epoll
def test_a_short_wait_is_not_rounded_up_to_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = _Waits()
    monkeypatch.setattr(loops, "select", waits)
    with loops.FineSelector() as selector:
        assert selector.select(0.0003) == []
    assert waits == [0.0003]


@needs_epoll
@pytest.mark.parametrize("timeout", [0, -1])
def test_who_does_not_wait_asks_the_system_once(monkeypatch: pytest.MonkeyPatch, timeout: float) -> None:
    waits = _Waits()
    monkeypatch.setattr(loops, "select", waits)
    with loops.FineSelector() as selector:
        assert selector.select(timeout) == []
    assert not waits


@needs_epoll
def test_what_comes_during_a_short_wait_is_seen() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, loops.FineSelector() as selector:
        selector.register(ours, selectors.EVENT_READ)
        theirs.send(b"x")
        found = selector.select(0.04)
        assert [(key.fileobj, events) for key, events in found] == [(ours, selectors.EVENT_READ)]


def test_sockets_and_other_threads_wake_the_loop(loop: asyncio.AbstractEventLoop) -> None:
    async def exchange() -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            reading = loop.create_task(loop.sock_recv(ours, 10))
            await loop.run_in_executor(None, theirs.send, b"hello")
            return await reading

    assert loop.run_until_complete(exchange()) == b"hello"


@needs_epoll
def test_a_descriptor_that_select_does_not_know_leaves_asyncio_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_SELECT_DESCRIPTORS_MAX", 0)
    made = make_loop()
    assert not isinstance(made._selector, loops.FineSelector)  # type: ignore[attr-defined]  # there is no other way to look
    made.close()


@pytest.mark.filterwarnings("ignore:.*event_loop_policy:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*EventLoopPolicy:DeprecationWarning")
def test_a_loop_policy_of_the_application_is_kept() -> None:
    """Policies are deprecated since Python 3.14, and go on working until 3.16: so long an application may have one."""
    if not hasattr(asyncio, "set_event_loop_policy"):
        pytest.skip("this Python has no event loop policies any more")

    class Own(asyncio.SelectorEventLoop):
        pass

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return Own()

    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(Policy())
    try:
        made = make_loop()
    finally:
        asyncio.set_event_loop_policy(before)
    assert type(made) is Own
    made.close()
