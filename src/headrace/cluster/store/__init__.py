"""Where cluster metadata is kept: a log of records that only the elected controller may append to.

| home | for | module |
|---|---|---|
| a log of this broker's own | a cluster of one | `local` |
| a directory of one machine | several brokers on it, in development and tests | `node_store` over `directory_session` |
| ZooKeeper | several machines | `node_store` over `kazoo_session` |
| a model of ZooKeeper | simulations | `node_store` over `model` |

The store also says who is alive: brokers register for as long as their session lasts, and the controller has its seat
for as long as its own does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.cluster.image import Image
from headrace.cluster.records import MetadataRecord, RemoveTopicRecord
from headrace.errors import HeadraceError


class StoreError(HeadraceError):
    """The store of the cluster's metadata cannot do what it was asked for."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached at the moment. Nothing was changed; ask again later."""


class StoreRefusedError(StoreError):
    """The store says no, which does not pass by itself: a quota is used up, say, or nodes are another's.

    Nothing was changed. An operator has to do something, and is told what.
    """


class OutcomeUnknownError(StoreError):
    """The store was lost in the middle of an append: its records are in the log, or not.

    Whoever appended is no longer the controller, and learns from the log what has become of it.
    """


class SessionLostError(StoreError):
    """The session with the store is over: others take this broker for dead until it registers again."""


class WrongClusterError(StoreError):
    """The store belongs to another cluster than this broker's data."""


class DecisionTooLargeError(StoreError):
    """One decision has more records than can be written at once."""


@dataclass(frozen=True, slots=True)
class StoreMember:
    """A broker as the store knows it: one life of it, and where other brokers reach it."""

    node_id: int
    incarnation: bytes
    host: str = ""
    port: int = 0
    #: Name, host and port of every listener, for brokers that do not speak by the first.
    listeners: tuple[tuple[str, str, int], ...] = ()

    def address(self, listener: str) -> tuple[str, int]:
        """Where it is reached by who speaks at that listener."""
        found = next(((host, port) for name, host, port in self.listeners if name == listener), None)
        return found or (self.host, self.port)


@dataclass(frozen=True, slots=True)
class Seat:
    """Who is the controller, and in which epoch."""

    epoch: int
    member: StoreMember


@dataclass(slots=True)
class Reading:
    """What a store has from some offset on. With a `snapshot` it begins with that, for an empty image."""

    records: list[tuple[int, MetadataRecord]] = field(default_factory=list)
    end_offset: int = 0
    """That of the next record."""
    snapshot: list[MetadataRecord] | None = None
    snapshot_end: int = 0
    epoch: int = -1
    """The highest epoch of a controller that it has records of, as far as that was looked at."""
    log_end: int = 0
    """Where the log ended, as far as whoever gave this knew; it may be beyond what was given."""
    is_sure: bool = True
    """Whether whoever gave this would know if another had written more."""


class Store(Protocol):
    """What a store can do. Every verb may wait for a disk or a network; one broker uses it from one event loop.

    `StoreUnavailableError` says that it cannot be reached for now, `SessionLostError` that this broker has to
    `register` again before anything else.
    """

    async def open(self, cluster_id: str | None) -> str:
        """Begin to use it; gives the cluster's id. That is the one given, where the store is new (or a new one).

        A `WrongClusterError` says that the store is of another cluster.
        """
        ...

    async def close(self) -> None:
        """End the session: others learn at once that this broker is gone. Idempotent."""
        ...

    async def new_number(self, above: int) -> int:
        """A number for a broker that has none, above the one given; no other broker is ever given the same."""
        ...

    # --- who is alive

    async def register(self, member: StoreMember) -> None:
        """Let others know of this broker, until its session ends. The same incarnation may register again.

        A `DuplicateBrokerRegistrationError` says that another life of that broker has a session.
        """
        ...

    async def members(self, known: Mapping[int, StoreMember] | None = None) -> dict[int, StoreMember]:
        """The registered brokers, by number; with `known`, once they are others than those."""
        ...

    async def lost(self) -> None:
        """Wait until the session is over."""
        ...

    @property
    def connected_since(self) -> float | None:
        """By the monotonic clock: since when the store was reached without a break. None while it is not."""
        ...

    @property
    def reached_s(self) -> float:
        """For how long the store was reached since it was opened, all in all, by the monotonic clock."""
        ...

    @property
    def sure_until(self) -> float:
        """By the clock's `boottime`: until then the session is not over because the store does not hear of it."""
        ...

    @property
    def was_away(self) -> bool:
        """Whether it was ever out of reach since it was opened: then others' sessions may be over, who live."""
        ...

    # --- who is the controller

    async def elect(self, member: StoreMember) -> int | None:
        """Make this broker the controller, unless one is alive; the epoch won. The one before can append no more."""
        ...

    async def seat(self, *other_than: Seat | None) -> Seat | None:
        """The controller, or None; with an argument, once it is another than that."""
        ...

    async def leave_seat(self) -> None:
        """Let another be the controller, if this broker is: at once, and not only when its session is over."""
        ...

    # --- the log

    async def append_if_epoch(self, epoch: int, records: Sequence[MetadataRecord]) -> int:
        """Append all records or none, durably; the offset after them. One append at a time.

        A `StaleControllerEpochError` says that another controller was elected since `epoch`, or that the session in
        which it was won is over; an `OutcomeUnknownError`, that the records may be in the log.
        """
        ...

    async def read_from(self, offset: int, *, latest: bool = False) -> Reading:
        """The records from an offset on; with `latest`, all that were appended before this was asked for.

        Old records may have been replaced by a snapshot. Then whoever asks for an offset before its end gets the whole
        snapshot and what follows it.
        """
        ...

    async def grown_beyond(self, offset: int) -> None:
        """Wait until there may be records at this offset."""
        ...

    # --- snapshots

    @property
    def snapshot_due(self) -> bool:
        """Whether the log has grown enough to be replaced by a snapshot."""
        ...

    async def take_snapshot(self, image: Image, epoch: int) -> None:
        """Let the image take the place of the records that it was made of. For the controller of that epoch."""
        ...


def fold(reading: Reading, image: Image) -> set[bytes]:
    """Bring an image up to date: an empty one, or one that lags behind. The ids of topics deleted since.

    An image that a reading begins anew has to be empty. A deletion that a snapshot has taken the place of is not told.
    """
    deleted = set()
    if reading.snapshot is not None:
        for record in reading.snapshot:
            image.apply(record)
        image.offset = reading.snapshot_end
    for offset, record in reading.records:
        if isinstance(record, RemoveTopicRecord):
            deleted.add(record.topic_id)
        image.apply(record)
        image.offset = offset + 1
    return deleted
