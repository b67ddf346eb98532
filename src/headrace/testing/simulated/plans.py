"""What a run will be, drawn from its seed before it begins: so that parts of it can be left out, and it still fails."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.testing.simulated.directed import DIRECTED, Directed
from headrace.testing.simulated.faults import DIRECTORIES, RIVALS, TRIES_AGAIN, Trouble
from headrace.testing.simulated.operators import OPERATORS
from headrace.testing.simulated.owners import OWNERS
from headrace.testing.simulated.scenarios import OFFSETS, SCENARIOS, TRANSACTIONS, steps_of
from headrace.testing.simulated.variants import DEAD_LETTERS, FORMER, VARIANTS

#: Kinds of trouble, and how often each is drawn where the seed has it on.
KINDS = {
    "kill": 5,
    "power": 4,
    "stop": 2,
    "pause": 4,
    "isolate": 4,
    "cut": 3,
    "cut one way": 3,
    "reset": 3,
    "half open": 2,
    "slow network": 2,
    "slow disk": 2,
    "disk error": 2,
    "disk full": 1,
    "clock jump": 1,
    "clock drift": 1,
    "store away": 2,
    "store forgets": 2,
    "session lost": 3,
    "store breaks": 2,
    "client cut": 2,
    "store cut": 2,
    "election": 3,
    "disk lost": 1,
    "topic made again": 1,
}
#: The topic that each kind of producer writes to.
WRITING = {"idempotent": "numbered", "plain": "plain", "crowd": "crowd", "transactions": "transactional"}
#: Likewise, of producers that only directed plans have.
_WRITING_TOO = {RIVALS: "contended", TRIES_AGAIN: "tried-again"}
#: Topics of which brokers remove records while they are written to, and how they are configured.
TRIMMING = {"compaction": "compacted", "retention": "retained"}
TRIMMED = {
    "compacted": {"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01"},
    "retained": {"cleanup.policy": "delete", "segment.ms": "500", "retention.ms": "2000"},
}
WORKLOADS = (*WRITING, *TRIMMING, "group", "offsets", "admin", "readers", "parallel")
WRITING |= _WRITING_TOO
#: Of so many seeds one has a directed plan.
_DIRECTED_EVERY = 3
_DIRECTED_DURATION_S = (0.8, 2.4)
_DIRECTED_RECORDS_MAX = (15, 40, 60)
#: Whom a fault is of: a broker by its number, or what it is to a partition just then.
_WHO = ("1", "2", "3", "1", "2", "3", "leading", "leading", "second", "controller")
#: How many courses of faults that belong together a plan has beside others.
_COURSES = (0, 0, 1, 1, 2)
_BROKERS = (3, 3, 3, 3, 4)
#: Each kind of trouble is off in that many of all seeds: rare things happen where common ones do not hide them.
_OFF = 0.5
_DURATION_S = (3.0, 10.0)
_LASTS_S = (0.05, 0.5, 1.5, 3.0, 5.0)
#: Most seeds are short: one client or two, time-outs of a third, and faults that last as much shorter. A short plan
#: has single faults, or one whole course and sometimes single faults beside it. The others are long, as above.
SHAPES = ("long", *("faults",) * 4, *("course",) * 5)
SHORT_PACE = 0.35
_SHORT_LASTS_S = (0.05, 0.5, 1.5, 3.0)
_SHORT_DURATION_S = (0.6, 2.2)
_SHORT_RECORDS_MAX = (5, 15, 40)
#: So many of the plans with an administrator have a fourth broker. Each costs a third more than with three.
_ROOM_TO_MOVE = 0.1
#: Of plans with a group, in so many a member hangs; and how long: longer than its session lasts.
_GROUPS = {"group", "parallel"}
_CLIENT_PAUSES = 0.07
_CLIENT_PAUSE_S = (3.3, 5.0)
#: Of plans with a plain group, in so many its members are static ones.
_STATIC = 0.35
#: So many plans have partitions added to topics, once or twice.
_GROWING = 0.12
MORE_PARTITIONS = "partitions added"
#: So many have topics configured anew, up to three times.
_CONFIGURING = 0.2
CONFIGURED = "configured"
#: In so many the clocks of all machines differ, by up to twice that, and some of clients step. Where brokers or clients
#: tell one another times, seconds: when a retry is due, and since when a transaction lasts. Elsewhere they are as wrong
#: as they may be for records to be accepted, which may be of the next hour at most.
_CLOCKS = 0.2
_CLOCKS_MS = (500, 5_000)
_WRONG_CLOCKS_MS = (500, 5_000, 1_200_000)
CLOCK_STEP = "client clock step"
#: So many have faults in which it is hard to know who is who, one or two (`owners`).
_OWNERS = 0.2
_OWNERS_LAST_S = (1.0, 4.0, 8.0)
#: So many have operators who do what nobody expects, or single errors of a disk (`operators`), one to three.
_OPERATORS = 0.2
_OPERATORS_LAST_S = (0.2, 1.0, 4.0)
#: In so many brokers have two directories; in so many what is decided at once takes several nodes of the store.
_SEVERAL_DIRECTORIES = 0.1
_SMALL_NODES = 0.1
_NODE_BYTES_MAX = 700
#: Clients that a course is about which concerns a coordinator.
_OF_COORDINATORS = {OFFSETS: ("offsets", "group"), TRANSACTIONS: ("transactions",)}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a seed decides ahead of time."""

    seed: int
    duration_s: float
    min_isr: int
    partitions: int
    workloads: tuple[str, ...]
    troubles: tuple[Trouble, ...]
    #: How many records each producer sends at most.
    records_max: int
    brokers: int = 3
    #: How long all may take to be well again after the last fault.
    heal_s: float = 120.0
    #: How long time-outs are, of what they are in a long plan.
    pace: float = 1.0
    #: Of which kind parallel consumers are, where there are any.
    parallel: str = FORMER
    #: Whether members of the plain group are static ones.
    is_static: bool = False
    #: How far clocks of machines may be off when they begin.
    clocks_ms: int = 0
    #: What each broker keeps its logs in.
    directories: tuple[str, ...] = DIRECTORIES[:1]
    #: How much of a decision fits a node of the store; 0: as much as usual.
    node_bytes_max: int = 0
    #: Whether members of the plain group die without a word.
    is_mortal: bool = False
    #: Which directed plan it is; empty: none.
    directed: str = ""

    @property
    def grows(self) -> bool:
        """Whether a topic is given more partitions, which clients are to notice soon."""
        return any(trouble.kind == MORE_PARTITIONS for trouble in self.troubles)

    @property
    def steps_clocks(self) -> bool:
        """Whether clocks of clients are set while they run."""
        return any(trouble.kind == CLOCK_STEP for trouble in self.troubles)

    @property
    def topics(self) -> list[str]:
        """Those that its clients write to."""
        names = {**WRITING, **TRIMMING}
        own = [names[workload] for workload in self.workloads if workload in names]
        return [*own, *VARIANTS[self.parallel].topics, DEAD_LETTERS] if "parallel" in self.workloads else own

    def without(self, troubles: tuple[Trouble, ...]) -> Plan:
        return replace(self, troubles=tuple(trouble for trouble in self.troubles if trouble not in troubles))

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, document: dict[str, Any]) -> Plan:
        """What `document` gave, as it comes out of JSON."""
        troubles = tuple(Trouble(**entry) for entry in document["troubles"])
        directories = tuple(document.get("directories", DIRECTORIES[:1]))
        return cls(
            **{
                **document,
                "troubles": troubles,
                "workloads": tuple(document["workloads"]),
                "directories": directories,
            }
        )

    def lines(self) -> list[str]:
        name = f"{self.directed}: " if self.directed else ""
        head = (
            f"seed {self.seed}: {name}{self.brokers} brokers, min.insync.replicas={self.min_isr}, {self.partitions} "
            f"partition{'' if self.partitions == 1 else 's'}, {self._clients()}; {self.duration_s:.1f} s, "
            f"{len(self.troubles)} fault{'' if len(self.troubles) == 1 else 's'}"
            f"{'' if self.pace == 1.0 else f', time-outs of {self.pace:.0%}'}"
            f"{f', clocks off by up to {self.clocks_ms} ms' if self.clocks_ms else ''}"
            f"{f', {len(self.directories)} directories each' if len(self.directories) > 1 else ''}"
            f"{f', nodes of {self.node_bytes_max} bytes' if self.node_bytes_max else ''}"
        )
        return [head, *(f"  {trouble.text()}" for trouble in self.troubles)]

    def _clients(self) -> str:
        kinds = {"parallel": f"parallel ({self.parallel})", "group": self._group()}
        return ", ".join(kinds.get(name, name) for name in self.workloads)

    def _group(self) -> str:
        return "group (static)" if self.is_static else "group (mortal)" if self.is_mortal else "group"


def plan_for(
    seed: int,
    *,
    only: Sequence[str] = (),
    always: Sequence[str] = (),
    scenarios: Sequence[str] | None = None,
    pace: float = 1.0,
) -> Plan:
    """The plan of a seed; the same for ever, as long as this function and its tables are.

    With `only` these kinds of trouble, with `always` these workloads among others, with `scenarios` one of these
    courses at the beginning, and little else; a plan with any of them has the `pace` that is given.
    """
    if not (only or always or scenarios) and seed % _DIRECTED_EVERY == 0:
        return directed_plan(seed, DIRECTED[seed // _DIRECTED_EVERY % len(DIRECTED)])
    plan = _plan_for(seed, only, always, scenarios, pace)
    # Each of a stream of its own: all else is as it was before there were these.
    plan = replace(plan, parallel=random.Random(f"parallel {seed}").choice(list(VARIANTS)))
    if only or always or scenarios:
        return plan
    plan = replace(plan, is_static="group" in plan.workloads and random.Random(f"static {seed}").random() < _STATIC)
    plan = _with_room_to_move(plan)
    hangs = _GROUPS & set(plan.workloads) and random.Random(f"client pause {seed}").random() < _CLIENT_PAUSES
    plan = with_client_pause(plan) if hangs else plan
    plan = with_more_partitions(plan) if random.Random(f"partitions {seed}").random() < _GROWING else plan
    plan = with_other_configs(plan) if random.Random(f"configured {seed}").random() < _CONFIGURING else plan
    plan = with_other_clocks(plan) if random.Random(f"clocks {seed}").random() < _CLOCKS else plan
    plan = with_owners(plan) if random.Random(f"owners {seed}").random() < _OWNERS else plan
    plan = with_operators(plan) if random.Random(f"operators {seed}").random() < _OPERATORS else plan
    if random.Random(f"directories {seed}").random() < _SEVERAL_DIRECTORIES:
        plan = replace(plan, directories=DIRECTORIES)
    is_small = random.Random(f"nodes {seed}").random() < _SMALL_NODES
    return replace(plan, node_bytes_max=_NODE_BYTES_MAX) if is_small else plan


def seed_of(directed: Directed) -> int:
    """The first seed that has this plan."""
    return DIRECTED.index(directed) * _DIRECTED_EVERY


def directed_plan(seed: int, directed: Directed) -> Plan:
    """A directed plan as that seed has it: these clients and no others, so that what it is for is most of it."""
    rng = random.Random(f"directed {seed}")
    workloads = tuple(name for name in (*WORKLOADS, *_WRITING_TOO) if name in directed.clients)
    if not WRITING.keys() & set(workloads):
        workloads = ("idempotent", *workloads)
    topics = [WRITING[name] for name in workloads if name in WRITING]
    topics += [TRIMMING[name] for name in workloads if name in TRIMMING]
    course = rng.choice(directed.courses) if directed.courses else None
    if course is None:
        duration_s = rng.uniform(*_DIRECTED_DURATION_S)
        troubles = _drawn(rng, directed.kinds, duration_s, topics, pace=SHORT_PACE)
    else:
        troubles = steps_of(course, 1, rng.uniform(0.1, 0.4), topics, rng, pace=SHORT_PACE)
        duration_s = max(trouble.at_s + trouble.for_s for trouble in troubles) + 0.2
    plan = Plan(
        seed=seed,
        duration_s=round(duration_s, 3),
        min_isr=rng.choice((1, 2, 2)) if course is None else 2,
        partitions=max(directed.partitions_min, rng.choice((1, 1, 2))),
        workloads=workloads,
        troubles=tuple(sorted(troubles, key=lambda trouble: trouble.at_s)),
        records_max=rng.choice(_DIRECTED_RECORDS_MAX),
        brokers=3 if course is None else SCENARIOS[course].brokers,
        pace=SHORT_PACE,
        parallel=directed.parallel or FORMER,
        is_static=directed.members == "static",
        is_mortal=directed.members == "mortal",
        directed=directed.name,
    )
    plan = with_more_partitions(plan) if directed.grows else plan
    plan = with_other_configs(plan) if directed.configures else plan
    plan = with_other_clocks(plan) if directed.has_clocks else plan
    plan = with_owners(plan) if directed.has_owners else plan
    return with_client_pause(plan) if directed.hangs else plan


def _with_room_to_move(plan: Plan) -> Plan:
    """With an administrator there may be one broker more than replicas: else moving them only changes their order."""
    has_room = "admin" in plan.workloads and random.Random(f"room to move {plan.seed}").random() < _ROOM_TO_MOVE
    return replace(plan, brokers=4) if has_room else plan


def with_client_pause(plan: Plan) -> Plan:
    """A member of a group hangs, is replaced by others, and does not know."""
    rng = random.Random(f"when a client pauses {plan.seed}")
    at_s, for_s = rng.uniform(0.1, plan.duration_s), rng.uniform(*_CLIENT_PAUSE_S)
    pause = Trouble(round(at_s, 3), round(for_s, 3), "client pause", "", "", min(0.999, round(rng.random(), 3)))
    return _with(plan, pause)


def with_more_partitions(plan: Plan) -> Plan:
    """A topic is given more partitions while clients use it; or two are, or one twice."""
    rng = random.Random(f"which partitions are added {plan.seed}")
    count = rng.choice((1, 1, 2))
    return _with(plan, *(_of_topic(plan, rng, MORE_PARTITIONS, rng.uniform(0.05, 0.8)) for _ in range(count)))


def with_other_configs(plan: Plan) -> Plan:
    """Topics are configured anew while clients use them; some from the beginning."""
    rng = random.Random(f"how topics are configured {plan.seed}")
    count = rng.choice((1, 2, 3))
    return _with(
        plan,
        *(
            _of_topic(plan, rng, CONFIGURED, rng.choice((0.0, rng.uniform(0.05, 0.9))), rng.choice(_LASTS_S))
            for _ in range(count)
        ),
    )


def _of_topic(plan: Plan, rng: random.Random, kind: str, at: float, lasts_s: float = 0.0) -> Trouble:
    """Something that befalls a topic, at that part of the plan's time."""
    at_s, lasts_s = round(at * plan.duration_s, 3), round(lasts_s * plan.pace, 3)
    return Trouble(at_s, lasts_s, kind, "", "", min(0.999, round(rng.random(), 3)), topic=rng.choice(plan.topics))


def with_other_clocks(plan: Plan) -> Plan:
    """Machines have clocks that differ, and those of some clients step."""
    rng = random.Random(f"which clocks {plan.seed}")
    tells_times = {"transactions", "parallel"} & set(plan.workloads)
    plan = replace(plan, clocks_ms=rng.choice(_CLOCKS_MS if tells_times else _WRONG_CLOCKS_MS))
    steps = [
        (round(rng.uniform(0.0, plan.duration_s), 3), min(0.999, round(rng.random(), 3)))
        for _ in range(rng.choice((0, 1, 3)))
    ]
    return _with(plan, *(Trouble(at_s, 0.0, CLOCK_STEP, "", "", level) for at_s, level in steps))


def with_owners(plan: Plan, *, only: Sequence[str] = ()) -> Plan:
    """It is hard to know who is who: see `owners`. Some last longer than a session does."""
    rng = random.Random(f"which owners {plan.seed}")
    made = []
    for _ in range(rng.choice((1, 1, 2))):
        at_s = round(rng.uniform(0.05, 0.9) * plan.duration_s, 3)
        for_s = round(rng.choice(_OWNERS_LAST_S) * rng.uniform(0.7, 1.3) * plan.pace, 3)
        kind, who, level = rng.choice(tuple(only or OWNERS)), rng.choice(_WHO), min(0.999, round(rng.random(), 3))
        topic = rng.choice(plan.topics)
        made.append(Trouble(at_s, for_s, kind, who, "", level, topic=topic))
    return _with(plan, *made)


def with_operators(plan: Plan, *, only: Sequence[str] = ()) -> Plan:
    """Operators do what nobody expects, and calls of a disk fail once: see `operators`."""
    rng = random.Random(f"which operators {plan.seed}")
    made = []
    for _ in range(rng.choice((1, 2, 3))):
        at_s = round(rng.uniform(0.05, 0.95) * plan.duration_s, 3)
        for_s = round(rng.choice(_OPERATORS_LAST_S) * rng.uniform(0.7, 1.3) * plan.pace, 3)
        kind, who, level = rng.choice(tuple(only or OPERATORS)), rng.choice(_WHO), min(0.999, round(rng.random(), 3))
        made.append(Trouble(at_s, for_s, kind, who, "", level, topic=rng.choice(plan.topics)))
    return _with(plan, *made)


def _with(plan: Plan, *troubles: Trouble) -> Plan:
    return replace(plan, troubles=tuple(sorted((*plan.troubles, *troubles), key=lambda trouble: trouble.at_s)))


def _plan_for(
    seed: int, only: Sequence[str], always: Sequence[str], scenarios: Sequence[str] | None, pace: float
) -> Plan:
    rng = random.Random(f"plan {seed}")
    if scenarios:
        return _course(seed, rng, scenarios, always, pace)
    shape = "long" if only or always else random.Random(f"shape {seed}").choice(SHAPES)
    if shape != "long":
        return _short(seed, rng, shape)
    workloads = _workloads(rng, rng.randint(2, 4), always)
    topics = [WRITING[name] for name in workloads if name in WRITING]
    duration_s = rng.uniform(*_DURATION_S) * pace
    troubles = _drawn(rng, only, duration_s, topics, pace=pace)
    for number in range(1, 1 + (0 if only else rng.choice(_COURSES))):
        begin_s = rng.uniform(0.3, max(0.5, duration_s - 5.0))
        troubles += steps_of(rng.choice(list(SCENARIOS)), number, begin_s, topics, rng)
    return Plan(
        seed=seed,
        duration_s=round(duration_s, 3),
        min_isr=rng.choice((1, 2, 2)),
        partitions=rng.choice((1, 2, 3)),
        workloads=workloads,
        troubles=tuple(sorted(troubles, key=lambda trouble: trouble.at_s)),
        records_max=rng.choice((20, 60, 150)),
        brokers=rng.choice(_BROKERS),
        pace=pace,
    )


def _short(seed: int, rng: random.Random, shape: str) -> Plan:
    """Few faults, or one course, in a few virtual seconds."""
    scenario = rng.choice(list(SCENARIOS)) if shape == "course" else None
    about = () if scenario is None else _OF_COORDINATORS.get(SCENARIOS[scenario].about, ())
    workloads = _workloads(rng, rng.randint(1, 2), rng.sample(about, 1) if about else ())
    topics = [WRITING[name] for name in workloads if name in WRITING]
    duration_s = rng.uniform(*_SHORT_DURATION_S)
    troubles: list[Trouble] = []
    if scenario is not None:
        troubles = steps_of(scenario, 1, rng.uniform(0.1, 0.4), topics, rng, pace=SHORT_PACE)
        duration_s = max(trouble.at_s + trouble.for_s for trouble in troubles) + 0.2
    if scenario is None or rng.random() < 0.5:
        troubles += _drawn(rng, (), duration_s, topics, pace=SHORT_PACE)
    return Plan(
        seed=seed,
        duration_s=round(duration_s, 3),
        min_isr=rng.choice((1, 2, 2)) if scenario is None else 2,
        partitions=rng.choice((1, 1, 2)),
        workloads=workloads,
        troubles=tuple(sorted(troubles, key=lambda trouble: trouble.at_s)),
        records_max=rng.choice(_SHORT_RECORDS_MAX),
        brokers=3 if scenario is None else SCENARIOS[scenario].brokers,
        pace=SHORT_PACE,
    )


def _course(seed: int, rng: random.Random, scenarios: Sequence[str], always: Sequence[str], pace: float) -> Plan:
    """One of these courses, with few clients and no other faults."""
    workloads = _workloads(rng, 1, always)
    topics = [WRITING[name] for name in workloads if name in WRITING]
    scenario = rng.choice(list(scenarios))
    troubles = steps_of(scenario, 1, rng.uniform(0.3, 0.6), topics, rng, pace=pace)
    return Plan(
        seed=seed,
        duration_s=round(max(trouble.at_s + trouble.for_s for trouble in troubles) + 0.5 * pace, 3),
        min_isr=2,
        partitions=rng.choice((1, 2, 3)),
        workloads=workloads,
        troubles=tuple(sorted(troubles, key=lambda trouble: trouble.at_s)),
        records_max=150,
        brokers=SCENARIOS[scenario].brokers,
        heal_s=45.0,
        pace=pace,
    )


def _workloads(rng: random.Random, count: int, always: Sequence[str]) -> tuple[str, ...]:
    drawn = {*rng.sample(WORKLOADS, count), *always}
    if not WRITING.keys() & drawn:
        drawn.add("idempotent")
    return tuple(name for name in WORKLOADS if name in drawn)


def _drawn(
    rng: random.Random, only: Sequence[str], duration_s: float, topics: list[str], *, pace: float = 1.0
) -> list[Trouble]:
    """Faults of the kinds that this seed has, one after the other."""
    kinds = list(only) or [kind for kind in KINDS if rng.random() >= _OFF] or ["kill"]
    weights = [KINDS[kind] for kind in kinds]
    between_s = rng.choice((0.5, 1.0, 2.0)) * pace
    troubles = []
    at_s = rng.uniform(0.1, 1.0) * pace
    while at_s < duration_s:
        kind = rng.choices(kinds, weights)[0]
        who, other = rng.choice(_WHO), rng.choice("123")
        for_s = rng.choice(_LASTS_S if pace == 1.0 else _SHORT_LASTS_S) * rng.uniform(0.7, 1.3) * pace
        level = min(0.999, round(rng.random(), 3))
        troubles.append(Trouble(round(at_s, 3), round(for_s, 3), kind, who, other, level, topic=rng.choice(topics)))
        at_s += rng.expovariate(1 / between_s)
    return troubles
