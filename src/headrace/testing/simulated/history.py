"""What clients asked for and were answered, for the checks at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.topics import TopicPartition

#: How the text ends that stands for a record without a value, and the header that has its number.
DELETION, NUMBER = ":deleted", "number"


def tombstone_of(key: str, number: int | str) -> str:
    """What stands for a record that deletes a key."""
    return f"{key}:{number:0>5}{DELETION}"


def _writer_of(value: str) -> str:
    return value.split(":", 1)[0]


def _short(value: str) -> str:
    """A value without its padding."""
    return ":".join(value.split(":")[:3])[:40]


class BrokenError(AssertionError):
    """A promise was broken; the text says which, where, and what was seen."""


class TransactionEnd(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Transaction:
    """What one transaction wrote, where, and what became of it as far as its producer was told."""

    writer: str
    number: int
    values: dict[TopicPartition, str] = field(default_factory=dict)
    has_offset: bool = False
    outcome: TransactionEnd = TransactionEnd.UNKNOWN


@dataclass(slots=True)
class CommitCall:
    """An offset that was committed, or read: when it was asked for, and when answered (None: it was not)."""

    offset: int
    asked_at: int
    answered_at: int | None = None


@dataclass(slots=True)
class Register:
    """One committed offset: the writes of its only writer, in order, and what readers were told."""

    writes: list[CommitCall] = field(default_factory=list)
    reads: list[CommitCall] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerRead:
    """What one consumer without a group was given of a partition, in that order."""

    is_committed_only: bool
    rows: list[tuple[int, str]] = field(default_factory=list)


#: A record of parallel consumers: its value, which only one has, and its rounds through the retry topic.
Piece = tuple[str, int]


@dataclass(slots=True, frozen=True)
class Letter:
    """A record that was sent to the retry topic or the dead letters: for which one, and what it is there."""

    topic: str
    of: Piece
    there: Piece
    #: With what it was sent: its key, where it says that the record was first, and how long it is to wait.
    key: str | None = None
    origin: tuple[TopicPartition, int] | None = None
    wait_ms: int = 0


@dataclass(slots=True, frozen=True)
class ParallelCommit:
    """An offset and its note, as a parallel consumer had them committed, and what left in the same transaction."""

    partition: TopicPartition
    offset: int
    note: str
    tick: int
    along: frozenset[Piece] = frozenset()


@dataclass(slots=True)
class Handled:
    """What parallel consumers did: each begin of a handler, when each record was finished first, each commit."""

    begins: list[tuple[TopicPartition, int, str, int]] = field(default_factory=list)
    ends: dict[Piece, int] = field(default_factory=dict)
    commits: list[ParallelCommit] = field(default_factory=list)
    #: How often handlers failed at a record, or hung.
    failures: dict[Piece, int] = field(default_factory=dict)
    #: All that were sent, whether they came there or not; and those that came, as far as anybody was told.
    letters: list[Letter] = field(default_factory=list)
    delivered: set[Letter] = field(default_factory=set)
    #: What came to the retry topic, and has to be finished there.
    awaited: set[Piece] = field(default_factory=set)
    #: Letters of transactions whose outcome nobody was told, with the tick of when that was asked for.
    doubtful: dict[Letter, int] = field(default_factory=dict)
    #: What was seen at once to be wrong.
    broken: list[str] = field(default_factory=list)

    def ended(self, piece: Piece, tick: int) -> None:
        self.ends.setdefault(piece, tick)

    def failed(self, piece: Piece) -> None:
        self.failures[piece] = self.failures.get(piece, 0) + 1

    def arrived(self, letter: Letter, tick: int, *, is_retry: bool) -> None:
        """A letter is where it should be, so the record that it is of is finished."""
        self.ended(letter.of, tick)
        self.delivered.add(letter)
        if is_retry:
            self.awaited.add(letter.there)


class History:
    """All of a run. `tick` numbers events: what was answered before something else was asked has a smaller number."""

    def __init__(self, tell: Callable[[str, str], None] | None = None) -> None:
        """`tell` is given what clients did, for the timeline: who, and what."""
        self._ticks = 0
        self._tell = tell
        #: Values that were sent, by topic; each is sent once.
        self.sent: dict[str, set[str]] = {}
        #: Topics whose records may be there twice, as their producers do not number them.
        self.may_repeat: set[str] = set()
        self.acknowledged: dict[TopicPartition, dict[int, str]] = {}
        self.transactions: list[Transaction] = []
        self.reads: dict[tuple[str, TopicPartition], ConsumerRead] = {}
        #: By group and partition.
        self.registers: dict[tuple[str, TopicPartition], Register] = {}
        self.group_commits: dict[tuple[str, TopicPartition], list[CommitCall]] = {}
        #: Groups that read all topics.
        self.groups: list[str] = []
        self.processed: dict[tuple[str, TopicPartition], dict[int, str]] = {}
        #: Who had a partition, by group and generation.
        self._owners: dict[tuple[str, int, TopicPartition], str] = {}
        #: By group and instance id: the member ids that it was given; since when each may have been asked for, and when
        #: it was first seen to be in effect.
        self._instances: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        self.handled = Handled()
        #: What topics are configured with, as the last answer said. Of what is in doubt nothing is known any more: it
        #: may be done at any time.
        self.configs: dict[str, dict[str, str]] = {}
        self._configs_in_doubt: set[tuple[str, str]] = set()
        self._configs_touched: set[tuple[str, str]] = set()
        #: How many partitions topics have that were given more: what the last answer said.
        self.partitions: dict[str, int] = {}
        #: Topics that were made and deleted: what the last answer said (None: not known).
        self.scratch: dict[str, bool | None] = {}
        self.counts: dict[str, int] = {}

    def owns(self, who: ConsumerGroupMetadata, partitions: Iterable[TopicPartition]) -> None:
        """A member has partitions in a generation, or has just let them go in it: nobody else may have them there."""
        # A static member that comes back has another id, and what it had.
        owner = who.group_instance_id or who.member_id
        for partition in partitions:
            other = self._owners.setdefault((who.group_id, who.generation_id, partition), owner)
            if other != owner:
                raise BrokenError(f"{partition}: {other} and {owner} have it in generation {who.generation_id}")

    def is_member(self, who: ConsumerGroupMetadata, began_at: int) -> None:
        """A member, which began then, was given its share. If it is a static one, whoever had its place before that is
        none from now on."""
        if who.group_instance_id is not None:
            known = self._instances.setdefault((who.group_id, who.group_instance_id), {})
            known.setdefault(who.member_id, (began_at, self.tick()))

    def was_member(self, who: ConsumerGroupMetadata, asked_at: int) -> None:
        """Something was accepted of a member: a static one had not been replaced when it asked for that."""
        known = self._instances.get((who.group_id, who.group_instance_id or ""), {})
        since = known.get(who.member_id, (0, asked_at))[1]
        for other, (began_at, seen_at) in known.items():
            # Of two that asked at about the same time, the one that is told later may have been replaced by then.
            if since < began_at and seen_at < asked_at:
                raise BrokenError(
                    f"a commit of {who.member_id} was accepted, though {other} had its place as {who.group_instance_id}"
                )

    def tell(self, who: str, what: str) -> None:
        """A client has done something, or has an answer."""
        if self._tell is not None:
            self._tell(who, what)

    def tick(self) -> int:
        self._ticks += 1
        return self._ticks

    def count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by

    def known_commit(self, group: str, partition: TopicPartition) -> int:
        """The highest offset that a group has an answer for: what is committed may not fall behind it any more."""
        commits = self.group_commits.get((group, partition), ())
        return max((commit.offset for commit in commits if commit.answered_at is not None), default=0)

    def configures(self, topic: str, change: Mapping[str, str]) -> set[tuple[str, str]]:
        """A topic is about to be configured anew; gives what was in doubt before."""
        doubts = set(self._configs_in_doubt)
        for name in change:
            self.configs.setdefault(topic, {}).pop(name, None)
            self._configs_in_doubt.add((topic, name))
            self._configs_touched.add((topic, name))
        return doubts

    def configured_names(self, topic: str) -> set[str]:
        """What was configured anew of a topic at any time, or may have been."""
        return {name for of, name in self._configs_touched if of == topic}

    def has_configured(self, topic: str, change: Mapping[str, str], doubts: set[tuple[str, str]]) -> None:
        """It was, unless what was in doubt before came later."""
        self.count("topics configured")
        self._configs_in_doubt -= {(topic, name) for name in change} - doubts
        known = {name: value for name, value in change.items() if (topic, name) not in doubts}
        self.configs.setdefault(topic, {}).update(known)

    def is_removed(self, topic: str) -> None:
        """A topic is about to be deleted: what was acknowledged need not be there any more."""
        for partition in [partition for partition in self.acknowledged if partition.topic == topic]:
            del self.acknowledged[partition]

    def made_again(self, topic: str) -> None:
        """A topic is there anew: nothing that was written to its namesake may ever be seen again."""
        self.count("topics made again")
        self.sent[topic] = set()

    def was_acknowledged(self, partition: TopicPartition, offset: int, value: str) -> None:
        self.count("records acknowledged")
        self.tell(_writer_of(value), f"{partition}: {_short(value)!r} is acknowledged at {offset}")
        known = self.acknowledged.setdefault(partition, {})
        if known.setdefault(offset, value) != value:
            raise BrokenError(f"{partition}: offset {offset} was acknowledged for {known[offset]!r} and for {value!r}")

    def reads_from(self, reader: str, partition: TopicPartition, committed_only: bool) -> None:
        """A consumer without a group is to be given all of a partition."""
        self.reads.setdefault((reader, partition), ConsumerRead(committed_only))

    def was_read(self, reader: str, partition: TopicPartition, offset: int, value: str) -> None:
        self.count("records read")
        self.tell(reader, f"{partition}: is given {_short(value)!r} at {offset}")
        rows = self.reads[reader, partition].rows
        if rows and offset <= rows[-1][0]:
            raise BrokenError(f"{partition}: {reader} was given offset {offset} after {rows[-1][0]}")
        rows.append((offset, value))
