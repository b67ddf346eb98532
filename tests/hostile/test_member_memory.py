"""What members of groups tell of themselves, are called and are told is bounded all together."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.broker.raw import RawClient, response_class
from tests.waiting import eventually

from headrace.broker.coordinators import member_memory
from headrace.broker.coordinators.member_memory import MemberMemory
from headrace.errors import ErrorCode
from headrace.groups.classic.state import ClassicGroup as Group
from headrace.groups.classic.state import Member
from headrace.groups.consumer.group import ConsumerGroup, ConsumerMember
from headrace.groups.sessions import MemberSession
from headrace.protocol import codec
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from headrace.testing import broker

MIB = 1024 * 1024
LONG_NAME = "c" * 32_000


def joining(group_id: str = "g") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def member(name: str, **more: object) -> Member:
    return Member(name, None, "", "", 1, 1, (("range", b""),), **more)  # type: ignore[arg-type]  # its last fields


def test_names_ids_that_were_given_and_assignments_count() -> None:
    now = 0.0
    group = Group("g", 0)
    memory = MemberMemory(MIB, lambda: [group], lambda: now)
    for number in range(100):
        if memory.has_room(joining(), LONG_NAME):
            group.pending[f"{LONG_NAME}{number}"] = MemberSession()
        now += 1.0
    assert 15 < len(group.pending) < 32
    group.pending = {}
    group.members = {"m": member("m", assignment=bytes(MIB))}
    now += 1.0
    # Counted anew when those that came since could be too many.
    assert not all(memory.has_room(joining()) for _ in range(1000))
    assigned = SyncGroupRequest(group_id="g", assignments=[SyncGroupRequestAssignment(member_id="m", assignment=b"a")])
    assert not memory.has_room_to_assign(assigned)
    assert memory.has_room_to_assign(SyncGroupRequest(group_id="g"))
    group.members = {}
    now += 1.0
    assert memory.has_room_to_assign(assigned)


def test_what_members_of_consumer_groups_tell_counts_as_long_as_they_are_members() -> None:
    now = 0.0
    group = ConsumerGroup("g", 0, session_timeout_of=lambda _: 1)
    memory = MemberMemory(MIB, lambda: [group], lambda: now)
    topics = frozenset(f"topic-{number:04}" for number in range(300))
    for number in range(1_000):
        if memory.has_room_for("g", "client", f"m{number}", *topics):
            group.put_member(ConsumerMember(f"m{number}", topics=topics))
        now += 1.0
    assert 10 < len(group.members) < 60
    assert not memory.has_room_for("g", "client", "m", *topics)
    for found in list(group.members.values()):
        group.remove_member(found)
    now += 1.0
    assert memory.has_room_for("g", "client", "m", *topics)


def test_many_members_are_counted_in_more_than_one_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_memory, "COUNTED_AT_ONCE", 10)

    async def test() -> None:
        now = 1.0
        group = Group("g", 0, members={f"m{number}": member(f"m{number}") for number in range(95)})
        memory = MemberMemory(500_000, lambda: [group], lambda: now)
        while memory.has_room(joining()):
            pass
        assert memory._counting is not None
        assert not memory.has_room(joining())
        for _ in range(20):
            await asyncio.sleep(0)
        assert memory._counting is None
        assert memory.has_room(joining())
        assert 95 * 1024 < memory._counted < 95 * 2048

    asyncio.run(test())


def test_ids_that_are_asked_for_again_and_again_take_no_more_memory_than_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each asks for an id of 32 KB, and does not join with it."""
    with broker(None, {}) as running, RawClient(running.port) as client:
        eventually(lambda: client.request(FindCoordinatorRequest(key="g"), 0).error_code == ErrorCode.NONE)
        running.call(lambda inside: setattr(inside.groups.member_memory, "bytes_max", 4 * MIB))
        monkeypatch.setattr(member_memory, "RECOUNT_S", 0.0)
        request = joining()

        def asked() -> int:
            client.socket.sendall(b"".join(codec.encode_request(request, 4, 1, LONG_NAME)))
            _, answer = codec.decode_response(response_class(request), 4, client.read_frame())
            return int(answer.error_code)

        eventually(lambda: asked() == ErrorCode.MEMBER_ID_REQUIRED)
        codes = Counter(asked() for _ in range(300))
        assert set(codes) == {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert 50 < codes[ErrorCode.MEMBER_ID_REQUIRED] < 150
        assert running.call(lambda inside: inside.groups.member_memory.held_bytes()) <= 4 * MIB
