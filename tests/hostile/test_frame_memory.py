"""Peers that announce much and send little, or hold what they have sent, deny nobody else their requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.waiting import becomes

from headrace.broker.server.frame_memory import FrameLimits, FrameMemory
from headrace.net.frames import FrameReader, up_to

MIB = 1024 * 1024
LIMITS = FrameLimits(held_bytes_max=100 * MIB, turn_s=0.01)


class Peer:
    """As much of a connection as the memory of frames looks at."""

    def __init__(self, memory: FrameMemory, address: str, frame_bytes: int) -> None:
        self.memory, self.peer_host, self.frame_bytes = memory, address, frame_bytes
        self.arrived_bytes = 0
        self.frame_began = self.last_progress = 0.0
        self.is_reading = False
        self.aborted: str | None = None

    @property
    def is_reading_paused(self) -> bool:
        return not self.is_reading

    def receive(self, nbytes: int) -> None:
        self.arrived_bytes += nbytes
        self.memory.hold(self, nbytes)  # type: ignore[arg-type]  # a part of a connection

    def resume(self) -> None:
        self.is_reading = self.aborted is None and self.memory.may_go_on(self, self.frame_bytes)  # type: ignore[arg-type]  # as above

    hold_back = resume

    def abort(self, reason: str) -> None:
        self.aborted, self.is_reading = reason, False
        self.leave()

    def leave(self) -> None:
        self.memory.hold(self, -self.arrived_bytes)  # type: ignore[arg-type]  # as above
        self.arrived_bytes = 0
        self.memory.has_arrived(self)  # type: ignore[arg-type]  # as above


def on_a_loop(test: Callable[[], object]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]  # a coroutine


def test_a_frame_is_given_memory_as_it_arrives() -> None:
    """600 connections that announce 100 MB and send 17 KB hold 600 small pieces."""
    reader = FrameReader(up_to(100 * MIB))
    announced = (100 * MIB).to_bytes(4, "big")
    view = reader.buffer()
    view[:4] = announced
    reader.received(4)
    view = reader.buffer()
    sent = 17 * 1024
    while sent:
        view = reader.buffer()
        count = min(sent, len(view))
        reader.received(count)
        sent -= count
    assert reader.frame_bytes == 100 * MIB
    assert reader.allocated_bytes <= 64 * 1024


def test_a_large_frame_is_not_copied_again_as_it_grows() -> None:
    """A hundred megabytes that are zeroed and copied with every few of them keep the event loop busy for seconds."""
    reader = FrameReader(up_to(100 * MIB))
    reader.buffer()[:4] = (100 * MIB).to_bytes(4, "big")
    reader.received(4)
    buffers: dict[int, object] = {}
    arrived = 0
    while arrived < 75 * MIB:
        view = reader.buffer()
        assert len(view) <= MIB  # others have their turn
        buffers[id(view.obj)] = view.obj
        view[0] = 1
        arrived += len(view)
        assert reader.received(len(view)) == []
        assert reader.allocated_bytes <= max(arrived, 2 * MIB, 2 * arrived if arrived < 4 * MIB else 0)
    assert sum(len(buffer) for buffer in buffers.values() if isinstance(buffer, bytearray)) <= 8 * MIB
    assert sum(not isinstance(buffer, bytearray) for buffer in buffers.values()) == 1
    while True:
        view = reader.buffer()
        frames = reader.received(len(view))
        if frames:
            break
    assert len(frames[0]) == 100 * MIB
    assert reader.allocated_bytes == 0


def test_large_frames_leave_a_reserve_for_small_ones() -> None:
    memory = FrameMemory(LIMITS)
    large = [Peer(memory, f"10.0.0.{number}", 100 * MIB) for number in range(7)]
    for peer in large:
        peer.receive(11 * MIB)
    assert not memory._has_room(large[0], 100 * MIB)  # type: ignore[arg-type]  # a part of a connection
    assert memory._has_room(Peer(memory, "10.0.1.1", MIB), MIB)  # type: ignore[arg-type]  # as above


def test_one_address_cannot_have_all() -> None:
    memory = FrameMemory(LIMITS)
    hostile = [Peer(memory, "10.0.0.1", MIB) for _ in range(100)]
    innocent = Peer(memory, "10.0.0.2", MIB)
    for peer in hostile:
        if memory._has_room(peer, MIB):  # type: ignore[arg-type]  # as above
            peer.receive(MIB)
    assert memory.held_bytes == 88 * MIB
    assert memory._has_room(innocent, MIB)  # type: ignore[arg-type]  # as above


def test_who_holds_memory_and_sends_nothing_is_given_up_for_who_waits() -> None:
    async def test() -> None:
        memory = FrameMemory(LIMITS)
        stalled = [Peer(memory, f"10.0.0.{number}", 100 * MIB) for number in range(7)]
        for peer in stalled:
            peer.receive(14 * MIB)
        for peer in stalled:
            peer.resume()
        assert sum(peer.is_reading for peer in stalled) == 1
        innocent = Peer(memory, "10.0.1.1", 5 * MIB)
        innocent.resume()
        assert not innocent.is_reading
        await becomes(lambda: innocent.is_reading)
        # Only as many as it takes: then there is room for all others.
        assert 1 <= sum(peer.aborted is not None for peer in stalled) <= 3

    on_a_loop(test)


def test_small_frames_do_not_wait_for_stalled_ones_of_their_address_whatever_their_size() -> None:
    """Hundreds that send all but the end of a megabyte hold the memory as well as a few that hold many megabytes."""

    async def test() -> None:
        now = 0.0
        memory = FrameMemory(replace(LIMITS, turn_s=0.5, look_s=0.001), lambda: now)
        stalled = [Peer(memory, "10.0.0.1", MIB) for _ in range(90)]
        for peer in stalled:
            peer.resume()
            if peer.is_reading:
                peer.receive(MIB - 1)
        quick, elsewhere = Peer(memory, "10.0.0.1", MIB), Peer(memory, "10.0.0.2", 100 * MIB)
        for peer in (quick, elsewhere):
            peer.receive(MIB // 2)
        innocent = Peer(memory, "10.0.0.1", MIB // 8)
        innocent.resume()
        # None is late yet: one of them has the turn.
        assert not innocent.is_reading
        assert not any(peer.aborted for peer in stalled)
        now = 0.7
        quick.last_progress = quick.frame_began = 0.6
        await becomes(lambda: innocent.is_reading)
        assert 1 <= sum(peer.aborted is not None for peer in stalled) <= 3
        assert quick.aborted is elsewhere.aborted is None
        later = Peer(memory, "10.0.0.1", MIB // 8)
        later.receive(2 * MIB)
        later.resume()
        assert later.is_reading

    on_a_loop(test)


def test_who_makes_progress_is_read_to_its_end_and_only_one_is_over_the_bound() -> None:
    async def test() -> None:
        # Turns as long as the test: how fast this machine is says nothing about who makes progress.
        memory = FrameMemory(replace(LIMITS, turn_s=3_600.0))
        peers = [Peer(memory, f"10.0.0.{number}", 100 * MIB) for number in range(4)]
        for peer in peers:
            peer.receive(25 * MIB)
        for peer in peers:
            peer.resume()
        small = Peer(memory, "10.0.0.0", MIB)
        done: list[Peer] = []
        async with asyncio.timeout(60):
            while len(done) < 4:
                for peer in [peer for peer in peers if peer.is_reading and peer not in done]:
                    peer.receive(5 * MIB)
                    assert memory.held_bytes <= 200 * MIB
                    assert memory._has_room(small, MIB) or len(done) == 0  # type: ignore[arg-type]  # as above
                    peer.resume()
                    if peer.arrived_bytes >= 100 * MIB:
                        done.append(peer)
                        peer.leave()
                await asyncio.sleep(0.001)
        assert not any(peer.aborted for peer in peers)
        assert memory.held_bytes == 0

    on_a_loop(test)


@pytest.mark.parametrize("goes", ["leave", "abort"])
def test_the_next_goes_on_when_one_is_done(goes: str) -> None:
    async def test() -> None:
        memory = FrameMemory(LIMITS)
        first, second = (Peer(memory, f"10.0.0.{number}", 200 * MIB) for number in range(2))
        whole = Peer(memory, "10.0.0.9", 101 * MIB)
        whole.receive(101 * MIB)
        first.receive(MIB)
        first.resume()
        second.resume()
        assert (first.is_reading, second.is_reading) == (True, False)
        first.leave() if goes == "leave" else first.abort("gone")
        await becomes(lambda: second.is_reading)
        assert memory.held_bytes == 101 * MIB

    on_a_loop(test)


def test_who_waits_goes_on_though_the_one_before_it_has_room_again() -> None:
    """All that its own address holds is its own: nothing else will ever come free."""

    async def test() -> None:
        memory = FrameMemory(replace(LIMITS, turn_s=3_600.0))
        first, second = (Peer(memory, "10.0.0.1", 100 * MIB) for _ in range(2))
        other, done = Peer(memory, "10.0.0.2", 60 * MIB), Peer(memory, "10.0.0.3", 20 * MIB)
        first.receive(25 * MIB)
        second.receive(25 * MIB)
        other.receive(MIB)
        done.receive(25 * MIB)
        other.resume()
        first.resume()
        second.resume()
        assert (other.is_reading, first.is_reading, second.is_reading) == (True, False, False)
        done.leave()
        other.resume()
        assert other.is_reading
        await becomes(lambda: first.is_reading, every_s=0)
        assert not second.is_reading

    on_a_loop(test)


def test_who_is_not_read_for_another_reason_lets_others_have_its_turn() -> None:
    async def test() -> None:
        memory = FrameMemory(LIMITS)
        whole = Peer(memory, "10.0.0.9", 101 * MIB)
        whole.receive(101 * MIB)
        throttled, innocent = (Peer(memory, f"10.0.0.{number}", 100 * MIB) for number in range(2))
        for peer in (throttled, innocent):
            peer.receive(MIB)
            peer.resume()
        throttled.is_reading = False
        await becomes(lambda: innocent.is_reading)
        assert throttled.aborted is None

    on_a_loop(test)
