"""What clients do not read, and what members tell of themselves, has a bound over all of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from tests.broker.raw import RawClient
from tests.waiting import eventually

from headrace.broker.broker import Broker
from headrace.broker.server.answer_memory import AnswerMemory
from headrace.broker.server.connection import ServerConnection
from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.testing import EmbeddedBroker, broker

MIB = 1024 * 1024
NAMES = [f"no-{number:0200}" for number in range(2900)]
LARGE_ANSWER = DescribeConfigsRequest(
    resources=[DescribeConfigsResource(resource_type=2, resource_name=name) for name in NAMES]
)
VERSION = 4


@pytest.fixture
def kafka() -> Iterator[EmbeddedBroker]:
    with broker(None, {"offsets.topic.num.partitions": "1"}) as running:
        yield running


class Peer:
    """As much of a connection as is looked at."""

    def __init__(self, address: str) -> None:
        self.peer_host = address
        self.aborted: str | None = None

    def abort(self, reason: str) -> None:
        self.aborted = reason


def test_who_holds_longest_of_the_address_that_holds_most_is_given_up() -> None:
    memory = AnswerMemory(100)
    hostile, innocent = [Peer("10.0.0.1") for _ in range(5)], Peer("10.0.0.2")
    memory.hold(innocent, 10)  # type: ignore[arg-type]  # a part of a connection
    for peer in hostile:
        memory.hold(peer, 30)  # type: ignore[arg-type]  # as above
        memory.hold(peer, 29)  # type: ignore[arg-type]  # as above; it reads a little now and then
    assert [peer.aborted is not None for peer in hostile] == [True, True, False, False, False]
    assert innocent.aborted is None
    assert memory.held_bytes == 97
    memory.hold(innocent, 0)  # type: ignore[arg-type]  # as above
    for peer in hostile:
        memory.hold(peer, 0)  # type: ignore[arg-type]  # as above
    assert memory.held_bytes == 0


def little_in_the_kernel(connection: ServerConnection) -> None:
    """So that an answer of a megabyte is more than its buffers take."""
    assert connection._transport is not None
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def really_held(inside: Broker) -> int:
    return sum(
        connection._transport.get_write_buffer_size()
        for connection in inside.acceptor.connections
        if connection._transport is not None
    )


@pytest.mark.slow
def test_answers_that_nobody_reads_do_not_pile_up(kafka: EmbeddedBroker) -> None:
    """Others are answered meanwhile, and what was held is free once the connections are gone."""
    kafka.call(lambda inside: setattr(inside.acceptor.answers, "bytes_max", 2 * MIB))
    clients = [RawClient(kafka.port, receive_buffer_bytes=4096) for _ in range(10)]
    eventually(lambda: kafka.call(lambda inside: len(inside.acceptor.connections)) == 10)
    kafka.call(lambda inside: [little_in_the_kernel(connection) for connection in inside.acceptor.connections])
    for client in clients:
        client.send(LARGE_ANSWER, VERSION)
        assert kafka.call(lambda inside: inside.acceptor.answers.held_bytes) <= 2 * MIB
    with RawClient(kafka.port) as reading:
        assert len(reading.request(LARGE_ANSWER, VERSION).results) == len(NAMES)
    # Each waits for 850 KB. How much of it the kernel takes is its own affair, but never three quarters of it.
    eventually(lambda: kafka.call(lambda inside: len(inside.acceptor.connections)) < 10)
    assert kafka.call(really_held) <= 2 * MIB
    # Whoever was not given up gets its answer when it reads.
    assert len(clients[-1].receive(LARGE_ANSWER, VERSION)[1].results) == len(NAMES)
    for client in clients:
        client.close()
    eventually(lambda: kafka.call(lambda inside: inside.acceptor.answers.held_bytes) == 0)


def joining(group: str, told: bytes) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=6000,
        rebalance_timeout_ms=6000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=told)],
    )


def test_members_that_tell_much_find_no_place_and_small_ones_do(
    kafka: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(kafka.port) as client:

        def is_served() -> bool:
            client.request(FindCoordinatorRequest(key="g"), 0)
            return bool(client.request(joining("first", b"x"), 1).error_code == ErrorCode.NONE)

        eventually(is_served)
        kafka.call(lambda inside: setattr(inside.groups.member_memory, "bytes_max", MIB))
        errors = [client.request(joining(f"g{number}", bytes(200_000)), 1).error_code for number in range(6)]
        assert errors == [ErrorCode.NONE] * 3 + [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
        assert client.request(joining("small", b"x"), 1).error_code == ErrorCode.NONE
        too_much = joining("alone", bytes(5 * MIB))
        assert client.request(too_much, 1).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert caplog.text.count("members were refused") == 1
    held = kafka.call(lambda inside: inside.groups.member_memory.held_bytes())
    assert 600_000 < held <= MIB


def test_there_is_room_again_when_members_have_left(kafka: EmbeddedBroker) -> None:
    with RawClient(kafka.port) as client:

        def joins(group: str) -> JoinGroupResponse:
            client.request(FindCoordinatorRequest(key="g"), 0)
            answer: JoinGroupResponse = client.request(joining(group, bytes(200_000)), 1)
            return answer

        member = eventually(lambda: joins("first").member_id)
        kafka.call(lambda inside: setattr(inside.groups.member_memory, "bytes_max", 400_000))
        assert joins("second").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        client.request(LeaveGroupRequest(group_id="first", member_id=member), 0)
        eventually(lambda: joins("second").error_code == ErrorCode.NONE)
