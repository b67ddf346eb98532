"""What a run will be, drawn from its seed before it begins: so that parts of it can be left out, and it still fails."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

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
}
WORKLOADS = ("idempotent", "plain", "transactions", "group", "offsets", "admin", "readers")
#: Each kind of trouble is off in that many of all seeds: rare things happen where common ones do not hide them.
_OFF = 0.5
_DURATION_S = (3.0, 10.0)
_LASTS_S = (0.05, 0.5, 1.5, 3.0, 5.0)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One fault: when, how long, and of whom."""

    at_s: float
    for_s: float
    kind: str
    node: int
    other: int
    #: A number below 1 that says how bad, where that makes sense.
    level: float

    def text(self) -> str:
        return f"{self.kind}: broker {self.node} at {self.at_s:.2f} s for {self.for_s:.2f} s"


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

    def without(self, troubles: tuple[Trouble, ...]) -> Plan:
        return replace(self, troubles=tuple(trouble for trouble in self.troubles if trouble not in troubles))

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, document: dict[str, Any]) -> Plan:
        """What `document` gave, as it comes out of JSON."""
        troubles = tuple(Trouble(**entry) for entry in document["troubles"])
        return cls(**{**document, "troubles": troubles, "workloads": tuple(document["workloads"])})

    def lines(self) -> list[str]:
        head = (
            f"seed {self.seed}: {self.brokers} brokers, min.insync.replicas={self.min_isr}, {self.partitions} "
            f"partitions, {', '.join(self.workloads)}; {self.duration_s:.1f} s, {len(self.troubles)} faults"
        )
        return [head, *(f"  {trouble.text()}" for trouble in self.troubles)]


def plan_for(seed: int, *, only: Sequence[str] = (), always: Sequence[str] = ()) -> Plan:
    """The plan of a seed; the same for ever, as long as this function and its tables are.

    With `only` these kinds of trouble, and with `always` these workloads among others.
    """
    rng = random.Random(f"plan {seed}")
    kinds = list(only) or [kind for kind in KINDS if rng.random() >= _OFF] or ["kill"]
    weights = [KINDS[kind] for kind in kinds]
    duration_s = rng.uniform(*_DURATION_S)
    pace_s = rng.choice((0.5, 1.0, 2.0))
    troubles = []
    at_s = rng.uniform(0.1, 1.0)
    while at_s < duration_s:
        kind = rng.choices(kinds, weights)[0]
        node, other = rng.sample(range(1, 4), 2)
        for_s = rng.choice(_LASTS_S) * rng.uniform(0.7, 1.3)
        troubles.append(Trouble(round(at_s, 3), round(for_s, 3), kind, node, other, round(rng.random(), 3)))
        at_s += rng.expovariate(1 / pace_s)
    workloads = tuple(sorted(rng.sample(WORKLOADS, rng.randint(2, 4)), key=WORKLOADS.index))
    if not {"idempotent", "plain", "transactions"} & set(workloads):
        workloads = ("idempotent", *workloads)
    workloads = tuple(name for name in WORKLOADS if name in always or name in workloads)
    return Plan(
        seed=seed,
        duration_s=round(duration_s, 3),
        min_isr=rng.choice((1, 2, 2)),
        partitions=rng.choice((1, 2, 3)),
        workloads=workloads,
        troubles=tuple(troubles),
        records_max=rng.choice((20, 60, 150)),
    )
