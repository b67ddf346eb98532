"""A whole cluster inside one process, in virtual time: real brokers and clients on simulated machines.

Nothing is replaced but reality: the brokers are those of `headrace start`, the clients those of `headrace.aio`, and a
model of ZooKeeper stands between the brokers. What happens, and in which order, is decided by the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from headrace.broker.broker import Broker
from headrace.client.admin.aio import Admin
from headrace.client.consumer.aio import Consumer
from headrace.client.producer.aio import Producer
from headrace.cluster.image import Image
from headrace.cluster.store.model import ModelSession, ZooKeeperModel
from headrace.cluster.store.node_store import NodeStore
from headrace.cluster.store.session import NODE_BYTES_MAX
from headrace.runtime import Runtime
from headrace.runtime.simulated import CrashModel, Host, HostDiedError, Simulation
from headrace.testing.simulated.blocking import BlockingCluster, run_blocking
from headrace.testing.simulated.faults import DIRECTORIES
from headrace.testing.simulated.timeline import CLUSTER, Timeline, logs_in

T = TypeVar("T")

PORT = 9092
_LOOK_S = 0.02
_STORE_SESSION_S = 1.0
_STORE_TIMEOUT_S = 2.0
#: Few, so that brokers also meet with snapshots.
_SNAPSHOT_AFTER_NODES = 40
#: What makes a few virtual seconds enough for elections and rebalances.
SETTINGS = {
    "log.dirs": DIRECTORIES[0],
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "log.cleaner.backoff.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
}
#: What a plan with a pace makes shorter: time-outs, and what belongs to them. How often clients and followers ask stays
#: as it is, so that a shorter run is a cheaper one.
_PACED_SETTINGS = {
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 3000,
    "replica.socket.timeout.ms": 10_000,
    "replica.fetch.backoff.ms": 1000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "group.initial.rebalance.delay.ms": 100,
    "group.min.session.timeout.ms": 1000,
}
_PACED_OF_CLIENTS = ("request_timeout_ms", "session_timeout_ms", "heartbeat_interval_ms", "transaction_timeout_ms")
_BACKOFF_MS_MAX = 1000
#: So many lines of what happened are in the note of a failure.
_NOTED_LINES = 60


def _paced(pace: float) -> dict[str, str]:
    return {name: str(int(time_ms * pace)) for name, time_ms in _PACED_SETTINGS.items()}


class SimulatedBroker:
    """`headrace start` on a simulated machine."""

    def __init__(
        self, cluster: SimulatedCluster, node_id: int, settings: Mapping[str, str], name: str | None = None
    ) -> None:
        self.node_id = node_id
        self.name = name or f"broker-{node_id}"
        self.host: Host = cluster.machine(self.name)
        self._cluster = cluster
        self.settings = {
            **SETTINGS,
            **({} if cluster.pace == 1.0 else _paced(cluster.pace)),
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{self.name}:{PORT}",
            "broker.rack": f"rack-{node_id}",
            **settings,
        }
        #: The broker's process, once it serves.
        self.broker: Broker | None = None
        #: Whether the store hears of it.
        self.reaches_store = True
        self._sessions: list[ModelSession] = []
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start its process, and return once it serves."""
        if self.broker is not None:
            return
        runtime = self.host.runtime if self.host.alive and not self.host.is_busy else self.host.restart()
        self.broker = await self.host.start(self._start(runtime, self.host.life), name=self.name)
        self._ending = asyncio.ensure_future(self._end_when_replaced(self.broker))

    async def _end_when_replaced(self, broker: Broker) -> None:
        """End its process as `headrace start` does, when another has its number."""
        await broker.identity.was_replaced.wait()
        if self.broker is broker:
            self._ending = None
            with contextlib.suppress(HostDiedError):
                await self.stop()

    def _is_ended(self) -> None:
        self.broker = None
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    async def _start(self, runtime: Runtime, life: object) -> Broker:
        cluster, host = self._cluster, self.host

        def reaches() -> bool:
            return self.reaches_store and host.life is life and host.alive

        def session() -> ModelSession:
            made = cluster.store.session(runtime.clock, reaches)
            self._sessions = [*(one for one in self._sessions if cluster.store.has(one.name)), made]
            return made

        store = NodeStore(
            runtime,
            session,
            timeout_s=_STORE_TIMEOUT_S * cluster.pace,
            where="the store",
            snapshot_after_nodes=_SNAPSHOT_AFTER_NODES,
            node_bytes_max=cluster.node_bytes_max,
        )
        broker = cluster.broker_class.from_settings(runtime, self.settings, store=store)
        await broker.start()
        return broker

    async def stop(self) -> None:
        """Shut down in order, and end the process."""
        broker = self.broker
        self._is_ended()
        if broker is None:
            return

        async def stop(runtime: Runtime) -> None:
            await broker.stop()
            await runtime.close()

        await self.host.start(stop(self.host.runtime))
        self.host.kill(power_loss=False)

    def hang_loop(self) -> None:
        """Let its event loop hang until the machine is resumed; the threads of its process go on."""
        self.host.pause()
        held, life = self.host.life.held, self.host.life

        def still() -> bool:
            return life.alive and held is not None and life.held is held

        for session in self._sessions:
            session.loop_hangs(still)

    @property
    def has_session(self) -> bool:
        """Whether the store takes its process for alive."""
        return any(self._cluster.store.has(session.name) for session in self._sessions)

    def kill(self) -> None:
        """End the process at once; what it had written is kept by the machine."""
        self._is_ended()
        self.host.kill(power_loss=False)

    def lose_power(self, model: CrashModel = CrashModel.HARSH) -> None:
        """The machine loses its power: what was not synced may be gone, or torn."""
        self._is_ended()
        self.host.kill(power_loss=True, model=model)


class SimulatedCluster:
    """Brokers 1 to `brokers`, and what a test does to them. `pace` is how long time-outs are, of what they are else;
    `clocks_ms` is how far the clock of a machine may be off at first; `node_bytes_max` is how much of a decision fits a
    node of the store."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        pace: float = 1.0,
        clocks_ms: int = 0,
        node_bytes_max: int = NODE_BYTES_MAX,
    ) -> None:
        self.simulation = simulation
        #: What happened so far, for people: see `ClusterUnderSeed.run`.
        self.timeline = Timeline(lambda: simulation.loop.time())
        self.pace = pace
        self.node_bytes_max = node_bytes_max
        self._clocks_ms = clocks_ms
        self.broker_class = Broker
        self.store = ZooKeeperModel(simulation.random_for("store"), session_timeout_s=_STORE_SESSION_S * pace)
        replicas = str(min(brokers, 3))
        own = {
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": str(min(brokers, 2)),
            **(settings or {}),
        }
        self.brokers = {node_id: SimulatedBroker(self, node_id, own) for node_id in range(1, brokers + 1)}
        #: Machines whose number another has been given, and that may not have ended.
        self.former: list[SimulatedBroker] = []
        self._settings = own
        self._clients = 0

    # --- what runs

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{broker.name}:{PORT}" for broker in self.brokers.values())

    @property
    def alive(self) -> list[Broker]:
        """Those that serve, also while they are paused."""
        return [broker.broker for broker in self.brokers.values() if broker.broker is not None]

    @property
    def processes(self) -> list[Broker]:
        """All that live, also those whose number another has been given."""
        return [one.broker for one in (*self.brokers.values(), *self.former) if one.broker is not None]

    @property
    def newest_image(self) -> Image | None:
        """The metadata as the broker has it that knows most."""
        return max((broker.image for broker in self.alive), key=lambda image: image.offset, default=None)

    @property
    def controller_id(self) -> int | None:
        """Who decides; None when nobody does, or more than one thinks so."""
        found = [broker.node_id for broker in self.alive if broker.metadata.active.is_active]
        return found[0] if len(found) == 1 else None

    async def start(self) -> None:
        """Return once every broker knows of all others."""
        await asyncio.gather(*(broker.start() for broker in self.brokers.values()))
        await self.until(self._all_know_all, 60.0, "the brokers do not find one another")

    def _all_know_all(self) -> bool:
        return all(all(map(broker.image.is_active, self.brokers)) for broker in self.alive)

    async def until(self, condition: Callable[[], bool], timeout_s: float, otherwise: str) -> float:
        """Wait for something to be so; how long that took, in virtual seconds."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not condition():
            if loop.time() - began > timeout_s:
                raise TimeoutError(f"{otherwise}: {timeout_s:g} virtual seconds were not enough")
            await asyncio.sleep(_LOOK_S)
        return loop.time() - began

    # --- clients

    def client_host(self, name: str | None = None) -> Host:
        """A machine for a client."""
        if name is None:
            self._clients += 1
            name = f"client-{self._clients}"
        return self.machine(name)

    def machine(self, name: str) -> Host:
        """The machine of that name, with a clock of its own."""
        is_new = name not in self.simulation.hosts
        host = self.simulation.host(name)
        if is_new and self._clocks_ms:
            off_ms = self.simulation.random_for(f"clock of {name}").randint(-self._clocks_ms, self._clocks_ms)
            host.clock.jump(off_ms)
        return host

    def _configured(self, host: Host | None, config: Mapping[str, Any]) -> dict[str, Any]:
        host = host or self.client_host()
        own = {"runtime": host.runtime, "bootstrap_servers": self.bootstrap_servers}
        if "client_id" not in config and "client.id" not in config:
            # The clients number themselves through the life of the process, which would make every run another.
            own["client_id"] = host.name
        if self.pace == 1.0:
            return {**own, **config}
        own["retry_backoff_max_ms"] = own["reconnect_backoff_max_ms"] = int(_BACKOFF_MS_MAX * self.pace)
        paced = {name: int(config[name] * self.pace) for name in _PACED_OF_CLIENTS if name in config}
        return {**own, **config, **paced}

    def producer(self, *, host: Host | None = None, **config: Any) -> Producer:
        """A producer of this cluster, on a machine of its own unless one is given."""
        return Producer(**self._configured(host, config))

    def consumer(self, *, host: Host | None = None, **config: Any) -> Consumer:
        """A consumer of this cluster."""
        return Consumer(**self._configured(host, config))

    def admin(self, *, host: Host | None = None, **config: Any) -> Admin:
        """An admin client of this cluster."""
        return Admin(**self._configured(host, config))

    async def blocking(self, story: Callable[[BlockingCluster], T]) -> T:
        """Run a blocking program beside others, on a thread of its own, in turns with the simulation."""
        return await run_blocking(self, story)

    # --- what goes wrong

    def _note(self, node_id: int, what: str) -> None:
        self.timeline.add(self.brokers[node_id].name, "fault", what)

    async def faults(self, seconds: float, *kinds: str, between_s: float = 1.0) -> None:
        """Draw faults from the seed for so many virtual seconds, one about every `between_s`, and end them all.

        Of these `kinds` (`kill`, `power`, `stop`, `pause`, `isolate`, `cut`, `cut one way`, `client cut`, `reset`,
        `half open`, `slow network`, `slow disk`, `disk error`, `disk full`, `store away`, `store forgets`, `store cut`,
        `store breaks`, `session lost`, `election`), or of all that a client should live through. Records that are
        acknowledged by as many replicas as `min.insync.replicas` are lost by none of them. It returns when every broker
        serves again; run it beside your clients, as a task.
        """
        from headrace.testing.simulated.drawn import USUAL, draw_faults

        await draw_faults(self, seconds, kinds or USUAL, between_s)

    def kill(self, node_id: int) -> None:
        """End a broker's process at once."""
        self._note(node_id, "killed")
        self.brokers[node_id].kill()

    def kill_all(self) -> None:
        """End every process, also those of machines whose number another has been given."""
        for broker in (*self.brokers.values(), *self.former):
            broker.kill()

    def lose_power(self, node_id: int) -> None:
        """Let a broker's machine lose its power, and with it what was not synced."""
        self._note(node_id, "power lost")
        self.brokers[node_id].lose_power()

    async def restart(self, node_id: int) -> None:
        """Start a broker (killing it first, if it runs), and return once it serves."""
        if self.brokers[node_id].broker is not None:
            self.kill(node_id)
        await self.brokers[node_id].start()
        self._note(node_id, "serves again")

    def replace(self, node_id: int) -> SimulatedBroker:
        """A new machine, with an empty disk, for the number of a broker that may live on; it is yet to be started."""
        former = self.brokers[node_id]
        self.former.append(former)
        lives = sum(one.node_id == node_id for one in self.former)
        self.brokers[node_id] = SimulatedBroker(self, node_id, self._settings, f"broker-{node_id}-{lives}")
        return self.brokers[node_id]

    async def stop(self, node_id: int) -> None:
        """Shut a broker down in order."""
        self._note(node_id, "stopped")
        await self.brokers[node_id].stop()

    def pause(self, node_id: int) -> None:
        """Let a broker hang: it does nothing, and its connections stay open."""
        self._note(node_id, "paused")
        self.brokers[node_id].host.pause()

    def hang_loop(self, node_id: int) -> None:
        """Let a broker's event loop hang, and with it all that it does; the session with the store has a thread."""
        self.brokers[node_id].hang_loop()

    def resume(self, node_id: int) -> None:
        self._note(node_id, "resumed")
        self.brokers[node_id].host.resume()

    def partition(self, ones: Iterable[int], others: Iterable[int] | None = None, *, one_way: bool = False) -> None:
        """Cut brokers off from others (all that are left, unless named); those keep their clients and the store."""
        ones = list(ones)
        rest = [node_id for node_id in self.brokers if node_id not in ones] if others is None else list(others)
        which = "one way, " if one_way else ""
        self.timeline.add(CLUSTER, "fault", f"cut off: {which}brokers {ones} from {rest}")
        self.simulation.network.partition(self._names(ones), self._names(rest), one_way=one_way)

    def heal(self) -> None:
        """End all partitions of the network, and let every broker reach the store."""
        self.timeline.add(CLUSTER, "fault", "the network is whole again")
        self.simulation.network.heal()
        for broker in (*self.brokers.values(), *self.former):
            broker.reaches_store = True

    def _names(self, node_ids: Iterable[int]) -> list[str]:
        return [self.brokers[node_id].name for node_id in node_ids]

    def fill_disk(self, node_id: int, free_bytes: int = 0) -> None:
        """Leave a broker only so much room on its disk."""
        self._note(node_id, "disk full")
        self.brokers[node_id].host.disk.fill(free_bytes)

    def empty_disk(self, node_id: int) -> None:
        """Give it room again."""
        self.brokers[node_id].host.disk.fill(1 << 40)


class ClusterUnderSeed:
    """What `simulated_cluster` gives: `run` takes a story to its end. The same seed takes the same course each time."""

    def __init__(self, seed: int, brokers: int, settings: Mapping[str, str] | None, time_max_s: float) -> None:
        self.seed = seed
        #: Says which course the last run took.
        self.digest: str | None = None
        self._brokers = brokers
        self._settings = settings
        self._time_max_s = time_max_s

    def run_blocking(self, story: Callable[[BlockingCluster], T]) -> T:
        """As `run`, of a program that blocks: its cluster gives it clients that do."""
        return self.run(lambda cluster: cluster.blocking(story))

    def run(self, story: Callable[[SimulatedCluster], Coroutine[Any, Any, T]]) -> T:
        """Start the cluster, tell the story, and give what it gives.

        What the story raises has a note: the seed, which brings it back, and what happened until then.
        """
        simulation = Simulation(self.seed, time_max_s=self._time_max_s)
        cluster = SimulatedCluster(simulation, brokers=self._brokers, settings=self._settings)

        async def main() -> T:
            await cluster.start()
            told = await story(cluster)
            cluster.kill_all()
            return told

        try:
            with logs_in(cluster.timeline, propagates=True):
                told = simulation.run(main())
                self.digest = simulation.trace.digest()
                simulation.check()
            return told
        except Exception as error:
            error.add_note(self._note(cluster, simulation.loop.time()))
            raise
        finally:
            simulation.loop.close()

    def _note(self, cluster: SimulatedCluster, ended_s: float) -> str:
        """The note of a failure."""
        lines = cluster.timeline.lines(last=_NOTED_LINES)
        left_out = len(cluster.timeline.lines()) - len(lines)
        more = [f"(the last {len(lines)} of {len(lines) + left_out} lines)"] if left_out else []
        head = (
            f"simulated_cluster(seed={self.seed}) of {self._brokers} brokers failed after {ended_s:.3f} virtual "
            "seconds; the same seed takes the same course. Until then:"
        )
        return "\n".join([head, *more, *lines])


def simulated_cluster(
    seed: int, *, brokers: int = 3, settings: Mapping[str, str] | None = None, time_max_s: float = 86_400.0
) -> ClusterUnderSeed:
    """A cluster in virtual time, decided by a seed:

    async def story(cluster):
        async with cluster.producer() as producer:
            await producer.send("orders", b"one")
        cluster.kill(1)
        ...

    simulated_cluster(seed=7).run(story)
    """
    return ClusterUnderSeed(seed, brokers, settings, time_max_s)
