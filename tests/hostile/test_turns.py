"""Who sends costly requests, on however many connections, leaves turns to others: on the loop, and on the threads that
look into batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from tests.broker import raw
from tests.broker.raw import RawClient
from tests.waiting import becomes

from headrace.broker.broker import Broker
from headrace.broker.partitions.checks import LONG_FROM_RECORDS, Checks
from headrace.broker.server import costly_requests
from headrace.broker.server.costly_requests import CostlyRequests
from headrace.broker.server.time_used import TimeUsed
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.runtime import real_runtime
from headrace.testing import EmbeddedBroker, broker

FRAME = memoryview(b"\0\3" + bytes(998))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Peer:
    """As much of a connection as is looked at."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.peer_host = address
        self.costly_s_per_byte: float | None = None
        self.slow_s: float | None = None
        self.is_lost = False
        self.resumed: Callable[[], None] = lambda: None

    def resume(self) -> None:
        self.resumed()


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


class Begun:
    """Requests that take so long, and in which order they were begun."""

    def __init__(self) -> None:
        self.costly = CostlyRequests(TimeUsed(Clock()))
        self.order: list[str] = []

    def begin(self, name: str, peer: Peer, seconds: float) -> None:
        if self.costly.may_begin(peer, FRAME):  # type: ignore[arg-type]  # a part of a connection
            self.order.append(name)
            self.costly.took(peer, len(FRAME), 3, seconds)  # type: ignore[arg-type]  # as above


# --- on the loop ------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that turns can be counted."""
    monkeypatch.setattr(costly_requests, "PAUSE_S_MAX", 0.0)


@pytest.mark.usefixtures("without_pauses")
def test_one_costly_request_is_begun_in_a_turn_and_others_come_between() -> None:
    async def test() -> None:
        clock = Clock()
        costly = CostlyRequests(TimeUsed(clock))
        order: list[str] = []

        def begin(name: str, peer: Peer) -> None:
            if costly.may_begin(peer, FRAME):  # type: ignore[arg-type]  # a part of a connection
                order.append(name)
                clock.now += 0.1
                costly.took(peer, len(FRAME), 3, 0.1)  # type: ignore[arg-type]  # as above

        peers = [Peer() for _ in range(5)]
        for place, peer in enumerate(peers):
            peer.resumed = lambda place=place, peer=peer: begin(f"costly {place}", peer)
            peer.resume()
        assert order == ["costly 0"]
        for turn in range(1, 5):
            await asyncio.sleep(0)
            assert order[-1] == f"costly {turn}"
            order.append("others")
        assert [name for name in order if name != "others"] == [f"costly {place}" for place in range(5)]

    on_a_loop(test)


@pytest.mark.usefixtures("without_pauses")
def test_a_cheap_one_does_not_wait_for_costly_ones() -> None:
    """However many wait, and however new their connections are."""

    async def test() -> None:
        begun = Begun()
        begin, order = begun.begin, begun.order
        for _ in range(300):
            peer = Peer()
            peer.resumed = lambda peer=peer: begin("costly", peer, 0.1)
            peer.resume()
        cheap = Peer()
        cheap.costly_s_per_byte = 1e-6
        cheap.resumed = lambda: begin("cheap", cheap, 0.001)
        cheap.resume()
        assert order == ["costly"]  # which came in this turn
        for _ in range(400):
            await asyncio.sleep(0)
        assert order.index("cheap") <= 2
        assert len(order) == 301

    on_a_loop(test)


def test_others_have_the_loop_for_a_while_after_one_that_took_long() -> None:
    async def test() -> None:
        begun = Begun()
        begin, order = begun.begin, begun.order
        for _ in range(3):
            peer = Peer()
            peer.resumed = lambda peer=peer: begin("costly", peer, 0.1)
            peer.resume()
        for _ in range(10):
            await asyncio.sleep(0)
        assert order == ["costly", "costly"]
        cheap = Peer()
        cheap.costly_s_per_byte = 1e-7
        begin("cheap", cheap, 0.0001)
        assert order[-1] == "cheap"
        await becomes(lambda: len(order) >= 4)

    on_a_loop(test)


def test_cheap_ones_of_any_size_do_not_wait() -> None:
    async def test() -> None:
        costly = CostlyRequests(TimeUsed(Clock()))
        for _ in range(20):
            peer = Peer()
            assert costly.may_begin(peer, FRAME)  # type: ignore[arg-type]  # as above
            costly.took(peer, len(FRAME), 3, 0.0001)  # type: ignore[arg-type]  # as above

    on_a_loop(test)


def test_small_ones_that_take_long_wait_for_their_turn_and_quick_ones_do_not() -> None:
    """The first that is slow is known when it is over; new connections are expected to be like all of their kind."""

    async def test() -> None:
        costly = CostlyRequests(TimeUsed(Clock()))
        small = memoryview(b"\0\3" + bytes(48))
        other = memoryview(b"\0\1" + bytes(48))
        slow, quick, new = Peer(), Peer(), Peer()
        assert not costly.is_slow(slow, small)  # type: ignore[arg-type]  # as above
        costly.took(slow, len(small), 3, 0.02)  # type: ignore[arg-type]  # as above
        costly.took(quick, len(small), 3, 0.0001)  # type: ignore[arg-type]  # as above
        is_slow = [costly.is_slow(peer, small) for peer in (slow, quick, new)]  # type: ignore[arg-type]  # as above
        assert is_slow == [True, False, True]
        assert not costly.is_slow(new, other)  # type: ignore[arg-type]  # as above
        resumed: list[Peer] = []
        for peer in (slow, new):
            peer.resumed = lambda peer=peer: resumed.append(peer)
            assert not costly.may_begin(peer, small)  # type: ignore[arg-type]  # as above
        for _ in range(3):
            await asyncio.sleep(0)
        assert resumed == [new, slow]
        for _ in range(40):
            costly.took(slow, len(small), 3, 0.0001)  # type: ignore[arg-type]  # as above
        assert not costly.slow_s
        assert not costly.is_slow(new, small)  # type: ignore[arg-type]  # as above

    on_a_loop(test)


def test_one_that_cannot_be_resumed_keeps_no_others_waiting() -> None:
    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        costly = CostlyRequests(TimeUsed(Clock()))
        first, broken, last = Peer(), Peer(), Peer()
        resumed: list[Peer] = []

        def fails() -> None:
            raise ValueError("a defect")

        broken.resumed = fails
        last.resumed = lambda: resumed.append(last)
        costly.took(first, len(FRAME), 3, 1.0)  # type: ignore[arg-type]  # as above
        for peer in (broken, last):
            assert not costly.may_begin(peer, FRAME)  # type: ignore[arg-type]  # as above
        for _ in range(4):
            await asyncio.sleep(0)
        assert resumed == [last]

    on_a_loop(test)


def test_who_had_less_time_goes_first_and_what_was_had_is_forgotten() -> None:
    clock = Clock()
    used = TimeUsed(clock)
    hostile, again, innocent, elsewhere = Peer(), Peer(), Peer(), Peer("10.0.0.2")
    used.add(hostile, 2.0)  # type: ignore[arg-type]  # as above
    used.add(innocent, 0.01)  # type: ignore[arg-type]  # as above
    used.add(elsewhere, 0.5)  # type: ignore[arg-type]  # as above

    def order() -> list[Peer]:
        return sorted([hostile, again, innocent, elsewhere], key=used.order)  # type: ignore[arg-type]  # as above

    # Connecting anew helps among those of an address, and not against others.
    assert order() == [elsewhere, again, innocent, hostile]
    clock.now += 30
    assert {used.order(peer) for peer in order()} == {(0.0, 0.0)}  # type: ignore[arg-type]  # as above


def test_a_lost_connection_is_not_remembered_for_what_goes_on_without_it() -> None:
    """A check of its batch ends after it: what it took is its address's."""

    async def test() -> None:
        runtime, clock = real_runtime(), Clock()
        used = TimeUsed(clock)
        checks = Checks(runtime.workers, used, clock)
        goes_on = threading.Event()
        peer = Peer()
        lost: Any = peer
        under_way = checks.submit(lost, 2000, goes_on.wait, 60.0)
        peer.is_lost = True
        used.forget(lost)
        clock.now += 1
        goes_on.set()
        await under_way
        assert not used._connections
        assert used.order(lost) == (1.0, 0.0)
        await runtime.workers.close()

    on_a_loop(test)


def test_a_lost_connection_is_not_resumed() -> None:
    async def test() -> None:
        costly = CostlyRequests(TimeUsed(Clock()))
        first, lost = Peer(), Peer()
        lost.resumed = lambda: pytest.fail("it is gone")
        costly.took(first, len(FRAME), 3, 1.0)  # type: ignore[arg-type]  # as above
        assert not costly.may_begin(lost, FRAME)  # type: ignore[arg-type]  # as above
        costly.forget(lost)  # type: ignore[arg-type]  # as above
        for _ in range(3):
            await asyncio.sleep(0)

    on_a_loop(test)


# --- looking into batches ---------------------------------------------------------------------------------------------


def test_long_checks_keep_no_quick_ones_waiting_and_each_connection_has_its_turn() -> None:
    async def test() -> None:
        runtime, clock = real_runtime(), Clock()
        checks = Checks(runtime.workers, TimeUsed(clock), clock)
        goes_on = threading.Event()
        hostile, innocent = Peer(), Peer()
        many: Any = hostile
        other: Any = innocent
        long = [checks.submit(many, LONG_FROM_RECORDS, goes_on.wait, 60.0) for _ in range(8)]
        assert await checks.submit(other, 2000, lambda: "quick") == "quick"
        assert not any(future.done() for future in long)
        waiting = checks.submit(other, None, lambda: "in turn")
        clock.now += 1
        goes_on.set()
        # Behind the one that was under way, and before the seven of the other connection that came first.
        await asyncio.wait([waiting, long[2]], return_when=asyncio.FIRST_COMPLETED)
        assert waiting.done()
        await asyncio.gather(*long)
        await runtime.workers.close()

    on_a_loop(test)


def test_who_wants_much_checked_at_once_lets_others_go_between() -> None:
    async def test() -> None:
        runtime, clock = real_runtime(), Clock()
        checks = Checks(runtime.workers, TimeUsed(clock), clock)
        goes_on = threading.Event()
        many: Any = Peer()
        other: Any = Peer()
        order: list[str] = []
        first = checks.submit(many, LONG_FROM_RECORDS, goes_on.wait, 60.0)
        rest = [checks.submit(many, LONG_FROM_RECORDS, order.append, "many") for _ in range(8)]
        # Of more records, and so never the shortest.
        larger = checks.submit(other, 3 * LONG_FROM_RECORDS, order.append, "other")
        goes_on.set()
        await asyncio.gather(first, larger, *rest)
        assert "other" in order[:4]
        await runtime.workers.close()

    on_a_loop(test)


def test_what_a_check_raises_is_for_who_waits_for_it() -> None:
    async def test() -> None:
        runtime = real_runtime()
        checks = Checks(runtime.workers, TimeUsed(runtime.clock.monotonic), runtime.clock.monotonic)
        peer: Any = Peer()

        def fails() -> None:
            raise ValueError("no batch")

        given_up = [checks.submit(peer, 1, fails) for _ in range(4)]
        given_up[2].cancel()
        for place in (0, 1, 3):
            with pytest.raises(ValueError, match="no batch"):
                await given_up[place]
        assert await checks.submit(peer, 1, lambda: 1) == 1
        await runtime.workers.close()

    on_a_loop(test)


# --- over sockets -----------------------------------------------------------------------------------------------------


@pytest.fixture
def kafka() -> Iterator[EmbeddedBroker]:
    with broker(None, {}) as running:
        with RawClient(running.port) as client:
            client.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        yield running


def test_all_costly_requests_are_answered_in_the_end(kafka: EmbeddedBroker) -> None:
    """Several on each of several connections; each in its order."""
    topics = [MetadataRequestTopic(name=f"no-{number}") for number in range(1000)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    clients = [RawClient(kafka.port) for _ in range(6)]
    for _ in range(3):
        for client in clients:
            client.send(request, 9)
    for client in clients:
        for _ in range(3):
            assert len(client.receive(request, 9)[1].topics) == 1000
        client.close()
    assert kafka.call(lambda inside: not inside.acceptor.costly._waiting)
    assert kafka.call(lambda inside: inside.acceptor.held_bytes) == 0


def test_what_is_no_request_counts_for_the_time_that_it_took(kafka: EmbeddedBroker) -> None:
    """Otherwise hundreds of connections may each have a whole one read in one turn of the loop."""
    topics = [MetadataRequestTopic(name=f"no-{number}") for number in range(1000)]
    whole = raw.frame(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 9, 1)
    took: list[int] = []

    def note(inside: Broker) -> None:
        before = inside.acceptor.costly.took

        def noted(connection: Any, frame_bytes: int, api_key: int, seconds: float) -> None:
            took.append(frame_bytes)
            before(connection, frame_bytes, api_key, seconds)

        inside.acceptor.costly.took = noted  # type: ignore[method-assign]  # to see what it is told

    kafka.call(note)
    cut = whole[4:-3]
    with RawClient(kafka.port) as client:
        client.socket.sendall(len(cut).to_bytes(4, "big") + cut)
        assert client.socket.recv(1) == b""
    assert took == [len(cut)]


def test_topics_of_one_configuration_are_described_alike(kafka: EmbeddedBroker) -> None:
    with RawClient(kafka.port) as client:
        client.request(raw.create_topics_request({"u": 1, "v": 1}), raw.CREATE_TOPICS_VERSION)
        client.request(raw.create_topics_request({"w": 1}, retention_ms="7"), raw.CREATE_TOPICS_VERSION)
        resources = [DescribeConfigsResource(resource_type=2, resource_name=name) for name in "tuvw"]
        found = client.request(DescribeConfigsRequest(resources=resources), 4).results
    values = [{entry.name: entry.value for entry in result.configs} for result in found]
    assert values[0] == values[1] == values[2]
    assert values[3] == values[0] | {"retention.ms": "7"}


def test_checks_that_wait_when_the_threads_are_closed_are_told() -> None:
    """Nobody would ever wake who waits for a check that is not begun."""

    async def test() -> None:
        runtime, clock = real_runtime(), Clock()
        checks = Checks(runtime.workers, TimeUsed(clock), clock)
        goes_on = threading.Event()
        peer: Any = Peer()
        under_way = [checks.submit(peer, LONG_FROM_RECORDS, goes_on.wait, 60.0) for _ in range(3)]
        closing = asyncio.ensure_future(runtime.workers.close())
        await asyncio.sleep(0)
        goes_on.set()
        assert await under_way[0]
        for waiting in under_way[1:]:
            with pytest.raises(RuntimeError, match="closed"):
                await waiting
        await closing

    on_a_loop(test)
