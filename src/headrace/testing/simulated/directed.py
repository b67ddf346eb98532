"""Directed plans: one per rule that has broken Kafka, or could break this. Part of every hundred seeds.

A free draw seldom has the clients, the faults and the moment together that a rule is for. Each of these has them; the
seed decides the rest: when, of whom, for how long. `headrace simulate --plans` lists them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.testing.simulated.faults import RIVALS, TRIES_AGAIN

_LINKS: Final = ("kill", "isolate", "cut", "cut one way", "pause", "slow network", "reset")
_ENDS: Final = ("kill", "isolate", "pause", "cut", "power")
_MOVES: Final = ("kill", "election", "isolate")
_STORE: Final = ("store breaks", "session lost", "isolate", "pause", "store away")
_CRASHES: Final = ("kill", "power")


class Directed(NamedTuple):
    """Which rule, and who is needed to break it."""

    name: str
    rule: str
    clients: tuple[str, ...]
    #: Faults of these kinds, or one of these courses.
    kinds: tuple[str, ...] = ()
    courses: tuple[str, ...] = ()
    #: Of which kind parallel consumers are; else as the seed says.
    parallel: str = ""
    #: What members of the plain group are: `static`, `mortal`, or as usual.
    members: str = ""
    hangs: bool = False
    grows: bool = False
    configures: bool = False
    has_clocks: bool = False
    has_owners: bool = False
    #: At least so many of the topic's partitions, where it takes several.
    partitions_min: int = 1


DIRECTED: Final = (
    Directed("no cut to the watermark", "KIP-101: a follower cuts where epochs part", ("crowd",), _LINKS),
    Directed(
        "epochs there and back",
        "KIP-279: several rounds where elections were fast",
        ("crowd", "readers"),
        courses=("elections there and back",),
    ),
    Directed(
        "a stale leader is refused",
        "KIP-320: clients and followers name the epoch",
        ("crowd", "readers"),
        courses=("only a stale leader is left", "a stale leader"),
    ),
    Directed(
        "in sync before it is known",
        "KIP-497: the watermark waits for whoever may be in sync",
        ("crowd",),
        courses=("let in behind the leader's back",),
    ),
    Directed(
        "fenced replicas stay out", "KIP-841: nobody in sync is fenced", ("crowd",), courses=("fenced, and fetching",)
    ),
    Directed(
        "a former life stays out",
        "KIP-903: a proposal names the life of each member",
        ("crowd",),
        courses=("restarted while it is let in",),
    ),
    Directed(
        "the last replica standing",
        "KIP-966: below the minimum nothing is committed",
        ("crowd",),
        courses=("the last replica standing", "an empty disk of the last in sync"),
    ),
    Directed("an empty disk", "an empty disk is not elected", ("idempotent", "readers"), courses=("an empty disk",)),
    Directed("in sync after a power loss", "whoever lost its power copies first", ("crowd", "plain"), _CRASHES),
    Directed("acks=all", "acknowledged is on every replica in sync", ("crowd", "idempotent"), _ENDS),
    Directed(
        "sent again to a lagging leader",
        "a duplicate waits as the original does",
        ("idempotent",),
        courses=("again to a lagging leader",),
    ),
    Directed("numbers over restarts", "nothing twice: what producers wrote is known again", (TRIES_AGAIN,), _CRASHES),
    Directed(
        "numbers over leaders", "nothing twice, nothing out of order", (TRIES_AGAIN,), ("reset", "election", "kill")
    ),
    Directed(
        "two producers, one transactional id",
        "KIP-890: a zombie is fenced, late records too",
        (RIVALS, "readers"),
        _MOVES,
    ),
    Directed(
        "rivals that hang",
        "a fenced producer commits nothing",
        (RIVALS, "readers"),
        ("client cut", "pause", "slow network"),
    ),
    Directed(
        "leaders move while transactions end",
        "each transaction has one outcome",
        ("transactions", "readers"),
        courses=("leaders move while a transaction ends", "a transaction's coordinator there and back"),
        partitions_min=2,
    ),
    Directed(
        "aborted is never read", "readers stop before what is open", ("transactions", "readers"), ("kill", "election")
    ),
    Directed(
        "offsets in transactions",
        "offsets and records are one",
        ("transactions", "offsets"),
        (*_MOVES, "cut"),
        partitions_min=2,
    ),
    Directed(
        "a coordinator there and back",
        "a coordinator knows what its log says",
        ("idempotent", "offsets", "group"),
        courses=("a coordinator there and back",),
    ),
    Directed("commits survive", "a commit that was answered stays", ("idempotent", "group", "offsets"), _ENDS),
    Directed(
        "members die",
        "a session expires, and others have its share",
        ("idempotent", "group"),
        ("kill",),
        members="mortal",
    ),
    Directed(
        "members die while coordinators move",
        "a session expires also at the next coordinator",
        ("idempotent", "group"),
        ("election", "pause", "kill"),
        members="mortal",
    ),
    Directed(
        "static members",
        "KIP-345: one process has an instance id",
        ("idempotent", "group"),
        ("kill",),
        members="static",
    ),
    Directed("a member hangs", "who was replaced commits nothing", ("idempotent", "group"), ("kill",), hangs=True),
    Directed(
        "a topic grows", "new partitions are read from their start", ("idempotent", "group"), ("kill",), grows=True
    ),
    Directed(
        "tombstones",
        "what is deleted stays so, and is said for a while",
        ("compaction", "idempotent"),
        (*_CRASHES, "stop"),
    ),
    Directed("retention", "only the beginning goes", ("retention", "compaction"), ("kill", "stop"), configures=True),
    Directed(
        "a topic made again", "a topic is its id", ("crowd", "admin"), courses=("made again while a broker is away",)
    ),
    Directed(
        "a deposed controller",
        "one append per epoch and number of the metadata",
        ("admin", "crowd"),
        courses=("a controller that was away",),
    ),
    Directed("the store breaks", "an append of unknown outcome is there once or not", ("admin",), _STORE),
    Directed(
        "all sessions end", "a mass expiry shrinks no replicas in sync", ("crowd",), courses=("all sessions are over",)
    ),
    Directed("clocks differ", "a look-up by time finds the first", ("crowd", "readers"), ("kill",), has_clocks=True),
    Directed("who is who", "a number has one broker", ("crowd", "offsets"), ("kill",), has_owners=True),
    Directed("parallel, by key", "commits pass nothing unfinished", ("parallel",), _MOVES, parallel="pool by key"),
    Directed(
        "parallel, retried",
        "a retry comes when it is due, once",
        ("parallel",),
        _MOVES,
        parallel="pool by key, retry topic",
    ),
    Directed(
        "parallel, transactional",
        "letters and offsets are one",
        ("parallel",),
        ("client cut", "isolate", "pause", "kill"),
        parallel="pool by key, transactional",
    ),
    Directed(
        "parallel, in a window",
        "records of a key are in order",
        ("parallel",),
        ("kill",),
        parallel="window by key, transactional",
    ),
    Directed("parallel, in ranges", "no range is lost", ("parallel",), ("kill",), parallel="ranges, transactional"),
    Directed(
        "parallel, hanging",
        "who was replaced handles nothing",
        ("parallel",),
        ("kill",),
        hangs=True,
        parallel="pool by key",
    ),
)
