"""One run of a plan: a cluster, its clients, their troubles, the verdict; and the smallest plan that still fails."""

from __future__ import annotations

import asyncio
import contextlib
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from headrace.client.admin.types import NewTopic
from headrace.cluster.store.session import NODE_BYTES_MAX
from headrace.errors import HeadraceError
from headrace.runtime.simulated import Simulation, SimulationFailedError, SimulationStuckError
from headrace.testing.simulated.checks import (
    Contents,
    all_contents,
    check_all,
    check_committed,
    not_given,
    settle_doubts,
    unrest,
)
from headrace.testing.simulated.clients import workloads_for
from headrace.testing.simulated.cluster import SimulatedCluster
from headrace.testing.simulated.handled import check_handled, not_committed
from headrace.testing.simulated.history import BrokenError, History, ParallelCommit
from headrace.testing.simulated.invariants import Invariants
from headrace.testing.simulated.plans import CLOCK_STEP, CONFIGURED, MORE_PARTITIONS, TRIMMED, TRIMMING, WRITING, Plan
from headrace.testing.simulated.timeline import CLUSTER, Timeline, logs_in
from headrace.testing.simulated.troubles import Troubles
from headrace.testing.simulated.variants import DEAD_LETTERS, PARALLEL_GROUP, VARIANTS
from headrace.testing.simulated.workloads import Rival, Transactor, Workload
from headrace.topics import TopicPartition

CHECK_S = 0.02
#: How often parallel consumers are looked at which have finished all, until they have committed that.
COMMITS_S = 0.2
_STEPS_MAX = 3_000_000
#: How often what is sent arrives in pieces. Each piece costs as much as a whole frame.
_SPLIT = (0.0, 0.0, 0.03, 0.1)
#: All brokers live through these, and so does what they know of one another.
_HARMLESS = ("store away", "store forgets", "client pause", CLOCK_STEP, MORE_PARTITIONS, CONFIGURED)


@dataclass(slots=True)
class RunResult:
    """What came of a run."""

    plan: Plan
    failure: str | None
    digest: str
    steps: int
    virtual_s: float
    timeline: Timeline
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What kind of failure it was: its words, without what is named in it and without numbers."""
        return "" if self.failure is None else kind_of(self.failure)


#: What a failure names: texts in quotes, what is in brackets, partitions, words that have a number in them, numbers.
_NAMED = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)|\{.*\}|\S*\d\S*")
_KIND_CHARS = 120


def kind_of(failure: str) -> str:
    """The words of the first line, each name and number left out."""
    words = _NAMED.sub("", failure.split("\n", 1)[0])
    return " ".join(word for word in re.split(r"[^A-Za-z]+", words) if word)[:_KIND_CHARS]


class SimulatedRun:
    """One plan in a world of its own."""

    def __init__(self, plan: Plan, *, is_traced: bool = False) -> None:
        self.plan = plan
        self.simulation = Simulation(plan.seed, steps_max=_STEPS_MAX, is_traced=is_traced)
        model = self.simulation.network.model
        model.split_probability = self.simulation.random_for("network model").choice(_SPLIT)
        self.timeline = Timeline(lambda: self.simulation.loop.time())
        self.history = History(lambda who, what: self.timeline.add(who, "client", what))
        self._settings = {"min.insync.replicas": str(plan.min_isr), "log.dirs": ",".join(plan.directories)}

    def play(self) -> RunResult:
        failure: str | None = None
        with logs_in(self.timeline):
            try:
                self.simulation.run(self._main())
                self.simulation.check()
                if self.timeline.defects:
                    raise BrokenError(f"a defect was logged: {self.timeline.defects[0]}")
            except (BrokenError, SimulationFailedError, SimulationStuckError, HeadraceError, TimeoutError) as error:
                failure = f"{type(error).__name__}: {error}"
                cause = error.__cause__
                if isinstance(error, SimulationFailedError) and cause is not None:
                    failure += "\n" + "".join(traceback.format_exception(cause)[-4:])
            except Exception as error:  # noqa: BLE001 - a defect of any kind is what this looks for
                failure = f"{type(error).__name__}: {error}\n" + "".join(traceback.format_exception(error)[-4:])
            finally:
                self.simulation.loop.close()
        if failure is not None:
            self.timeline.add(CLUSTER, "failure", failure)
        return RunResult(
            self.plan,
            failure,
            self.simulation.digest(),
            self.simulation.loop.steps,
            self.simulation.loop.time(),
            self.timeline,
            self.history.counts,
        )

    async def _main(self) -> None:
        plan = self.plan
        cluster = SimulatedCluster(
            self.simulation,
            brokers=plan.brokers,
            settings=self._settings,
            pace=plan.pace,
            clocks_ms=plan.clocks_ms,
            node_bytes_max=plan.node_bytes_max or NODE_BYTES_MAX,
        )
        is_calm = all(trouble.kind in _HARMLESS for trouble in plan.troubles)
        invariants = Invariants(cluster, self.timeline, stays_in_sync=is_calm)
        watching = asyncio.ensure_future(_watch(invariants))
        playing = asyncio.ensure_future(self._play(cluster))
        await asyncio.wait([watching, playing], return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            playing.cancel()
            watching.result()
        watching.cancel()
        playing.result()
        cluster.kill_all()

    async def _play(self, cluster: SimulatedCluster) -> None:
        await cluster.start()
        self.timeline.add(CLUSTER, "log", "all brokers serve")
        await self._create_topics(cluster)
        workloads = workloads_for(cluster, self.plan, self.history)
        running = [asyncio.ensure_future(workload.host.start(workload.run())) for workload in workloads]
        troubles = Troubles(cluster, self.plan, self.timeline, self.history)
        hurting = asyncio.ensure_future(troubles.run())
        await asyncio.sleep(self.plan.duration_s)
        try:
            async with asyncio.timeout(self.plan.heal_s):
                await hurting
        except TimeoutError:
            raise BrokenError(f"a broker does not start: {unrest(cluster)}") from None
        troubles.clear()
        self.timeline.add(CLUSTER, "fault", "all faults are over")
        found = await self._heal(cluster, troubles, workloads, running)
        check_all(cluster, self.history, found, await self._kept_offsets(cluster))
        for group in self.history.groups:
            commits = await self._committed(cluster, group)
            check_committed(self.history, group, {commit.partition: commit.offset for commit in commits})
        if "parallel" in self.plan.workloads:
            # Their letters came while the others were at rest already, and coordinators write at any time.
            await self._rest(cluster)
            found = all_contents(cluster, self.history)
            settle_doubts(cluster, self.history.handled)
            committed = await self._committed(cluster, PARALLEL_GROUP)
            check_committed(self.history, PARALLEL_GROUP, {commit.partition: commit.offset for commit in committed})
            check_handled(self.history.handled, found, VARIANTS[self.plan.parallel], committed)

    async def _heal(
        self,
        cluster: SimulatedCluster,
        troubles: Troubles,
        workloads: list[Workload],
        running: list[asyncio.Future[None]],
    ) -> dict[TopicPartition, Contents]:
        """Without faults all comes to rest: writers end, replicas are in sync, and readers are given everything."""
        topics = [WRITING[workload] for workload in self.plan.workloads if workload in WRITING]
        reason: str | None = "writers do not come to an end"
        try:
            async with asyncio.timeout(self.plan.heal_s):
                await self._end(workloads, running, is_reading=False)
                while (reason := unrest(cluster)) is not None:
                    await troubles.give_up_lost()
                    await asyncio.sleep(CHECK_S)
                found = all_contents(cluster, self.history)
                while (reason := not_given(self.history, found, topics)) is not None:
                    _raise_ended(running)
                    await asyncio.sleep(CHECK_S)
                    settle_doubts(cluster, self.history.handled)
                while (reason := await self._uncommitted(cluster, found)) is not None:
                    await asyncio.sleep(COMMITS_S)
                reason = "readers do not come to an end"
                await self._end(workloads, running, is_reading=True)
        except TimeoutError:
            raise BrokenError(f"it does not heal within {self.plan.heal_s:g} s: {reason}") from None
        await self._rest(cluster)
        return found

    async def _rest(self, cluster: SimulatedCluster) -> None:
        reason = None
        try:
            async with asyncio.timeout(self.plan.heal_s):
                while (reason := unrest(cluster)) is not None:
                    await asyncio.sleep(CHECK_S)
        except TimeoutError:
            raise BrokenError(f"it does not come to rest within {self.plan.heal_s:g} s: {reason}") from None

    async def _end(self, workloads: list[Workload], running: list[asyncio.Future[None]], *, is_reading: bool) -> None:
        chosen = [(workload, task) for workload, task in zip(workloads, running) if workload.is_reading == is_reading]
        for workload, _ in chosen:
            workload.is_stopping = True
        await asyncio.gather(*(task for _, task in chosen))

    async def _create_topics(self, cluster: SimulatedCluster) -> None:
        plan, size = self.plan, cluster_size(self.plan)
        topics = [WRITING[workload] for workload in plan.workloads if workload in WRITING]
        if "parallel" in plan.workloads:
            topics += [*VARIANTS[plan.parallel].topics, DEAD_LETTERS]
        wanted = [NewTopic(topic, plan.partitions, size) for topic in topics]
        for workload in plan.workloads:
            if workload in TRIMMING:
                topic = TRIMMING[workload]
                wanted.append(NewTopic(topic, plan.partitions, size, configs=_paced(TRIMMED[topic], plan.pace)))
        if "offsets" in plan.workloads:
            wanted.append(NewTopic("kept", 1, size))
        async with cluster.admin() as admin:
            (await admin.create_topics(wanted)).all()

    async def _uncommitted(self, cluster: SimulatedCluster, found: dict[TopicPartition, Contents]) -> str | None:
        """What parallel consumers have finished and not committed, while they are still there; None: nothing."""
        if "parallel" not in self.plan.workloads:
            return None
        return not_committed(found, await self._committed(cluster, PARALLEL_GROUP))

    async def _committed(self, cluster: SimulatedCluster, group: str) -> list[ParallelCommit]:
        """What a group has committed now."""
        async with cluster.admin() as admin:
            found = (await admin.list_group_offsets([group])).all()[group]
        tick = self.history.tick()
        return [
            ParallelCommit(partition, entry.offset, entry.metadata, tick)
            for partition, entry in found.items()
            if entry is not None
        ]

    async def _kept_offsets(self, cluster: SimulatedCluster) -> dict[str, int]:
        """The offsets that transactions committed, by group."""
        groups = sorted({transaction.writer for transaction in self.history.transactions if transaction.has_offset})
        if not groups:
            return {}
        async with cluster.admin() as admin:
            found = (await admin.list_group_offsets(groups)).all()
        return {
            group: entry.offset
            for group, offsets in found.items()
            for partition, entry in offsets.items()
            if partition.topic in (Transactor.topic, Rival.topic)
        }


def _raise_ended(running: Iterable[asyncio.Future[None]]) -> None:
    """What a client ended with is said at once: it will not be given what it waits for."""
    for task in running:
        if task.done():
            task.result()


async def _watch(invariants: Invariants) -> None:
    while True:
        invariants.check()
        await asyncio.sleep(CHECK_S)


def cluster_size(plan: Plan) -> int:
    return min(plan.brokers, 3)


def _paced(configs: Mapping[str, str], pace: float) -> dict[str, str]:
    return {name: str(int(int(text) * pace)) if name.endswith(".ms") else text for name, text in configs.items()}


def play(plan: Plan, *, is_traced: bool = False) -> RunResult:
    """Run a plan. The same plan takes the same course each time."""
    return SimulatedRun(plan, is_traced=is_traced).play()


def shrink(plan: Plan, tries_max: int = 60, on_try: Callable[[Plan], None] | None = None) -> RunResult:
    """The smallest plan found that still fails in the same way: without the faults and clients that it does not need.

    Faults are left out in halves, then quarters, and so on, then one by one. Ctrl-C ends it with what was found so far.
    """
    shrinking = _Shrinking(plan, tries_max, on_try)
    with contextlib.suppress(KeyboardInterrupt):
        shrinking.run()
    return shrinking.best


class _Shrinking:
    """The smallest plan so far, and tries to leave out more of it."""

    def __init__(self, plan: Plan, tries_max: int, on_try: Callable[[Plan], None] | None) -> None:
        self.best = play(plan)
        self._left = tries_max
        self._on_try = on_try

    def run(self) -> None:
        self._leave_out_clients()
        self._leave_out_troubles()
        plan = self.best.plan
        self._fails(replace(plan, partitions=1))
        while self.best.plan.records_max > 1 and self._fails(
            replace(self.best.plan, records_max=self.best.plan.records_max // 2)
        ):
            pass
        ended_s = max((trouble.at_s + trouble.for_s for trouble in self.best.plan.troubles), default=0.0) + 0.1
        if ended_s < self.best.plan.duration_s:
            self._fails(replace(self.best.plan, duration_s=round(ended_s, 3)))

    def _leave_out_clients(self) -> None:
        for workload in self.best.plan.workloads:
            left = tuple(other for other in self.best.plan.workloads if other != workload)
            if WRITING.keys() & set(left):
                self._fails(replace(self.best.plan, workloads=left))

    def _leave_out_troubles(self) -> None:
        size = max(1, len(self.best.plan.troubles) // 2)
        while True:
            start = 0
            while start < len(self.best.plan.troubles):
                if not self._fails(self.best.plan.without(self.best.plan.troubles[start : start + size])):
                    start += size
            if size == 1:
                break
            size //= 2

    def _fails(self, candidate: Plan) -> bool:
        if self._left <= 0:
            return False
        self._left -= 1
        if self._on_try is not None:
            self._on_try(candidate)
        verdict = play(candidate)
        # What fails in another way is another failure: it would explain nothing.
        if verdict.failure is None or verdict.kind != self.best.kind:
            return False
        self.best = verdict
        return True
