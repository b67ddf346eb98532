"""Fetch sessions (KIP-227): what a reader asked for last time, so that it need not ask again, nor hear what has not
changed.

A session remembers its partitions, and for each what was last answered. Those that have nothing to give are not looked
at again until something happens to them: each is watched, and what happens puts it among the `changed` ones. So a fetch
costs as much as there is news, however many partitions its session has.

A full fetch opens one (epoch 0), later fetches name it with a rising epoch. When the cache is full, one that was not
used for two minutes makes room; when there is none, the fetch is answered without a session. What all sessions together
remember is bounded too, since a client may name any number of partitions, whether they exist or not, and by names of 32
KB: such a name counts as many partitions.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass, field
from sys import getsizeof

from headrace.broker.partitions.purgatory import Waiter, Watchers
from headrace.errors import ErrorCode

NO_SESSION = 0
FULL_EPOCH = 0
FINAL_EPOCH = -1
NOT_TOLD = -1
EVICTABLE_AFTER_MS = 120_000
EPOCH_MAX = 2**31 - 1
SESSION_PARTITION_BYTES = 600
# Names of topics are shorter, whatever they are made of.
LONG_NAME_BYTES = 1200
# Over all sessions; each takes some 600 bytes. A thousand consumers of a thousand partitions each fit.
PARTITIONS_MAX = 1_000_000

PartitionKey = tuple[str, bytes, int]  # topic name ("" when only the id is known), topic id, partition


@dataclass(slots=True)
class SessionPartition:
    """One partition of a fetch: what the client wants. In a session it stays as it is until it is named again."""

    topic: str
    topic_id: bytes
    partition: int
    fetch_offset: int = 0
    log_start_offset: int = -1
    partition_max_bytes: int = 0
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    #: What its session knows of it; None without a session.
    kept: Kept | None = None


class Kept:
    """What a session remembers of one partition, besides what is wanted: what was told, and when it has its turn."""

    __slots__ = ("key", "told_error", "told_high_watermark", "told_log_start_offset", "turn", "watch")

    def __init__(self, key: PartitionKey, turn: int) -> None:
        self.key = key
        #: Its place in the order of answers: whoever gave records goes to the end, so that none starves.
        self.turn = turn
        self.watch: PartitionWatch | None = None
        self.told_high_watermark = self.told_log_start_offset = NOT_TOLD
        self.told_error = False


class PartitionWatch:
    """One partition of a session, told what happens to it."""

    __slots__ = ("_key", "_session", "watchers")

    def __init__(self, session: FetchSession, key: PartitionKey, watchers: Watchers) -> None:
        self._session = session
        self._key = key
        self.watchers = watchers
        watchers.add(self)

    def on_append(self, watchers: Watchers, nbytes: int) -> None:
        session = self._session
        session.changed[self._key] = None
        if session.waiter is not None:
            session.waiter.on_append(watchers, nbytes)

    def wake(self) -> None:
        session = self._session
        session.changed[self._key] = None
        if session.waiter is not None:
            session.waiter.wake()

    def mark(self) -> None:
        self._session.changed[self._key] = None

    def end(self) -> None:
        self.watchers.discard(self)


@dataclass(slots=True, eq=False)
class FetchSession:
    session_id: int
    uses_topic_ids: bool
    epoch: int
    last_used_ms: int
    partitions: dict[PartitionKey, SessionPartition] = field(default_factory=dict)
    #: Those to be looked at with the next fetch.
    changed: dict[PartitionKey, None] = field(default_factory=dict)
    #: The fetch that waits, if one does.
    waiter: Waiter | None = None
    counted: int = 0
    turns: int = 0
    #: What long names count, besides the partitions that have them.
    name_weight: int = 0
    #: It is forgotten, perhaps while a fetch of it waits: nothing is watched for it any more.
    is_over: bool = False
    #: The rights that it was last answered by (`Rights.current_key`).
    rights_key: object = None

    def put(self, key: PartitionKey, wanted: SessionPartition) -> None:
        """Add a partition, or take over what is wanted of it now; it is looked at with the next fetch."""
        known = self.partitions.get(key)
        if known is None:
            self.name_weight += weight_of(wanted.topic) - 1
        wanted.kept = Kept(key, self.next_turn()) if known is None else known.kept
        self.partitions[key] = wanted
        self.changed[key] = None

    def next_turn(self) -> int:
        self.turns += 1
        return self.turns

    def look_again_by(self, rights_key: object) -> None:
        """Look at all partitions where the reader's rights may be others than before."""
        if rights_key != self.rights_key:
            self.rights_key = rights_key
            self.changed.update(dict.fromkeys(self.partitions))

    def drop(self, key: PartitionKey) -> None:
        gone = self.partitions.pop(key, None)
        if gone is not None:
            self.name_weight -= weight_of(gone.topic) - 1
        if gone is not None and gone.kept is not None:
            _unwatch(gone.kept)
        self.changed.pop(key, None)

    def watch(self, kept: Kept, watchers: Watchers) -> None:
        """Hear what happens to a partition, which may be another of the same name than before."""
        _unwatch(kept)
        if not self.is_over:
            kept.watch = PartitionWatch(self, kept.key, watchers)

    def end(self) -> None:
        self.is_over = True
        for wanted in self.partitions.values():
            if wanted.kept is not None:
                _unwatch(wanted.kept)
        if self.waiter is not None:
            self.waiter.wake()  # nothing else would


def weight_of(topic: str) -> int:
    """How many partitions one of a topic counts as: more than one where nothing can be called like that."""
    return 1 + getsizeof(topic) // LONG_NAME_BYTES * LONG_NAME_BYTES // SESSION_PARTITION_BYTES


def _unwatch(kept: Kept) -> None:
    if kept.watch is not None:
        kept.watch.end()
        kept.watch = None


class FetchSessions:
    """The cache of sessions, bounded by `max.incremental.fetch.session.cache.slots`."""

    def __init__(self, slots_max: int, rng: random.Random, *, partitions_max: int = PARTITIONS_MAX) -> None:
        self._slots_max = slots_max
        self._partitions_max = partitions_max
        self.partition_count = 0
        self._rng = rng
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the least recently used first
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int, epoch: int, uses_topic_ids: bool) -> FetchSession | ErrorCode:
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        return session

    def touch(self, session: FetchSession, now_ms: int) -> None:
        session.last_used_ms = now_ms
        if session.session_id in self._sessions:
            self._sessions.move_to_end(session.session_id)

    def has_room(self, session: FetchSession) -> bool:
        """Count what a session remembers now; False when that is too much, upon which it is forgotten."""
        weight = len(session.partitions) + session.name_weight
        self.partition_count += weight - session.counted
        session.counted = weight
        if self.partition_count <= self._partitions_max:
            return True
        self.remove(session.session_id)
        return False

    def create(self, uses_topic_ids: bool, now_ms: int, partitions: int = 0) -> FetchSession | None:
        """A new session for so many partitions, or None when the cache is full of ones in use."""
        if partitions > self._partitions_max:
            return None  # whatever the others remember
        while len(self._sessions) >= self._slots_max or self.partition_count + partitions > self._partitions_max:
            if not self._evict(now_ms):
                return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._rng.randrange(1, 2**31)
        session = FetchSession(session_id, uses_topic_ids, next_epoch(FULL_EPOCH), now_ms)
        self._sessions[session_id] = session
        return session

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= session.counted
            session.end()

    def _evict(self, now_ms: int) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.last_used_ms < EVICTABLE_AFTER_MS:
            return False
        self.remove(oldest.session_id)
        self.evictions += 1
        return True


def next_epoch(epoch: int) -> int:
    """Epochs go 1, 2, … and, after the greatest, begin at 1 again: 0 means "full"."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == EPOCH_MAX else epoch + 1
