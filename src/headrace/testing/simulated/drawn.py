"""Faults for somebody's own test, drawn from the seed of its cluster."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cluster.topic_names import is_internal
from headrace.testing.simulated.faults import Trouble
from headrace.testing.simulated.history import History
from headrace.testing.simulated.plans import KINDS, Plan
from headrace.testing.simulated.troubles import Troubles

if TYPE_CHECKING:
    from headrace.testing.simulated.cluster import SimulatedCluster

#: What is drawn where nothing else is asked for: whatever a client should live through.
USUAL = tuple(kind for kind in KINDS if kind not in ("topic made again", "disk lost", "clock jump", "clock drift"))
_LASTS_S = (0.05, 0.5, 1.5, 3.0)
_WHO = ("1", "2", "3", "leading", "leading", "second", "controller")


async def draw_faults(cluster: SimulatedCluster, seconds: float, kinds: Sequence[str], between_s: float) -> None:
    """See `SimulatedCluster.faults`."""
    unknown = sorted(set(kinds) - KINDS.keys())
    if unknown:
        raise ValueError(f"no such fault as {', '.join(unknown)}: there are {', '.join(USUAL)}")
    rng = cluster.simulation.random_for(f"faults {cluster.simulation.loop.time()}")
    image = cluster.newest_image
    topics = sorted(name for name in (image.topics if image is not None else ()) if not is_internal(name)) or [""]
    plan = Plan(
        seed=0,
        duration_s=seconds,
        min_isr=int(cluster.brokers[1].settings.get("min.insync.replicas", "1")),
        partitions=1,
        workloads=(),
        troubles=tuple(_drawn(rng, seconds, list(kinds), between_s, topics, len(cluster.brokers))),
        records_max=0,
        brokers=len(cluster.brokers),
        pace=cluster.pace,
    )
    troubles = Troubles(cluster, plan, cluster.timeline, History())
    await troubles.run()
    troubles.clear()


def _drawn(
    rng: random.Random, seconds: float, kinds: list[str], between_s: float, topics: list[str], brokers: int
) -> list[Trouble]:
    weights = [KINDS[kind] for kind in kinds]
    who = [name for name in _WHO if not name.isdigit() or int(name) <= brokers]
    found: list[Trouble] = []
    at_s = rng.expovariate(1 / between_s)
    while at_s < seconds:
        kind = rng.choices(kinds, weights)[0]
        for_s = rng.choice(_LASTS_S) * rng.uniform(0.7, 1.3)
        other = str(rng.randint(1, brokers))
        found.append(
            Trouble(at_s, for_s, kind, rng.choice(who), other, min(0.999, rng.random()), topic=rng.choice(topics))
        )
        at_s += rng.expovariate(1 / between_s)
    return found
