"""Courses of faults that broke Kafka once, or are expected to break whoever copies it: several faults that only hurt
together, of brokers that are named by what they are to one partition, each at its moment.

Drawn at random they would hardly ever meet. A seed decides when a course begins, how long its steps take and which
partition it is about; so each comes in many versions, beside the faults that the seed has anyway.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from headrace.testing.simulated.faults import Trouble

#: What a course is about: a partition that records are written to, or one of a coordinator.
DATA, OFFSETS, TRANSACTIONS = "data", "__consumer_offsets", "__transaction_state"

Range = tuple[float, float]


class Step(NamedTuple):
    """One fault: when it begins, counted from the beginning of the course, and how long it lasts.

    `who` and `other` are `leader`, `second` and `third` as they were when the course began, or `leading` and
    `controller` as they are now. With `when` it waits for that state of the partition, once it is time.
    """

    kind: str
    who: str
    after_s: Range = (0.0, 0.0)
    for_s: Range = (0.5, 1.5)
    other: str = ""
    when: str = ""
    level: Range = (0.0, 1.0)


class Scenario(NamedTuple):
    """`leader` says whether the partition should be led by the controller, by anyone, or by another (the default): then
    the controller is the third."""

    steps: tuple[Step, ...]
    about: str = DATA
    leader: str = "other"
    #: With four, the controller may be none of the three replicas: what it tells a leader can be cut off alone.
    brokers: int = 3


_CLIENTS = (0.34, 0.65)
_ALSO_STORE, _NOT_STORE = (0.0, 0.5), (0.7, 1.0)

SCENARIOS: dict[str, Scenario] = {
    # What was sent to a leader without followers is sent again, and then it is gone.
    "again to a lagging leader": Scenario(
        (
            Step("cut", "leader", for_s=(2.0, 2.5), other="second"),
            Step("cut", "leader", for_s=(2.0, 2.5), other="third"),
            Step("reset", "leader", (0.3, 0.8), level=_CLIENTS),
            Step("reset", "leader", (0.9, 1.2), level=_CLIENTS),
            Step("kill", "leader", (1.3, 1.8), (1.0, 2.0)),
        ),
        leader="any",
    ),
    # KIP-101, KIP-320: it is cut off with clients that still write to it, and comes back to another's log.
    "a stale leader": Scenario(
        (
            Step("isolate", "leader", for_s=(2.5, 4.0), level=_ALSO_STORE),
            Step("slow disk", "leader", (0.0, 1.0), (1.0, 4.0)),
            Step("kill", "leading", (3.0, 4.5), (0.2, 1.0)),
        ),
        leader="any",
    ),
    # KIP-320: those that lead by now are away, so that clients ask the one that led before, which knows nothing of it.
    "only a stale leader is left": Scenario(
        (
            Step("isolate", "leader", for_s=(4.5, 5.5), level=_ALSO_STORE),
            Step("client cut", "leader", for_s=(2.6, 2.8)),
            Step("kill", "second", (2.8, 3.2), (0.8, 1.5)),
            Step("kill", "third", (2.8, 3.2), (0.8, 1.5)),
        ),
        leader="any",
    ),
    # KIP-279: two that do not hear of one another lead in turns, faster than either can copy the other.
    "elections there and back": Scenario(
        (
            Step("cut", "leader", for_s=(2.0, 2.8), other="second"),
            Step("election", "second", (0.3, 0.5)),
            Step("election", "leader", (0.7, 1.0)),
            Step("election", "second", (1.2, 1.6)),
            Step("election", "third", (1.8, 2.2)),
        )
    ),
    # KIP-497: a follower is let in again and falls behind at once, and the leader does not hear that it is in sync.
    "let in behind the leader's back": Scenario(
        (
            Step("pause", "second", for_s=(1.8, 3.0)),
            Step("cut one way", "controller", (1.8, 1.8), (0.6, 0.9), "leader", "a follower is about to come in"),
            Step("store cut", "leader", (1.8, 1.8), (0.6, 0.9), when="a follower is about to come in"),
            Step("cut", "leader", (1.8, 1.8), (0.6, 0.9), "second", "a follower is about to come in"),
        ),
        brokers=4,
    ),
    # KIP-903: it is restarted with nothing, while the word that lets it in is on its way.
    "restarted while it is let in": Scenario(
        (
            Step("pause", "second", for_s=(3.2, 3.6)),
            Step("cut one way", "leader", (3.2, 3.2), (1.6, 1.9), "controller", "a follower is about to come in"),
            Step("cut", "leader", (3.2, 3.2), (1.8, 2.4), "second", "a follower is about to come in"),
            Step("power", "second", (3.2, 3.2), (0.05, 0.3), when="a follower is about to come in", level=(0.0, 0.4)),
        )
    ),
    # KIP-841: its session is over, but it goes on fetching.
    "fenced, and fetching": Scenario(
        (
            Step("store cut", "second", for_s=(4.0, 5.0)),
            Step("kill", "second", (4.0, 5.0), (1.0, 2.0)),
            Step("kill", "leader", (4.2, 5.2), (0.5, 1.0)),
        )
    ),
    # KIP-966: the last one in sync commits alone, and is gone.
    "the last replica standing": Scenario(
        (
            Step("pause", "second", for_s=(3.4, 4.0)),
            Step("pause", "third", (0.0, 0.3), (3.4, 4.0)),
            Step("power", "leader", (3.2, 3.8), (2.0, 3.0)),
        ),
        leader="controller",
    ),
    "an empty disk": Scenario((Step("disk lost", "leader", for_s=(0.0, 0.02)),), leader="any"),
    # The only one in sync comes back with nothing, while others that have all are eligible.
    "an empty disk of the last in sync": Scenario(
        (
            Step("pause", "second", for_s=(3.4, 4.0)),
            Step("pause", "third", (0.0, 0.3), (3.4, 4.0)),
            Step("disk lost", "leader", (1.4, 1.9), (0.0, 0.02)),
        ),
        leader="controller",
    ),
    # The coordinator moves away and comes back.
    "a coordinator there and back": Scenario(
        (
            Step("election", "second", (0.0, 0.2)),
            Step("election", "leader", (1.0, 1.6)),
            Step("election", "second", (2.2, 2.6)),
            Step("election", "leader", (3.0, 3.6)),
        ),
        about=OFFSETS,
        leader="any",
    ),
    "a transaction's coordinator there and back": Scenario(
        (
            Step("slow disk", "leader", (0.0, 0.2), (2.0, 4.0)),
            Step("election", "second", (0.2, 0.5)),
            Step("cut", "second", (0.3, 0.8), (0.5, 1.0), "third"),
            Step("election", "leader", (1.0, 1.6)),
            Step("kill", "leader", (1.8, 2.4), (0.5, 1.0)),
        ),
        about=TRANSACTIONS,
        leader="any",
    ),
    # Those whose transactions end do not lead any more when they are told so.
    "leaders move while a transaction ends": Scenario(
        (
            Step("slow network", "leader", (0.0, 0.3), (2.0, 4.0)),
            Step("election", "second", (0.3, 0.8)),
            Step("pause", "second", (0.9, 1.4), (0.5, 2.5)),
            Step("election", "third", (1.5, 2.0)),
            Step("kill", "third", (2.0, 2.6), (0.5, 1.0)),
        ),
        leader="any",
    ),
    # A paused controller goes on in the middle of an append, when another has been elected.
    "a controller that was away": Scenario(
        (
            Step("pause", "controller", for_s=(1.3, 2.5)),
            Step("election", "second", (1.4, 2.6)),
            Step("isolate", "controller", (3.0, 3.6), (1.2, 2.5), level=_ALSO_STORE),
            Step("election", "third", (3.1, 3.7)),
        ),
        leader="any",
    ),
    # A topic is deleted and made again, and a broker hears of both at once.
    "made again while a broker is away": Scenario(
        (
            Step("pause", "second", (0.0, 0.3), (0.8, 1.6)),
            Step("topic made again", "second", (0.4, 0.6)),
            Step("pause", "third", (2.0, 2.3), (0.8, 1.6)),
            Step("topic made again", "third", (2.4, 2.6)),
        ),
        leader="any",
    ),
    "all sessions are over": Scenario((Step("store forgets", "leader", for_s=(1.5, 3.5)),), leader="any"),
}


def steps_of(
    name: str, number: int, begin_s: float, topics: list[str], rng: random.Random, *, pace: float = 1.0
) -> list[Trouble]:
    """The faults of a course that begins then. `number` tells it from others of the same plan."""
    scenario = SCENARIOS[name]
    topic = rng.choice(topics) if scenario.about == DATA else scenario.about
    return [
        Trouble(
            at_s=round(begin_s + rng.uniform(*step.after_s) * pace, 3),
            for_s=round(rng.uniform(*step.for_s) * pace, 3),
            kind=step.kind,
            who=step.who,
            other=step.other or "second",
            level=min(0.999, round(rng.uniform(*step.level), 3)),
            when=step.when,
            scene=number,
            topic=topic,
            leader=scenario.leader,
        )
        for step in scenario.steps
    ]
