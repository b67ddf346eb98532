"""Which clients a plan has."""

from __future__ import annotations

from headrace.testing.simulated.cluster import SimulatedCluster
from headrace.testing.simulated.faults import RIVALS, TRIES_AGAIN
from headrace.testing.simulated.history import History
from headrace.testing.simulated.parallel import KeyedRecords, ParallelMember
from headrace.testing.simulated.plans import TRIMMING, WRITING, Plan
from headrace.testing.simulated.static_members import MortalMember, StaticMember
from headrace.testing.simulated.variants import DEAD_LETTERS, KEYED, RETRIES
from headrace.testing.simulated.workloads import (
    ASSIGNORS,
    GROUP,
    Administrator,
    Crowd,
    ImpatientWriter,
    KeyedWriter,
    MemberWorkload,
    OffsetKeeper,
    Reader,
    Rival,
    Transactor,
    Workload,
    Writer,
)


def workloads_for(cluster: SimulatedCluster, plan: Plan, history: History) -> list[Workload]:
    """The clients of a plan."""
    topics = [WRITING[workload] for workload in plan.workloads if workload in WRITING]
    made: list[Workload] = []
    for workload in plan.workloads:
        if workload == "idempotent":
            made += [Writer(cluster, plan, history, f"numbered-{n}", WRITING[workload], True) for n in (1, 2)]
        elif workload == "plain":
            history.may_repeat.add(WRITING[workload])
            made.append(Writer(cluster, plan, history, "plain-1", WRITING[workload], False))
        elif workload == "crowd":
            history.may_repeat.add(WRITING[workload])
            made.append(Crowd(cluster, plan, history, "crowd"))
        elif workload in TRIMMING:
            topic = TRIMMING[workload]
            made.append(KeyedWriter(cluster, plan, history, f"{workload}-1", topic, True))
        elif workload == "transactions":
            made += [Transactor(cluster, plan, history, f"transactor-{n}") for n in (1, 2)]
        elif workload == RIVALS:
            made += [Rival(cluster, plan, history, f"rival-{n}") for n in (1, 2)]
        elif workload == TRIES_AGAIN:
            made += [ImpatientWriter(cluster, plan, history, f"impatient-{n}") for n in (1, 2)]
        elif workload == "readers":
            made += [
                Reader(cluster, plan, history, f"reader-{n}", topics, committed)
                for n, committed in ((1, True), (2, False))
            ]
        elif workload == "group":
            history.groups.append(GROUP)
            # Not with the cooperative one: see parallel consumers.
            assignors = ASSIGNORS[:-1] if plan.is_static else ASSIGNORS
            assignor = cluster.simulation.random_for("assignor").choice(assignors)
            member = StaticMember if plan.is_static else MortalMember if plan.is_mortal else MemberWorkload
            made += [member(cluster, plan, history, f"member-{n}", topics, assignor) for n in (1, 2)]
        elif workload == "offsets":
            made.append(OffsetKeeper(cluster, plan, history, "keeper"))
        elif workload == "parallel":
            for topic in (RETRIES, DEAD_LETTERS):
                history.sent[topic] = set()
                history.may_repeat.add(topic)
            made.append(KeyedRecords(cluster, plan, history, "keyed-1", KEYED, True))
            made += [ParallelMember(cluster, plan, history, f"parallel-{n}") for n in (1, 2)]
        elif workload == "admin":
            made.append(Administrator(cluster, plan, history, "admin"))
    return made
