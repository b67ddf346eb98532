"""Faults as they are put into a running cluster: each begins, lasts for a while and is over."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from headrace.client.admin.types import ConfigResource, ElectionType, NewTopic, ResourceType
from headrace.cluster.image import PartitionImage
from headrace.errors import HeadraceError, UnknownTopicOrPartitionError
from headrace.runtime.simulated import CrashModel, DiskFault, HostDiedError, WorkModel
from headrace.testing.simulated.cluster import SimulatedBroker, SimulatedCluster
from headrace.testing.simulated.faults import DATA, Trouble
from headrace.testing.simulated.history import History
from headrace.testing.simulated.metadata_prefix import stored_image
from headrace.testing.simulated.operators import OPERATORS
from headrace.testing.simulated.owners import OWNERS
from headrace.testing.simulated.plans import CLOCK_STEP, CONFIGURED, MORE_PARTITIONS, Plan
from headrace.testing.simulated.timeline import CLUSTER, STORE, Timeline
from headrace.testing.simulated.topic_configs import PASSING, change_of
from headrace.topics import TopicPartition

_RESTART_S = 0.5
_SLOW_DISK = WorkModel(usual_s_max=0.1, slow_s_max=2.0, slow_probability=0.2)
_QUICK_DISK = WorkModel()
_OPERATOR = "operator"
_OPERATOR_S = 5.0
_TWO_MORE = 0.3
#: How often, and how long, a fault looks for the state that it waits for.
_LOOK_S = 0.0005
_LOOK_S_MAX = 3.0
#: Hosts of members of groups; a parallel consumer, and a static member, has one for each of its lives.
_MEMBER = re.compile(r"member-\d+(-\d+)?|parallel-\d+-\d+")
#: A topic that is deleted and made again.
AGAIN = "again"


@dataclass(frozen=True, slots=True)
class _Scene:
    """What faults that belong together are about: a partition, and who was what to it when they began."""

    partition: TopicPartition | None
    nodes: dict[str, int]


class Troubles:
    """Puts a plan's faults into a cluster. A broker that is down or hangs is left alone by other faults of its kind."""

    def __init__(self, cluster: SimulatedCluster, plan: Plan, timeline: Timeline, history: History) -> None:
        self.cluster = cluster
        self.plan = plan
        self.timeline = timeline
        self.history = history
        self._scenes: dict[int, _Scene] = {}
        self._making_again = asyncio.Lock()
        self._configuring = asyncio.Lock()
        model = cluster.simulation.network.model
        self._usual = model.slow_probability, model.slow_delay_s_max
        #: The levels of what makes the network slow at the moment.
        self._slow: list[float] = []
        #: Brokers that some fault has taken away.
        self.taken: set[int] = set()
        #: Brokers that ended uncleanly and have not been in sync everywhere since; and which of them lost their power.
        self.unclean: set[int] = set()
        self.unpowered: set[int] = set()
        #: Brokers that were given an empty disk.
        self.emptied: set[int] = set()

    async def run(self) -> None:
        """All of them, each at its time; returns when the last is over."""
        await asyncio.gather(*(self._one(trouble) for trouble in self.plan.troubles))

    async def _one(self, trouble: Trouble) -> None:
        await asyncio.sleep(trouble.at_s)
        scene = self._scene(trouble)
        if trouble.when:
            await self._until(trouble.when, scene)
        await _DO[trouble.kind](self, trouble)

    def clear(self) -> None:
        """End all that could still last."""
        cluster = self.cluster
        cluster.heal()
        for broker in cluster.brokers.values():
            broker.host.resume()
            broker.host.use_disk(_QUICK_DISK)
            broker.host.disk.heal()
            cluster.empty_disk(broker.node_id)

    # --- who is meant

    def _scene(self, trouble: Trouble) -> _Scene:
        if trouble.scene == 0:
            return self._look(trouble)
        if trouble.scene not in self._scenes:
            self._scenes[trouble.scene] = self._look(trouble)
        return self._scenes[trouble.scene]

    def _look(self, trouble: Trouble) -> _Scene:
        image = self.cluster.newest_image
        topic = None if image is None else image.topics.get(trouble.topic)
        if topic is None or not topic.partitions:
            # It is not there yet, or not all of it.
            return _Scene(None, {"leader": 1, "second": 2, "third": 3})
        controller = self.cluster.controller_id
        indexes = list(range(len(topic.partitions)))
        if trouble.leader != "any":
            is_wanted = trouble.leader == "controller"
            fitting = [index for index in indexes if (topic.partitions[index].leader == controller) == is_wanted]
            apart = [index for index in fitting if controller not in topic.partitions[index].replicas]
            indexes = apart or fitting or indexes
        index = indexes[int(trouble.level * len(indexes))]
        state = topic.partitions[index]
        leader = state.leader if state.leader in self.cluster.brokers else state.replicas[0]
        others = [node_id for node_id in dict.fromkeys((*state.replicas, *self.cluster.brokers)) if node_id != leader]
        second, third = sorted(others[:2], key=lambda node_id: node_id == controller)
        return _Scene(TopicPartition(trouble.topic, index), {"leader": leader, "second": second, "third": third})

    def _state(self, partition: TopicPartition | None) -> PartitionImage | None:
        image = self.cluster.newest_image
        return None if image is None or partition is None else image.partition(*partition)

    def node(self, trouble: Trouble, name: str | None = None) -> int:
        """The broker that a fault means by a name (its own, unless given)."""
        name = trouble.who if name is None else name
        if name.isdigit():
            return int(name)
        if name == "controller":
            return self.cluster.controller_id or 1
        scene = self._scene(trouble)
        if name == "leading":
            state = self._state(scene.partition)
            return state.leader if state is not None and state.leader >= 0 else scene.nodes["leader"]
        return scene.nodes[name]

    def _name(self, trouble: Trouble) -> str:
        return self.cluster.brokers[self.node(trouble)].name

    def _other_name(self, trouble: Trouble) -> str:
        """Another than the one that the fault is of."""
        node, other = self.node(trouble), self.node(trouble, trouble.other)
        if other == node:
            other = next(node_id for node_id in self.cluster.brokers if node_id != node)
        return self.cluster.brokers[other].name

    async def _until(self, when: str, scene: _Scene) -> None:
        """Wait for a state, but not for ever."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LOOK_S_MAX * self.plan.pace
        while not _STATES[when](self, scene) and loop.time() < deadline:
            await asyncio.sleep(_LOOK_S)
        if loop.time() < deadline:
            self.timeline.saw(f"a fault begins when {when}")

    def _is_coming_in(self, scene: _Scene) -> bool:
        """Whether a leader has asked for more in-sync replicas, and has no answer."""
        for broker in self.cluster.alive:
            partition = None if scene.partition is None else broker.replicas.partitions.get(scene.partition)
            if partition is not None and partition.state is not None and partition.state.pending is not None:
                return len(partition.state.pending.isr) > len(partition.state.term.isr)
        return False

    # --- brokers

    def take(self, trouble: Trouble) -> SimulatedBroker | None:
        """The broker, unless another fault has it, or it is not up."""
        broker = self.cluster.brokers[self.node(trouble)]
        if broker.node_id in self.taken or broker.broker is None:
            return None
        self.taken.add(broker.node_id)
        return broker

    async def bring_back(self, broker: SimulatedBroker) -> None:
        """Start it again, as whoever runs it would, until it serves."""
        while broker.broker is None:
            try:
                await broker.start()
            except (HostDiedError, HeadraceError) as error:
                self.timeline.add(broker.name, "log", f"could not be started: {error}")
                await asyncio.sleep(_RESTART_S)
        self.timeline.add(broker.name, "fault", "serves again")
        self.taken.discard(broker.node_id)

    def may_end(self) -> bool:
        """Whether a broker may end uncleanly. Nobody can tell afterwards whether its machine had lost its power, so
        while one that did is not in sync, records may be lost that are on all others."""
        self._forget_synced()
        return not self.unpowered

    async def kill(self, trouble: Trouble) -> None:
        if not self.may_end():
            await self.pause(trouble)
            return
        broker = self.take(trouble)
        if broker is not None:
            self.unclean.add(broker.node_id)
            with self.timeline.span(broker.name, "killed"):
                broker.kill()
                await asyncio.sleep(trouble.for_s)
            await self.bring_back(broker)

    async def power(self, trouble: Trouble) -> None:
        self._forget_synced()
        # Acknowledged means on min.insync.replicas machines: it may be lost when so many lose their power.
        if self.plan.min_isr < 2 or self.unclean:
            await self.kill(trouble)
            return
        broker = self.take(trouble)
        if broker is not None:
            self.unclean.add(broker.node_id)
            self.unpowered.add(broker.node_id)
            with self.timeline.span(broker.name, "power lost"):
                broker.lose_power(CrashModel.HARSH if trouble.level < 0.5 else CrashModel.ORDERED)
                await asyncio.sleep(trouble.for_s)
            await self.bring_back(broker)

    def _forget_synced(self) -> None:
        """A broker that is in sync everywhere, and known to be there, has all that was ever acknowledged."""
        image = self.cluster.newest_image
        for node_id in sorted(self.unclean):
            broker = self.cluster.brokers[node_id].broker
            # One that a fault has taken may have its end before it.
            if broker is None or image is None or node_id in self.taken:
                continue
            known = image.brokers.get(node_id)
            if known is None or known.epoch != broker.broker_epoch or not known.is_active:
                continue
            states = [state for topic in image.topics.values() for state in topic.partitions]
            if all(node_id in state.isr for state in states if node_id in state.replicas):
                self.unclean.discard(node_id)
                self.unpowered.discard(node_id)

    async def stop(self, trouble: Trouble) -> None:
        broker = self.take(trouble)
        if broker is not None:
            with self.timeline.span(broker.name, "stopped"):
                await broker.stop()
                await asyncio.sleep(trouble.for_s)
            await self.bring_back(broker)

    async def pause(self, trouble: Trouble) -> None:
        broker = self.take(trouble)
        if broker is not None:
            with self.timeline.span(broker.name, "paused"):
                broker.host.pause()
                await asyncio.sleep(trouble.for_s)
                broker.host.resume()
            self.taken.discard(broker.node_id)

    async def client_pause(self, trouble: Trouble) -> None:
        """A member of a group hangs for longer than the group waits for it, and goes on as if it were one still."""
        simulation = self.cluster.simulation
        hosts = [simulation.host(name) for name in sorted(simulation.hosts) if _MEMBER.fullmatch(name)]
        members = [host for host in hosts if host.alive]
        if members:
            host = members[int(trouble.level * len(members))]
            with self.timeline.span(host.name, "client paused"):
                host.pause()
                await asyncio.sleep(trouble.for_s)
                host.resume()

    async def disk_error(self, trouble: Trouble) -> None:
        """A directory whose disk fails stays offline until its broker is started again."""
        broker = self.take(trouble) if self.may_end() else None
        if broker is None:
            return
        self.unclean.add(broker.node_id)
        which = trouble.level * 4
        operation = ("sync", "append", "read", "open")[int(which)]
        # With several directories the broker may live on with the others.
        places = (DATA, *self.plan.directories) if len(self.plan.directories) > 1 else (DATA,)
        under = places[int(which % 1 * len(places))]
        where = "" if under == DATA else f" in {under}"
        with self.timeline.span(broker.name, f"disk fails: {operation}{where}"):
            fault = broker.host.disk.inject(DiskFault(operation, errno.EIO, under=under, times=None))
            await asyncio.sleep(trouble.for_s)
        fault.times = 0
        broker.kill()
        await self.bring_back(broker)

    async def disk_full(self, trouble: Trouble) -> None:
        broker = self.take(trouble) if self.may_end() else None
        if broker is None:
            return
        self.unclean.add(broker.node_id)
        with self.timeline.span(broker.name, "disk full"):
            self.cluster.fill_disk(broker.node_id, int(trouble.level * 4096))
            await asyncio.sleep(trouble.for_s)
            self.cluster.empty_disk(broker.node_id)
        broker.kill()
        await self.bring_back(broker)

    async def disk_lost(self, trouble: Trouble) -> None:
        """Its machine is given an empty disk. Others have to have what was on it."""
        broker = self.take_to_empty(trouble)
        if broker is None:
            return
        with self.timeline.span(broker.name, "disk lost"):
            broker.kill()
            for directory in self.plan.directories:
                broker.host.disk.rmtree(directory)
            await asyncio.sleep(trouble.for_s)
        await self.bring_back(broker)

    def take_to_empty(self, trouble: Trouble) -> SimulatedBroker | None:
        """The broker, if it may go on with an empty disk."""
        self._forget_synced()
        broker = self.take(trouble) if self.plan.min_isr > 1 and not self.unclean else None
        if broker is None:
            return None
        if not self._is_elsewhere(broker.node_id):
            self.taken.discard(broker.node_id)
            return None
        self.unclean.add(broker.node_id)
        self.unpowered.add(broker.node_id)
        self.emptied.add(broker.node_id)
        return broker

    def _is_elsewhere(self, node_id: int) -> bool:
        """Whether all that is committed of every partition is on other machines: in sync, or eligible to lead."""
        topics = stored_image(self.cluster.store).topics.values()
        return all({*state.isr, *state.eligible} - {node_id} for topic in topics for state in topic.partitions)

    async def give_up_lost(self) -> None:
        """Let others lead what was made while its only broker was about to get an empty disk, of which nobody knew.

        Nothing of it was ever acknowledged, and nobody leads it until an operator says so.
        """
        image = self.cluster.newest_image
        found = (
            []
            if image is None
            else [
                TopicPartition(topic.name, index)
                for topic in image.topics.values()
                for index, state in enumerate(topic.partitions)
                if state.leader < 0 and not (state.isr or state.eligible) and self.emptied.issuperset(state.last_known)
            ]
        )
        lost = [partition for partition in found if not self.history.acknowledged.get(partition)]
        if lost and self.plan.min_isr > 1:
            self.timeline.add(
                CLUSTER, "fault", f"others may lead {', '.join(map(str, lost))}, of which nothing is left"
            )
            self.timeline.saw("an operator gives up what an empty disk had")
            host = self.cluster.client_host(_OPERATOR)
            with contextlib.suppress(HeadraceError, TimeoutError):
                async with self.cluster.admin(host=host) as admin:
                    await admin.within(_OPERATOR_S).elect_leaders(lost, election_type=ElectionType.UNCLEAN)

    async def slow_disk(self, trouble: Trouble) -> None:
        host = self.cluster.brokers[self.node(trouble)].host
        with self.timeline.span(host.name, "slow disk"):
            host.use_disk(_SLOW_DISK)
            await asyncio.sleep(trouble.for_s)
            host.use_disk(_QUICK_DISK)

    async def clock_jump(self, trouble: Trouble) -> None:
        host = self.cluster.brokers[self.node(trouble)].host
        by_ms = int((trouble.level - 0.5) * 20_000)
        self.timeline.add(host.name, "fault", f"the wall clock jumps by {by_ms} ms")
        self.timeline.saw("fault: clock jump")
        host.clock.jump(by_ms)

    async def client_clock_step(self, trouble: Trouble) -> None:
        """The wall clock of a client is set: forward, or back."""
        names = [name for name in sorted(self.cluster.simulation.hosts) if not name.startswith("broker-")]
        if names:
            place = trouble.level * len(names)
            host = self.cluster.simulation.host(names[int(place)])
            by_ms = int((place % 1.0 - 0.5) * self.plan.clocks_ms)
            self.timeline.add(host.name, "fault", f"the wall clock steps by {by_ms} ms")
            self.timeline.saw("fault: client clock step")
            host.clock.jump(by_ms)

    async def clock_drift(self, trouble: Trouble) -> None:
        host = self.cluster.brokers[self.node(trouble)].host
        with self.timeline.span(host.name, "clock drifts"):
            host.clock.drift((trouble.level - 0.5) * 0.2)
            await asyncio.sleep(trouble.for_s)
            host.clock.drift(0.0)

    # --- what an operator does

    async def election(self, trouble: Trouble) -> None:
        """Let it lead the partition, by naming it first."""
        partition = self._scene(trouble).partition
        state = self._state(partition)
        if partition is None or state is None:
            return
        node_id = self.node(trouble)
        replicas = [node_id, *(other for other in state.replicas if other != node_id)]
        self.timeline.add(CLUSTER, "fault", f"{partition}: broker {node_id} is to lead")
        self.timeline.saw("fault: election")
        host = self.cluster.client_host(_OPERATOR)
        with contextlib.suppress(HeadraceError, TimeoutError):
            async with self.cluster.admin(host=host) as admin:
                operator = admin.within(_OPERATOR_S)
                await operator.alter_partition_reassignments({partition: replicas})
                await operator.elect_leaders([partition])

    async def partitions_added(self, trouble: Trouble) -> None:
        """Give a topic one partition more, or two; without an answer it is not known whether it has them."""
        image = self.cluster.newest_image
        topic = None if image is None else image.topics.get(trouble.topic)
        if topic is None:
            return
        count = len(topic.partitions) + (2 if trouble.level < _TWO_MORE else 1)
        self.timeline.add(CLUSTER, "fault", f"{trouble.topic} is to have {count} partitions")
        self.timeline.saw("fault: partitions added")
        host = self.cluster.client_host(_OPERATOR)
        with contextlib.suppress(HeadraceError, TimeoutError):
            async with self.cluster.admin(host=host) as admin:
                (await admin.within(_OPERATOR_S).create_partitions({trouble.topic: count})).all()
                self.history.partitions[trouble.topic] = max(count, self.history.partitions.get(trouble.topic, 0))
                self.history.count("topics with more partitions")

    async def configured(self, trouble: Trouble) -> None:
        """Configure a topic anew; for a while, where others would wait for it."""
        change = change_of(trouble.topic, trouble.level)
        self.timeline.saw(f"fault: configured {', '.join(change)}")
        await self._configure(trouble.topic, change)
        if PASSING in change:
            await asyncio.sleep(trouble.for_s)
            await self._configure(trouble.topic, {PASSING: str(self.plan.min_isr)})

    async def _configure(self, topic: str, change: Mapping[str, str]) -> None:
        host = self.cluster.client_host(_OPERATOR)
        resource = ConfigResource(ResourceType.TOPIC, topic)
        async with self._configuring:
            self.timeline.add(CLUSTER, "fault", f"{topic} is to have {dict(change)}")
            doubts = self.history.configures(topic, change)
            with contextlib.suppress(HeadraceError, TimeoutError):
                async with self.cluster.admin(host=host) as admin:
                    (await admin.within(_OPERATOR_S).incremental_alter_configs({resource: change})).all()
                    self.history.has_configured(topic, change, doubts)

    async def topic_made_again(self, trouble: Trouble) -> None:
        """Delete a topic and make it again, with other records than before."""
        host = self.cluster.client_host(_OPERATOR)
        async with self._making_again:
            self.timeline.add(CLUSTER, "fault", f"topic {AGAIN} is deleted and made again")
            self.timeline.saw("fault: topic made again")
            with contextlib.suppress(HeadraceError, TimeoutError):
                async with self.cluster.admin(host=host) as admin:
                    operator = admin.within(_OPERATOR_S)
                    self.history.is_removed(AGAIN)
                    if AGAIN in self.history.sent:
                        error = (await operator.delete_topics([AGAIN])).errors.get(AGAIN)
                        if error is not None and not isinstance(error, UnknownTopicOrPartitionError):
                            return
                    (await operator.create_topics([NewTopic(AGAIN, 1, min(3, self.plan.brokers))])).all()
                self.history.made_again(AGAIN)
                await self._write_again(trouble)

    async def _write_again(self, trouble: Trouble) -> None:
        number = self.history.tick()
        sent = self.history.sent[AGAIN]
        values = [f"again-{number}:{index:05d}" for index in range(1 + int(trouble.level * 5))]
        sent.update(values)
        host = self.cluster.client_host(_OPERATOR)
        async with self.cluster.producer(host=host, delivery_timeout_ms=20_000, request_timeout_ms=5_000) as producer:
            for value in values:
                told = await producer.send(AGAIN, value.encode(), partition=0)
                self.history.was_acknowledged(TopicPartition(AGAIN, 0), told.offset, value)

    # --- the network

    async def isolate(self, trouble: Trouble) -> None:
        """Others do not hear of it, nor perhaps the store; its clients do."""
        broker = self.cluster.brokers[self.node(trouble)]
        others = [other.name for other in self.cluster.brokers.values() if other is not broker]
        also_store = trouble.level < 0.6
        where = f"cut off: from the others{' and the store' if also_store else ''}"
        with self.timeline.span(broker.name, where):
            self.cluster.simulation.network.partition([broker.name], others)
            broker.reaches_store = not also_store
            await asyncio.sleep(trouble.for_s)
            broker.reaches_store = True
            self.cluster.simulation.network.heal([broker.name], others)

    async def cut(self, trouble: Trouble, *, one_way: bool = False) -> None:
        one, other = self._name(trouble), self._other_name(trouble)
        network = self.cluster.simulation.network
        with self.timeline.span(one, f"link cut{' one way' if one_way else ''}: to {other}"):
            network.partition([one], [other], one_way=one_way)
            await asyncio.sleep(trouble.for_s)
            network.heal([one], [other])

    async def cut_one_way(self, trouble: Trouble) -> None:
        await self.cut(trouble, one_way=True)

    async def client_cut(self, trouble: Trouble) -> None:
        """Clients do not reach a broker, which the others do."""
        broker = self._name(trouble)
        network = self.cluster.simulation.network
        clients = [name for name in self.cluster.simulation.hosts if not name.startswith("broker-")]
        with self.timeline.span(broker, "cut off: from clients"):
            network.partition([broker], clients)
            await asyncio.sleep(trouble.for_s)
            network.heal([broker], clients)

    async def reset(self, trouble: Trouble) -> None:
        one, other = self._name(trouble), self._other_name(trouble)
        names = [name for name in self.cluster.simulation.hosts if name != one]
        if trouble.level < 0.33:
            names = [other]
        elif trouble.level < 0.66:
            names = [name for name in names if not name.startswith("broker-")]
        broken = sum(self.cluster.simulation.network.reset(one, name) for name in names)
        self.timeline.add(one, "fault", f"{broken} connections broken")
        self.timeline.saw("fault: connections broken")

    async def half_open(self, trouble: Trouble) -> None:
        one, other = self._name(trouble), self._other_name(trouble)
        gone = self.cluster.simulation.network.half_open(one, other)
        self.timeline.add(one, "fault", f"{gone} connections half open: {other} is not told")
        self.timeline.saw("fault: half open")

    async def slow_network(self, trouble: Trouble) -> None:
        with self.timeline.span(CLUSTER, "slow network"):
            self._slow.append(trouble.level)
            self._slow_down()
            await asyncio.sleep(trouble.for_s)
            self._slow.remove(trouble.level)
            self._slow_down()

    def _slow_down(self) -> None:
        """Let the network be as slow as the slowest of what lasts, and as before when nothing does."""
        model = self.cluster.simulation.network.model
        model.slow_probability, model.slow_delay_s_max = (0.2, 0.2 + max(self._slow)) if self._slow else self._usual

    # --- the store

    async def store_away(self, trouble: Trouble, *, forgets: bool = False) -> None:
        store = self.cluster.store
        if store.is_away:
            return
        with self.timeline.span(STORE, f"away{': all sessions are over afterwards' if forgets else ''}"):
            store.go_away()
            await asyncio.sleep(trouble.for_s)
            store.come_back(expire_all=forgets)

    async def store_forgets(self, trouble: Trouble) -> None:
        await self.store_away(trouble, forgets=True)

    async def store_cut(self, trouble: Trouble) -> None:
        """The store does not hear of a broker, which the others do."""
        broker = self.cluster.brokers[self.node(trouble)]
        with self.timeline.span(broker.name, "cut off: from the store"):
            broker.reaches_store = False
            await asyncio.sleep(trouble.for_s)
            broker.reaches_store = True

    async def session_lost(self, trouble: Trouble) -> None:
        sessions = self.cluster.store.sessions
        if sessions:
            session = sessions[int(trouble.level * len(sessions))]
            self.timeline.add(STORE, "fault", f"{session.name} is over")
            self.timeline.saw("fault: session lost")
            self.cluster.store.expire(session)

    async def store_breaks(self, trouble: Trouble) -> None:
        faults = self.cluster.store.faults
        with self.timeline.span(STORE, "connections break, before and after changes"):
            faults.loss_before = faults.loss_after = faults.loss_reading = trouble.level * 0.4
            await asyncio.sleep(trouble.for_s)
            faults.loss_before = faults.loss_after = faults.loss_reading = 0.0


_STATES: dict[str, Callable[[Troubles, _Scene], bool]] = {
    "a follower is about to come in": Troubles._is_coming_in,
}
_DO: dict[str, Callable[[Troubles, Trouble], Awaitable[None]]] = {
    "kill": Troubles.kill,
    "power": Troubles.power,
    "stop": Troubles.stop,
    "pause": Troubles.pause,
    "client pause": Troubles.client_pause,
    "isolate": Troubles.isolate,
    "cut": Troubles.cut,
    "cut one way": Troubles.cut_one_way,
    "client cut": Troubles.client_cut,
    "reset": Troubles.reset,
    "half open": Troubles.half_open,
    "slow network": Troubles.slow_network,
    "slow disk": Troubles.slow_disk,
    "disk error": Troubles.disk_error,
    "disk full": Troubles.disk_full,
    "clock jump": Troubles.clock_jump,
    "clock drift": Troubles.clock_drift,
    "store away": Troubles.store_away,
    "store forgets": Troubles.store_forgets,
    "session lost": Troubles.session_lost,
    "store breaks": Troubles.store_breaks,
    "store cut": Troubles.store_cut,
    "election": Troubles.election,
    "disk lost": Troubles.disk_lost,
    MORE_PARTITIONS: Troubles.partitions_added,
    CONFIGURED: Troubles.configured,
    CLOCK_STEP: Troubles.client_clock_step,
    "topic made again": Troubles.topic_made_again,
    **OWNERS,
    **OPERATORS,
}
