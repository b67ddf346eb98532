"""Records handed out to members of a share group, one by one, and what the broker keeps of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest import mock

from headrace.broker.coordinators.share_state_service import ShareStates
from headrace.errors import ErrorCode
from headrace.groups.share.state_records import StateKey
from headrace.protocol.messages.write_share_group_state import PartitionData
from headrace.runtime.simulated import Simulation, run_simulation

from . import raw
from .several import SeveralBrokers, create, run_several
from .share_members import ACCEPT, RELEASE, RENEW, Member, acquired, begin, write
from .sim import Client, SimulatedBroker

LOCK_S = 15
SETTINGS = {
    "share.coordinator.state.topic.num.partitions": "2",
    "group.share.record.lock.duration.ms": str(LOCK_S * 1000),
}
# Far above what the simulated network takes, far below the time that a lock lasts.
SOON_S = 2.0


class World:
    """A broker with a topic, and members of a group that reads it."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.broker = SimulatedBroker(simulation, SETTINGS)
        self.writer = Client(simulation, "writer")

    async def start(self) -> None:
        await self.broker.start()
        await self.writer.insist(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        await begin(self.writer, "g", self.topic_id)

    @property
    def topic_id(self) -> bytes:
        assert self.broker.broker is not None
        found = self.broker.broker.cluster.topic_id("t")
        assert found is not None
        return found

    def member(self, name: str) -> Member:
        return Member(Client(self.simulation, name), "g", name, self.topic_id)

    async def write(self, *values: bytes) -> None:
        await write(self.writer, "t", *values)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main(simulation: Simulation) -> None:
        world = World(simulation)
        await world.start()
        await scenario(world)
        await world.broker.stop()

    for seed in range(2):
        run_simulation(main, seed, time_max_s=900.0)


def test_what_was_accepted_stays_so_over_a_kill_and_what_was_held_is_delivered_again() -> None:
    @run
    async def scenario(world: World) -> None:
        await world.write(b"0", b"1", b"2", b"3")
        first = world.member("first")
        assert acquired(await first.fetch()) == [(0, 3, 1)]
        assert await first.acknowledge((0, 0, [ACCEPT]), (2, 2, [ACCEPT]), (3, 3, [RELEASE])) is ErrorCode.NONE
        world.broker.kill()
        await world.broker.start()
        second = world.member("second")
        # What was held and lost counts as never delivered, as in Kafka: only what was stored is known.
        assert acquired(await second.fetch()) == [(1, 1, 1), (3, 3, 2)]


def test_who_waits_gets_what_another_gives_back_and_what_its_connection_held() -> None:
    @run
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        await world.write(b"0", b"1")
        first, second = world.member("first"), world.member("second")
        assert acquired(await first.fetch()) == [(0, 1, 1)]
        waiting = asyncio.ensure_future(second.fetch(wait_ms=60_000))
        await asyncio.sleep(1)
        began = loop.time()
        assert await first.acknowledge((1, 1, [RELEASE])) is ErrorCode.NONE
        assert acquired(await waiting) == [(1, 1, 2)]
        waiting = asyncio.ensure_future(second.fetch(wait_ms=60_000))
        await asyncio.sleep(0.5)
        first.client.close()
        assert acquired(await waiting) == [(0, 0, 2)]
        assert loop.time() - began < SOON_S


def test_records_that_come_after_a_waiting_member_is_gone_go_to_the_next() -> None:
    @run
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        first, second = world.member("first"), world.member("second")
        waiting = asyncio.ensure_future(first.fetch(wait_ms=60_000))
        await asyncio.sleep(1)
        first.client.close()
        await asyncio.gather(waiting, return_exceptions=True)
        await world.write(b"0")
        began = loop.time()
        assert acquired(await second.fetch(wait_ms=20_000)) == [(0, 0, 1)]
        assert loop.time() - began < SOON_S


def test_a_session_that_closes_slowly_leaves_the_next_one_of_its_member_alone() -> None:
    write_state = ShareStates.write

    async def write_slowly(states: ShareStates, key: StateKey, data: PartitionData) -> ErrorCode:
        await asyncio.sleep(SOON_S)
        return await write_state(states, key, data)

    @run
    async def scenario(world: World) -> None:
        await world.write(b"0", b"1")
        member = world.member("member")
        assert acquired(await member.fetch()) == [(0, 1, 1)]
        with mock.patch.object(ShareStates, "write", write_slowly):
            closing = asyncio.ensure_future(member.acknowledge((0, 0, [ACCEPT]), epoch=-1))
            await asyncio.sleep(SOON_S / 2)
            member.begin_again()
            await asyncio.gather(closing, return_exceptions=True)
            await member.fetch(wait_ms=1)
            # What the session had is given back as its connection is lost, after its last acknowledgement.
            assert acquired(await member.fetch(wait_ms=20_000)) == [(1, 1, 2)]
            await asyncio.sleep(3 * SOON_S)
        assert await member.acknowledge((1, 1, [ACCEPT])) is ErrorCode.NONE


def test_a_lock_ends_in_time_unless_it_is_renewed() -> None:
    @run
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        await world.write(b"0", b"1")
        first, second = world.member("first"), world.member("second")
        began = loop.time()
        assert acquired(await first.fetch()) == [(0, 1, 1)]
        await asyncio.sleep(LOCK_S - 5)
        assert await first.acknowledge((1, 1, [RENEW])) is ErrorCode.NONE
        assert acquired(await second.fetch(wait_ms=60_000)) == [(0, 0, 2)]
        assert LOCK_S <= loop.time() - began < LOCK_S + SOON_S
        assert await first.acknowledge((0, 0, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
        assert await first.acknowledge((1, 1, [ACCEPT])) is ErrorCode.NONE


def test_records_that_come_wake_one_member_for_each() -> None:
    @run
    async def scenario(world: World) -> None:
        members = [world.member(f"member-{number}") for number in range(4)]
        waiting = [asyncio.ensure_future(one.fetch(wait_ms=60_000, records_max=1)) for one in members]
        await asyncio.sleep(1)
        for value in (b"0", b"1", b"2", b"3"):
            await world.write(value)
        found = [one for answer in await asyncio.gather(*waiting) for one in acquired(answer)]
        assert sorted(found) == [(offset, offset, 1) for offset in range(4)]


def test_records_go_on_over_lost_leaders_and_lost_coordinators() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "t", partitions=1, replicas=3) == ErrorCode.NONE
        topic_id = cluster.alive[0].cluster.topic_id("t")
        assert topic_id is not None

        def leader_of(topic: str, *without: int) -> int:
            for broker in cluster.alive:
                state = broker.image.partition(topic, 0)
                if broker.node_id not in without and state is not None and state.leader == broker.node_id:
                    partition = broker.replicas.partitions.get((topic, 0))
                    if partition is not None and partition.is_leader and partition.has_begun:
                        return broker.node_id
            return -1

        await cluster.until(lambda: leader_of("t") >= 0)
        leader = leader_of("t")
        await begin(cluster.client(leader), "g", topic_id, client_of=cluster.client)
        client = cluster.client(leader)
        await write(client, "t", *(str(number).encode() for number in range(10)))
        member = Member(client, "g", "m", topic_id)
        assert acquired(await member.fetch(wait_ms=5_000)) == [(0, 9, 1)]
        assert await member.acknowledge((0, 3, [ACCEPT])) is ErrorCode.NONE

        # The coordinator of the state goes: the next leader of its partition knows what was acknowledged.
        coordinator = leader_of("__share_group_state")
        if coordinator != leader:
            cluster.brokers[coordinator].kill()
            await cluster.until(lambda: leader_of("__share_group_state", coordinator) >= 0)
            assert await member.acknowledge((4, 4, [ACCEPT])) is ErrorCode.NONE
            await cluster.brokers[coordinator].start()
        else:
            assert await member.acknowledge((4, 4, [ACCEPT])) is ErrorCode.NONE

        # The leader of the partition goes: what was not acknowledged is delivered by the next one.
        await cluster.until(lambda: len(cluster.running(leader).image.topics["t"].partitions[0].isr) == 3)
        await cluster.until(
            lambda: len(cluster.running(leader).image.topics["__share_group_state"].partitions[0].isr) == 3
        )
        cluster.brokers[leader].kill()
        await cluster.until(lambda: leader_of("t", leader) >= 0)
        following = leader_of("t", leader)
        member.begin_again(cluster.client(following))
        assert acquired(await member.fetch(wait_ms=30_000)) == [(5, 9, 1)]
        assert await member.acknowledge((5, 9, [ACCEPT])) is ErrorCode.NONE
        assert acquired(await member.fetch(wait_ms=1_000)) == []

    settings = {**SETTINGS, "share.coordinator.state.topic.num.partitions": "1"}
    for seed in range(1, 5):
        run_several(main, seed, settings)


def test_the_topic_of_states_stays_short() -> None:
    async def main(simulation: Simulation) -> None:
        broker = SimulatedBroker(
            simulation,
            {
                **SETTINGS,
                "share.coordinator.state.topic.num.partitions": "1",
                "share.coordinator.snapshot.update.records.per.snapshot": "20",
                "share.coordinator.state.topic.prune.interval.ms": "5000",
            },
        )
        await broker.start()
        client = Client(simulation, "client")
        await client.insist(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        assert broker.broker is not None
        topic_id = broker.broker.cluster.topic_id("t")
        assert topic_id is not None
        await begin(client, "idle", topic_id)
        await begin(client, "g", topic_id)
        member = Member(Client(simulation, "member"), "g", "m", topic_id)
        for number in range(400):
            await write(client, "t", b"%d" % number)
            assert acquired(await member.fetch((number - 1, number - 1, [ACCEPT])) if number else await member.fetch())
        await asyncio.sleep(30)
        log = broker.broker.partition("__share_group_state", 0).log
        assert log.end_offset > 400
        assert log.end_offset - log.start_offset < 100
        broker.kill()
        await broker.start()
        # Its lock has ended meanwhile.
        again = Member(Client(simulation, "again"), "g", "m", topic_id)
        assert acquired(await again.fetch()) == [(399, 399, 2)]
        await broker.stop()

    run_simulation(main, 1, time_max_s=900.0)
