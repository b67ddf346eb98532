"""Which partitions of its topic a coordinator serves: those that its broker leads, once they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from headrace.coordination.values import StoredRecord
from headrace.errors import ErrorCode
from headrace.topics import partition_for_group

PROBLEMS_SHOWN_MAX: Final = 10


@dataclass(slots=True)
class LoadReport:
    """What a partition held. Nothing in it stops the loading, but an operator should see what was left out."""

    records: int = 0
    skipped: int = 0  # of types or versions that are not spoken here
    unreadable: int = 0
    problems: list[str] = field(default_factory=list)  # the first few of the unreadable

    def note_unreadable(self, number: int, error: Exception) -> None:
        """The record of that number, counted from the beginning of the log, says nothing that can be understood."""
        self.unreadable += 1
        if len(self.problems) < PROBLEMS_SHOWN_MAX:
            self.problems.append(f"record {number}: {error}")


class Loader(Protocol):
    """Takes the records of one partition, in the order of the log."""

    @property
    def report(self) -> LoadReport: ...
    def add(self, record: StoredRecord) -> None: ...


LoaderT_co = TypeVar("LoaderT_co", bound=Loader, covariant=True)


@dataclass(slots=True, eq=False)
class Shard(Generic[LoaderT_co]):
    """One partition, led in one epoch. It serves once its `loader` is done; one that was unloaded never again."""

    partition: int
    leader_epoch: int
    loader: LoaderT_co | None
    report: LoadReport = field(default_factory=LoadReport)
    is_unloaded: bool = False


ShardT = TypeVar("ShardT", bound=Shard[Loader])


class Shards(Generic[ShardT]):
    """All partitions that are served or being loaded."""

    def __init__(self, partition_count: int, make: Callable[[int, int], ShardT]) -> None:
        """`make` gives the shard of a partition and a leader epoch, with its loader."""
        self.partition_count = partition_count
        self._make = make
        self._shards: dict[int, ShardT] = {}

    def partition_of(self, name: str) -> int:
        """The partition that keeps the group or transactional id of that name."""
        return partition_for_group(name, self.partition_count)

    def get(self, partition: int) -> ShardT | None:
        return self._shards.get(partition)

    def all(self) -> list[ShardT]:
        return list(self._shards.values())

    def begin(self, partition: int, leader_epoch: int) -> ShardT:
        shard = self._shards[partition] = self._make(partition, leader_epoch)
        return shard

    def end(self, partition: int) -> ShardT | None:
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.is_unloaded = True
        return shard

    def served(self, partition: int) -> ShardT | None:
        """The shard of a partition of which everything is known here."""
        shard = self._shards.get(partition)
        return None if shard is None or shard.loader is not None else shard

    def error_for(self, name: str) -> ErrorCode:
        """Why this coordinator cannot speak for that group or transactional id, or NONE."""
        shard = self._shards.get(self.partition_of(name))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if shard.loader is None else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def serving(self, name: str) -> ShardT:
        """The shard of a group or transactional id for which `error_for` found nothing."""
        return self._shards[self.partition_of(name)]
