"""Connections have bounds: how many, how long, how much memory, whose turn it is."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from headrace.broker.partitions import fetching
from headrace.broker.server.connection import REQUESTS_PER_TURN, ServerConnection
from headrace.errors import ErrorCode
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.runtime.real_disk import RealFile
from headrace.testing import EmbeddedBroker, broker

from . import raw
from .raw import RawClient

pytestmark = pytest.mark.slow

METADATA_VERSION = 9
MIB = 1024 * 1024
GRACE_S = 60.0


@pytest.fixture(autouse=True)
def nothing_failed(failures: list[str]) -> Iterator[None]:
    yield
    assert failures == []


@pytest.fixture
def long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that stops gives requests under way so much time that whether it waits can be told on any machine."""
    monkeypatch.setattr("headrace.broker.broker.SHUTDOWN_GRACE_S", GRACE_S)


@contextlib.contextmanager
def running(directory: Path, **settings: str) -> Iterator[EmbeddedBroker]:
    with broker(str(directory / "data"), {key.replace("_", "."): value for key, value in settings.items()}) as kafka:
        yield kafka


def limit(kafka: EmbeddedBroker, **limits: float) -> None:
    """Change the limits of a broker that runs."""

    def change(inside: object) -> None:
        acceptor = kafka.broker.acceptor
        acceptor.limits = dataclasses.replace(acceptor.limits, **limits)  # type: ignore[arg-type]  # floats and ints

    kafka.call(change)


def sweep(kafka: EmbeddedBroker) -> None:
    kafka.call(lambda inside: inside.acceptor.sweep())


def connection_of(kafka: EmbeddedBroker, client: RawClient) -> ServerConnection:
    port = client.socket.getsockname()[1]
    return eventually(
        lambda: kafka.call(
            lambda inside: next((found for found in inside.acceptor.connections if found.peer_port == port), None)
        )
    )


def answers(client: RawClient) -> bool:
    return bool(client.request(MetadataRequest(topics=None), METADATA_VERSION).brokers)


# --- how many ---------------------------------------------------------------------------------------------------------


def test_connections_over_the_total_are_turned_away(tmp_path: Path) -> None:
    with running(tmp_path, max_connections="3") as kafka, contextlib.ExitStack() as stack:
        first = [stack.enter_context(RawClient(kafka.port)) for _ in range(3)]
        assert all(map(answers, first))
        with RawClient(kafka.port) as extra:
            assert extra.is_closed_by_peer()
        assert all(map(answers, first))
        first[0].close()
        eventually(lambda: kafka.call(lambda inside: len(inside.acceptor.connections)) == 2)
        assert answers(stack.enter_context(RawClient(kafka.port)))


def test_connections_of_one_address_are_bounded(tmp_path: Path) -> None:
    with running(tmp_path, max_connections_per_ip="2") as kafka, contextlib.ExitStack() as stack:
        one, two, three = (stack.enter_context(RawClient(kafka.port)) for _ in range(3))
        assert answers(one)
        assert answers(two)
        assert three.is_closed_by_peer()


def test_an_address_may_have_a_number_of_its_own(tmp_path: Path) -> None:
    settings = {"max_connections_per_ip": "1", "max_connections_per_ip_overrides": "127.0.0.1:3, 10.0.0.1:7"}
    with running(tmp_path, **settings) as kafka, contextlib.ExitStack() as stack:
        allowed = [stack.enter_context(RawClient(kafka.port)) for _ in range(3)]
        assert all(map(answers, allowed))
        assert stack.enter_context(RawClient(kafka.port)).is_closed_by_peer()


# --- how long ---------------------------------------------------------------------------------------------------------


def test_idle_connections_are_closed_and_busy_ones_are_not(tmp_path: Path) -> None:
    with running(tmp_path) as kafka, RawClient(kafka.port) as idle, RawClient(kafka.port) as waiting:
        kafka.call(lambda inside: inside.metadata.ensure_internal("__consumer_offsets"))
        waiting.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        assert answers(idle)
        limit(kafka, idle_s=0.2)
        request = raw.fetch_request("t", 0, 0, max_wait_ms=60_000)
        waiting.send(request, raw.FETCH_VERSION)
        busy = connection_of(kafka, waiting)
        eventually(lambda: busy.is_handling)
        began = connection_of(kafka, idle).last_progress
        eventually(lambda: time.monotonic() - began > 0.3)
        sweep(kafka)
        limit(kafka, idle_s=600)
        assert idle.is_closed_by_peer()
        with RawClient(kafka.port) as writing:
            writing.request(raw.produce_request("t", 0, raw.batch([b"x"])), raw.PRODUCE_VERSION)
        assert waiting.receive(request, raw.FETCH_VERSION)[1].error_code == 0


def test_a_frame_that_never_ends_is_given_up_however_slowly_it_drips(tmp_path: Path) -> None:
    with running(tmp_path) as kafka, RawClient(kafka.port) as slow:
        assert answers(slow)
        # Whatever comes a byte at a time earns next to no time, however fast the machine is.
        limit(kafka, stalled_s=0.3, frame_bytes_per_s_min=MIB)
        slow.socket.sendall(struct.pack(">i", MIB))
        dripping = connection_of(kafka, slow)
        deadline = time.monotonic() + 60
        with contextlib.suppress(ConnectionError):
            while dripping.close_reason is None and time.monotonic() < deadline:
                slow.socket.sendall(b"x")
                sweep(kafka)
        assert "did not arrive" in (dripping.close_reason or "")
        assert slow.is_closed_by_peer()


def test_a_large_frame_gets_time_for_what_has_come_of_it(tmp_path: Path) -> None:
    with running(tmp_path) as kafka, RawClient(kafka.port) as steady:
        assert answers(steady)
        limit(kafka, stalled_s=0.0, frame_bytes_per_s_min=1_000)
        whole = raw.frame(raw.produce_request("t", 0, raw.batch([bytes(100_000)])), raw.PRODUCE_VERSION)
        steady.socket.sendall(whole[:50_000])
        connection = connection_of(kafka, steady)
        eventually(lambda: connection.arrived_bytes >= 40_000)
        sweep(kafka)
        steady.socket.sendall(whole[50_000:])
        assert steady.read_frame()


def test_a_stranger_that_says_nothing_is_hung_up_on(tmp_path: Path) -> None:
    with running(tmp_path) as kafka, RawClient(kafka.port) as silent:
        connection = connection_of(kafka, silent)
        limit(kafka, stalled_s=0.1)
        eventually(lambda: time.monotonic() - connection.last_progress > 0.2)
        sweep(kafka)
        assert silent.is_closed_by_peer()


# --- answers that nobody reads ----------------------------------------------------------------------------------------


def fill(client: RawClient, topic: str, megabytes: int) -> None:
    client.request(raw.create_topics_request({topic: 1}), raw.CREATE_TOPICS_VERSION)
    for _ in range(megabytes):
        answer = raw.produced(
            client.request(raw.produce_request(topic, 0, raw.batch([bytes(MIB - 1024)])), raw.PRODUCE_VERSION)
        )
        assert answer.error_code == 0


def test_a_client_that_does_not_read_costs_little_memory_and_nobody_time(tmp_path: Path) -> None:
    with running(tmp_path) as kafka, contextlib.ExitStack() as stack:
        deaf = stack.enter_context(RawClient(kafka.port, receive_buffer_bytes=4096))
        other = stack.enter_context(RawClient(kafka.port))
        fill(other, "t", 20)
        request = raw.fetch_request("t", 0, 0, max_bytes=50 * MIB)
        for _ in range(50):
            deaf.send(request, raw.FETCH_VERSION)
        connection = connection_of(kafka, deaf)
        eventually(lambda: connection.is_backed_up)
        assert answers(other)
        transport = connection._transport
        assert transport is not None
        assert kafka.call(lambda _: transport.get_write_buffer_size()) <= MIB
        assert kafka.call(lambda inside: inside.acceptor.memory.held_bytes) < 64 * 1024
        # It is given up after a while, also if it goes on sending.
        limit(kafka, stalled_s=0.1)
        eventually(lambda: time.monotonic() - connection.last_written > 0.2)
        deaf.socket.sendall(b"\0")
        sweep(kafka)
        eventually(lambda: connection not in kafka.broker.acceptor.connections)


def test_a_client_that_does_not_read_is_left_behind_by_a_broker_that_stops(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with running(tmp_path) as kafka:
            deaf = stack.enter_context(RawClient(kafka.port, receive_buffer_bytes=4096))
            fill(deaf, "t", 20)
            deaf.send(raw.fetch_request("t", 0, 0, max_bytes=50 * MIB), raw.FETCH_VERSION)
            connection = connection_of(kafka, deaf)
            eventually(lambda: connection.is_backed_up)
        assert not kafka.broker.acceptor.connections
        assert connection._transport is None


def test_an_answer_that_waits_for_the_disk_is_not_one_that_nobody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads all that it is sent has never made anybody wait, and that may be long ago."""
    entered, release = threading.Event(), threading.Event()

    def not_in_memory(file: RealFile, *arguments: object) -> None:
        return None

    read = RealFile.read

    def slow_read(file: RealFile, position: int, length: int) -> bytes:
        if "/t-0/" in file.path and file.path.endswith(".log"):
            entered.set()
            assert release.wait(60)
        return read(file, position, length)

    with running(tmp_path) as kafka, RawClient(kafka.port) as client:
        fill(client, "t", 1)
        monkeypatch.setattr(RealFile, "read_into_nowait", not_in_memory)
        monkeypatch.setattr(RealFile, "send_nowait", not_in_memory)
        monkeypatch.setattr(RealFile, "read", slow_read)
        connection = connection_of(kafka, client)
        limit(kafka, stalled_s=0.1)
        eventually(lambda: time.monotonic() - connection.last_written > 0.2)
        request = raw.fetch_request("t", 0, 0, max_bytes=2 * MIB)
        client.send(request, raw.FETCH_VERSION)
        try:
            assert entered.wait(60)
            sweep(kafka)
        finally:
            release.set()
        assert connection.close_reason is None
        found = raw.fetched(client.receive(request, raw.FETCH_VERSION)[1])
        assert len(found.records or b"") > MIB - 1024


def test_many_cold_partitions_are_not_read_ahead_of_a_slow_reader(tmp_path: Path) -> None:
    """A fetch's small slices are read before it is answered, but only up to a bound over all of them."""
    read: list[int] = []
    with running(tmp_path) as kafka, RawClient(kafka.port) as client:
        client.request(raw.create_topics_request({"t": 60}), raw.CREATE_TOPICS_VERSION)
        for index in range(60):
            client.request(raw.produce_request("t", index, raw.batch([bytes(30_000)])), raw.PRODUCE_VERSION)
        wanted = [FetchPartition(partition=index, partition_max_bytes=MIB) for index in range(60)]
        request = FetchRequest(max_bytes=50 * MIB, topics=[FetchTopic(topic="t", partitions=wanted)])
        with pytest.MonkeyPatch.context() as patch:
            unread = fetching.unread
            patch.setattr(fetching, "unread", lambda found: read.append(found.length) or unread(found))
            answer = client.request(request, raw.FETCH_VERSION)
        assert sum(len(part.records or b"") for part in answer.responses[0].partitions) > 60 * 30_000
        assert 60 * 30_000 - sum(read) <= fetching.READ_AHEAD_ALL_BYTES


# --- floods -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_flood_is_answered_in_order_with_a_bounded_queue(tmp_path: Path) -> None:
    with running(tmp_path) as kafka, RawClient(kafka.port) as client:
        count = 3_000
        one = ApiVersionsRequest()
        flood = b"".join(raw.frame(one, 0, number) for number in range(count))
        queued: list[int] = []
        connection = connection_of(kafka, client)
        sender = threading.Thread(target=client.socket.sendall, args=(flood,))
        sender.start()
        for number in range(count):
            correlation_id, _ = client.receive(one, 0)
            assert correlation_id == number
            if number % 100 == 0:
                queued.append(len(connection._frames))
        sender.join()
        assert max(queued) < 2_000  # one chunk's worth


@pytest.mark.slow
def test_a_flood_leaves_the_others_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two turns of one connection every other one gets its own."""
    turns: list[tuple[int, int]] = []
    handle = ServerConnection._handle_next

    def counting(connection: ServerConnection, *arguments: Any, **options: Any) -> None:
        before = len(connection._frames)
        handle(connection, *arguments, **options)
        if before:
            turns.append((connection.peer_port, before - len(connection._frames)))

    monkeypatch.setattr(ServerConnection, "_handle_next", counting)
    with running(tmp_path) as kafka, RawClient(kafka.port) as flooding, RawClient(kafka.port) as quiet:
        flood = b"".join(raw.frame(ApiVersionsRequest(), 0, number) for number in range(1_000))
        reading = threading.Thread(target=lambda: [flooding.read_frame() for _ in range(1_000)])
        reading.start()
        flooding.socket.sendall(flood)
        for _ in range(20):
            assert answers(quiet)
        reading.join()
    assert max(handled for _, handled in turns) <= REQUESTS_PER_TURN
    assert len({port for port, _ in turns}) == 2


# --- memory of requests -----------------------------------------------------------------------------------------------


def test_large_requests_wait_while_others_take_all_the_room(tmp_path: Path) -> None:
    with running(tmp_path, queued_max_request_bytes=str(2 * MIB)) as kafka, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(kafka.port)) for _ in range(6)]
        small = stack.enter_context(RawClient(kafka.port))
        small.request(raw.create_topics_request({"t": 1}, max_message_bytes="10000000"), raw.CREATE_TOPICS_VERSION)
        assert all(map(answers, clients))
        frames = [
            raw.frame(raw.produce_request("t", 0, raw.batch([bytes(5 * MIB)])), raw.PRODUCE_VERSION) for _ in clients
        ]
        held: list[int] = []
        memory = kafka.broker.acceptor.memory
        memory.limits = dataclasses.replace(memory.limits, turn_s=600.0)
        hold = memory.hold

        def noting(connection: ServerConnection, nbytes: int) -> None:
            hold(connection, nbytes)
            held.append(memory.held_bytes)

        memory.hold = noting  # type: ignore[method-assign]  # to look at what it counts
        senders = [
            threading.Thread(target=client.socket.sendall, args=(whole[:-1],)) for client, whole in zip(clients, frames)
        ]
        for sender in senders:
            sender.start()
        connections = [connection_of(kafka, client) for client in clients]
        eventually(lambda: sum(connection.is_reading_paused for connection in connections) == len(clients) - 1)
        assert answers(small), "small requests go on"
        # The one that may go on ends, then the next, and so on: nobody is left behind.
        finishers = [threading.Thread(target=client.socket.sendall, args=(b"\0",)) for client in clients]
        for finisher in finishers:
            finisher.start()
        for client in clients:
            assert raw.produced(client.receive(raw.produce_request("t", 0, b""), raw.PRODUCE_VERSION)[1])
        for thread in (*senders, *finishers):
            thread.join()
        assert max(held) < 2 * MIB + 12 * MIB, "the budget, and what one frame more needs while its buffer grows"
        eventually(lambda: kafka.broker.acceptor.memory.held_bytes == 0)


def test_memory_of_requests_is_given_back_when_clients_go_away(tmp_path: Path) -> None:
    with running(tmp_path) as kafka, RawClient(kafka.port) as stays:
        assert answers(stays)
        for _ in range(20):
            with RawClient(kafka.port) as client:
                assert answers(client)
                client.socket.sendall(struct.pack(">i", 3 * MIB) + bytes(2 * MIB))
        eventually(lambda: kafka.call(lambda inside: len(inside.acceptor.connections)) == 1)
        assert kafka.broker.acceptor.memory.held_bytes == 0


# --- waiting without blocking -----------------------------------------------------------------------------------------


def test_a_slow_disk_blocks_nobody_who_does_not_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    entered = threading.Event()
    sync = RealFile.sync

    def slow_sync(file: RealFile) -> None:
        if "/slow-0/" in file.path and file.path.endswith(".log"):
            entered.set()
            assert release.wait(60)
        sync(file)

    monkeypatch.setattr(RealFile, "sync", slow_sync)
    with running(tmp_path) as kafka, RawClient(kafka.port) as patient, RawClient(kafka.port) as other:
        other.request(raw.create_topics_request({"slow": 1}, flush_messages="1"), raw.CREATE_TOPICS_VERSION)
        other.request(raw.create_topics_request({"quick": 1}), raw.CREATE_TOPICS_VERSION)
        request = raw.produce_request("slow", 0, raw.batch([b"v"]))
        patient.send(request, raw.PRODUCE_VERSION)
        assert entered.wait(60)
        try:
            for value in (b"1", b"2"):
                done = raw.produced(
                    other.request(raw.produce_request("quick", 0, raw.batch([value])), raw.PRODUCE_VERSION)
                )
                assert done.error_code == 0
            assert answers(other)
            read = raw.fetched(other.request(raw.fetch_request("quick", 0, 0), raw.FETCH_VERSION))
            assert [value for _, value in raw.values_of(read.records)] == [b"1", b"2"]
            unsynced = raw.fetched(other.request(raw.fetch_request("slow", 0, 0), raw.FETCH_VERSION))
            assert unsynced.high_watermark == 0, "what is not on the disk is not seen"
        finally:
            release.set()
        assert raw.produced(patient.receive(request, raw.PRODUCE_VERSION)[1]).base_offset == 0
        seen = raw.fetched(other.request(raw.fetch_request("slow", 0, 0), raw.FETCH_VERSION))
        assert seen.high_watermark == 1


def test_a_fetch_that_waits_blocks_nobody(tmp_path: Path) -> None:
    with running(tmp_path) as kafka, contextlib.ExitStack() as stack:
        other = stack.enter_context(RawClient(kafka.port))
        other.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        request = raw.fetch_request("t", 0, 0, max_wait_ms=30_000)
        waiting = [stack.enter_context(RawClient(kafka.port)) for _ in range(50)]
        for client in waiting:
            client.send(request, raw.FETCH_VERSION)
        assert answers(other)
        other.request(raw.produce_request("t", 0, raw.batch([b"at last"])), raw.PRODUCE_VERSION)
        for client in waiting:
            found = raw.fetched(client.receive(request, raw.FETCH_VERSION)[1])
            assert [value for _, value in raw.values_of(found.records)] == [b"at last"]


def test_a_produce_goes_on_when_its_client_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records were taken: they must become visible although nobody hears the answer."""
    release, entered = threading.Event(), threading.Event()
    sync = RealFile.sync

    def slow_sync(file: RealFile) -> None:
        if "/t-0/" in file.path and file.path.endswith(".log"):
            entered.set()
            assert release.wait(60)
        sync(file)

    monkeypatch.setattr(RealFile, "sync", slow_sync)
    with running(tmp_path) as kafka, RawClient(kafka.port) as other:
        other.request(raw.create_topics_request({"t": 1}, flush_messages="1"), raw.CREATE_TOPICS_VERSION)
        with RawClient(kafka.port) as hasty:
            hasty.send(raw.produce_request("t", 0, raw.batch([b"v"])), raw.PRODUCE_VERSION)
            assert entered.wait(60)
        eventually(lambda: kafka.call(lambda inside: len(inside.acceptor.connections)) == 1)
        release.set()
        eventually(lambda: kafka.call(lambda inside: inside.partition("t", 0).high_watermark) == 1)


def test_a_topic_is_made_whole_when_its_client_is_gone(tmp_path: Path) -> None:
    with running(tmp_path) as kafka:
        for number in range(20):
            with RawClient(kafka.port) as hasty:
                hasty.send(raw.create_topics_request({f"t{number}": 3}), raw.CREATE_TOPICS_VERSION)
                connection = connection_of(kafka, hasty)
                eventually(lambda connection=connection: connection.has_been_valid)
        with RawClient(kafka.port) as other:
            other.request(raw.create_topics_request({"last": 1}), raw.CREATE_TOPICS_VERSION)
        offsets = kafka.call(lambda inside: (inside.image.offset, inside.metadata._store._log.end_offset))
        assert offsets[0] == offsets[1], "the image is that of all that is stored"
        for name in kafka.call(lambda inside: list(inside.image.topics)):
            count = kafka.broker.cluster.partition_count(name)
            assert count is not None
            assert all((name, index) in kafka.broker.replicas.partitions for index in range(count))


# --- ending -----------------------------------------------------------------------------------------------------------


def test_a_broker_with_waiting_requests_stops_at_once(tmp_path: Path, long_grace: None) -> None:
    settings = {"group_initial_rebalance_delay_ms": "60000", "offsets_topic_num_partitions": "1"}
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(running(tmp_path, **settings))
        fetching, joining = (stack.enter_context(RawClient(kafka.port)) for _ in range(2))
        fetching.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        kafka.call(lambda inside: inside.metadata.ensure_internal("__consumer_offsets"))
        protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        fetching.send(raw.fetch_request("t", 0, 0, max_wait_ms=60_000), raw.FETCH_VERSION)
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="nobody")
        eventually(lambda: joining.request(heartbeat, 0).error_code == ErrorCode.UNKNOWN_MEMBER_ID)  # it is loaded
        joining.send(join, 1)
        for client in (fetching, joining):
            connection = connection_of(kafka, client)
            eventually(lambda connection=connection: connection.is_handling)
        began = time.monotonic()
        kafka.call(lambda inside: inside.stop())
        assert time.monotonic() - began < GRACE_S / 2
        assert fetching.is_closed_by_peer()
        assert joining.is_closed_by_peer()


def test_connections_that_cannot_be_answered_do_not_keep_a_broker_from_stopping(
    tmp_path: Path, long_grace: None
) -> None:
    with running(tmp_path) as kafka, RawClient(kafka.port, receive_buffer_bytes=4096) as deaf:
        with RawClient(kafka.port) as other:
            fill(other, "t", 10)
        for _ in range(10):
            deaf.send(raw.fetch_request("t", 0, 0, max_bytes=50 * MIB), raw.FETCH_VERSION)
        connection = connection_of(kafka, deaf)
        eventually(lambda: connection.is_backed_up)
        began = time.monotonic()
        kafka.call(lambda inside: inside.stop())
        assert time.monotonic() - began < GRACE_S / 2
        with contextlib.suppress(OSError):
            deaf.socket.shutdown(socket.SHUT_RDWR)
