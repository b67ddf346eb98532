"""Faults as they are put into a running cluster: each begins, lasts for a while and is over."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

from headrace.errors import HeadraceError
from headrace.runtime.simulated import CrashModel, DiskFault, HostDiedError, WorkModel
from headrace.testing.simulated.cluster import SimulatedBroker, SimulatedCluster
from headrace.testing.simulated.plans import Plan, Trouble
from headrace.testing.simulated.timeline import CLUSTER, STORE, Timeline

_RESTART_S = 0.5
_SLOW_DISK = WorkModel(usual_s_max=0.1, slow_s_max=2.0, slow_probability=0.2)
_QUICK_DISK = WorkModel()


class Troubles:
    """Puts a plan's faults into a cluster. A broker that is down or hangs is left alone by other faults of its kind."""

    def __init__(self, cluster: SimulatedCluster, plan: Plan, timeline: Timeline) -> None:
        self.cluster = cluster
        self.plan = plan
        self.timeline = timeline
        #: Brokers that some fault has taken away.
        self.taken: set[int] = set()
        #: Brokers that ended uncleanly and have not been in sync everywhere since; and which of them lost their power.
        self.unclean: set[int] = set()
        self.unpowered: set[int] = set()

    async def run(self) -> None:
        """All of them, each at its time; returns when the last is over."""
        await asyncio.gather(*(self._one(trouble) for trouble in self.plan.troubles))

    async def _one(self, trouble: Trouble) -> None:
        await asyncio.sleep(trouble.at_s)
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

    # --- brokers

    def _take(self, trouble: Trouble) -> SimulatedBroker | None:
        """The broker, unless another fault has it, or it is not up."""
        broker = self.cluster.brokers[trouble.node]
        if broker.node_id in self.taken or broker.broker is None:
            return None
        self.taken.add(broker.node_id)
        return broker

    async def _bring_back(self, broker: SimulatedBroker) -> None:
        """Start it again, as whoever runs it would, until it serves."""
        while broker.broker is None:
            try:
                await broker.start()
            except (HostDiedError, HeadraceError) as error:
                self.timeline.add(broker.name, "log", f"could not be started: {error}")
                await asyncio.sleep(_RESTART_S)
        self.timeline.add(broker.name, "fault", "serves again")
        self.taken.discard(broker.node_id)

    def _may_end(self) -> bool:
        """Whether a broker may end uncleanly. Nobody can tell afterwards whether its machine had lost its power, so
        while one that did is not in sync, records may be lost that are on all others."""
        self._forget_synced()
        return not self.unpowered

    async def kill(self, trouble: Trouble) -> None:
        if not self._may_end():
            await self.pause(trouble)
            return
        broker = self._take(trouble)
        if broker is not None:
            self.unclean.add(broker.node_id)
            with self.timeline.span(broker.name, "killed"):
                broker.kill()
                await asyncio.sleep(trouble.for_s)
            await self._bring_back(broker)

    async def power(self, trouble: Trouble) -> None:
        self._forget_synced()
        # Acknowledged means on min.insync.replicas machines: it may be lost when so many lose their power.
        if self.plan.min_isr < 2 or self.unclean:
            await self.kill(trouble)
            return
        broker = self._take(trouble)
        if broker is not None:
            self.unclean.add(broker.node_id)
            self.unpowered.add(broker.node_id)
            with self.timeline.span(broker.name, "power lost"):
                broker.lose_power(CrashModel.HARSH if trouble.level < 0.5 else CrashModel.ORDERED)
                await asyncio.sleep(trouble.for_s)
            await self._bring_back(broker)

    def _forget_synced(self) -> None:
        """A broker that is in sync everywhere, and known to be there, has all that was ever acknowledged."""
        image = self.cluster.newest_image
        for node_id in sorted(self.unclean):
            broker = self.cluster.brokers[node_id].broker
            if broker is None or image is None:
                continue
            known = image.brokers.get(node_id)
            if known is None or known.epoch != broker.broker_epoch or not known.is_active:
                continue
            states = [state for topic in image.topics.values() for state in topic.partitions]
            if all(node_id in state.isr for state in states if node_id in state.replicas):
                self.unclean.discard(node_id)
                self.unpowered.discard(node_id)

    async def stop(self, trouble: Trouble) -> None:
        broker = self._take(trouble)
        if broker is not None:
            with self.timeline.span(broker.name, "stopped"):
                await broker.stop()
                await asyncio.sleep(trouble.for_s)
            await self._bring_back(broker)

    async def pause(self, trouble: Trouble) -> None:
        broker = self._take(trouble)
        if broker is not None:
            with self.timeline.span(broker.name, "paused"):
                broker.host.pause()
                await asyncio.sleep(trouble.for_s)
                broker.host.resume()
            self.taken.discard(broker.node_id)

    async def disk_error(self, trouble: Trouble) -> None:
        """A directory whose disk fails stays offline until its broker is started again."""
        broker = self._take(trouble) if self._may_end() else None
        if broker is None:
            return
        self.unclean.add(broker.node_id)
        operation = ("sync", "append", "read", "open")[int(trouble.level * 4)]
        with self.timeline.span(broker.name, f"disk fails: {operation}"):
            fault = broker.host.disk.inject(DiskFault(operation, errno.EIO, under="/data", times=None))
            await asyncio.sleep(trouble.for_s)
        fault.times = 0
        broker.kill()
        await self._bring_back(broker)

    async def disk_full(self, trouble: Trouble) -> None:
        broker = self._take(trouble) if self._may_end() else None
        if broker is None:
            return
        self.unclean.add(broker.node_id)
        with self.timeline.span(broker.name, "disk full"):
            self.cluster.fill_disk(broker.node_id, int(trouble.level * 4096))
            await asyncio.sleep(trouble.for_s)
            self.cluster.empty_disk(broker.node_id)
        broker.kill()
        await self._bring_back(broker)

    async def slow_disk(self, trouble: Trouble) -> None:
        host = self.cluster.brokers[trouble.node].host
        with self.timeline.span(host.name, "slow disk"):
            host.use_disk(_SLOW_DISK)
            await asyncio.sleep(trouble.for_s)
            host.use_disk(_QUICK_DISK)

    async def clock_jump(self, trouble: Trouble) -> None:
        host = self.cluster.brokers[trouble.node].host
        by_ms = int((trouble.level - 0.5) * 20_000)
        self.timeline.add(host.name, "fault", f"the wall clock jumps by {by_ms} ms")
        self.timeline.saw("fault: clock jump")
        host.clock.jump(by_ms)

    async def clock_drift(self, trouble: Trouble) -> None:
        host = self.cluster.brokers[trouble.node].host
        with self.timeline.span(host.name, "clock drifts"):
            host.clock.drift((trouble.level - 0.5) * 0.2)
            await asyncio.sleep(trouble.for_s)
            host.clock.drift(0.0)

    # --- the network

    async def isolate(self, trouble: Trouble) -> None:
        """Others do not hear of it, nor perhaps the store; its clients do."""
        broker = self.cluster.brokers[trouble.node]
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
        one, other = f"broker-{trouble.node}", f"broker-{trouble.other}"
        network = self.cluster.simulation.network
        with self.timeline.span(one, f"link cut{' one way' if one_way else ''}: to {other}"):
            network.partition([one], [other], one_way=one_way)
            await asyncio.sleep(trouble.for_s)
            network.heal([one], [other])

    async def cut_one_way(self, trouble: Trouble) -> None:
        await self.cut(trouble, one_way=True)

    async def client_cut(self, trouble: Trouble) -> None:
        """Clients do not reach a broker, which the others do."""
        broker = f"broker-{trouble.node}"
        network = self.cluster.simulation.network
        clients = [name for name in self.cluster.simulation.hosts if not name.startswith("broker-")]
        with self.timeline.span(broker, "cut off: from clients"):
            network.partition([broker], clients)
            await asyncio.sleep(trouble.for_s)
            network.heal([broker], clients)

    async def reset(self, trouble: Trouble) -> None:
        one, other = f"broker-{trouble.node}", f"broker-{trouble.other}"
        if trouble.level < 0.5:
            broken = self.cluster.simulation.network.reset(one, other)
        else:
            names = [name for name in self.cluster.simulation.hosts if name != one]
            broken = sum(self.cluster.simulation.network.reset(one, name) for name in names)
        self.timeline.add(one, "fault", f"{broken} connections broken")
        self.timeline.saw("fault: connections broken")

    async def half_open(self, trouble: Trouble) -> None:
        one, other = f"broker-{trouble.node}", f"broker-{trouble.other}"
        gone = self.cluster.simulation.network.half_open(one, other)
        self.timeline.add(one, "fault", f"{gone} connections half open: {other} is not told")
        self.timeline.saw("fault: half open")

    async def slow_network(self, trouble: Trouble) -> None:
        model = self.cluster.simulation.network.model
        with self.timeline.span(CLUSTER, "slow network"):
            before = model.slow_probability, model.slow_delay_s_max
            model.slow_probability, model.slow_delay_s_max = 0.2, 0.2 + trouble.level
            await asyncio.sleep(trouble.for_s)
            model.slow_probability, model.slow_delay_s_max = before

    # --- the store

    async def store_away(self, trouble: Trouble) -> None:
        store = self.cluster.store
        if store.is_away:
            return
        with self.timeline.span(STORE, "away"):
            store.go_away()
            await asyncio.sleep(trouble.for_s)
            store.come_back()

    async def store_forgets(self, trouble: Trouble) -> None:
        store = self.cluster.store
        if store.is_away:
            return
        with self.timeline.span(STORE, "away: all sessions are over afterwards"):
            store.go_away()
            await asyncio.sleep(trouble.for_s)
            store.come_back(expire_all=True)

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


_DO: dict[str, Callable[[Troubles, Trouble], Awaitable[None]]] = {
    "kill": Troubles.kill,
    "power": Troubles.power,
    "stop": Troubles.stop,
    "pause": Troubles.pause,
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
}
