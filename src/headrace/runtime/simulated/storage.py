"""What a simulated device remembers: contents and names of files, as seen now and as after a power loss."""

from __future__ import annotations

import heapq
import random
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar, Union

K = TypeVar("K", bound=Hashable)

SECTOR = 512
PAGE = 4096


class CrashModel(Enum):
    """What a power loss does to that which was not synced.

    ORDERED is ext4 on a good day (data=ordered): a file keeps the writes up to some moment, the last of them cut at a
    page; names keep the changes up to some moment.
    HARSH is what POSIX allows: each sector has the content of a moment of its own, the size of another (so there may be
    holes of zeros); each name is independent of the others. Only a rename stays atomic, as on every journalling file
    system.
    """

    ORDERED = "ordered"
    HARSH = "harsh"


@dataclass(slots=True, frozen=True)
class FileWrite:
    position: int
    data: bytes


@dataclass(slots=True, frozen=True)
class Truncate:
    size: int


Change = FileWrite | Truncate


@dataclass(slots=True, eq=False)
class FileNode:
    """A file: what readers see, what is durable, and the changes in between."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[Change] = field(default_factory=list)
    mtime_ms: int = 0
    resident: set[int] = field(default_factory=set)  # pages that a read finds in memory
    changed: int = 0  # how many changes there were

    def write(self, position: int, data: bytes) -> None:
        if data:
            change = FileWrite(position, data)
            _apply(self.data, change)
            self.pending.append(change)
            self.changed += 1
            self.resident.update(_pages(position, len(data)))

    def truncate(self, size: int) -> None:
        change = Truncate(size)
        _apply(self.data, change)
        self.pending.append(change)
        self.changed += 1

    def sync(self, covered: int | None = None) -> None:
        """Make durable what was changed up to the change of number `covered`, or all."""
        count = len(self.pending) - (0 if covered is None else self.changed - covered)
        if count > 0:
            content = bytearray(self.durable)
            for change in self.pending[:count]:
                _apply(content, change)
            self.durable = bytes(content)
            del self.pending[:count]

    def fail_sync(self, rng: random.Random) -> None:
        """A failed fsync, as on Linux: some pages got there; the others are marked clean and never written again."""
        self.durable = after_crash(self.durable, self.pending, rng, CrashModel.HARSH)
        self.pending.clear()

    def crash(self, rng: random.Random, model: CrashModel) -> None:
        self.durable = after_crash(self.durable, self.pending, rng, model)
        self.data = bytearray(self.durable)
        self.pending.clear()
        self.resident.clear()

    def is_resident(self, position: int, length: int) -> bool:
        length = min(length, len(self.data) - position)
        return length <= 0 or self.resident.issuperset(_pages(position, length))

    def make_resident(self, position: int, length: int) -> None:
        self.resident.update(_pages(position, min(length, len(self.data) - position)))


@dataclass(slots=True, eq=False)
class DirectoryNode:
    """A directory: names as seen now, and as they are on the device."""

    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    mtime_ms: int = 0


Node = Union[FileNode, DirectoryNode]  # noqa: UP007 - a forward reference in the dataclass above


Place = tuple[DirectoryNode, str]


@dataclass(slots=True, frozen=True, eq=False)
class Renaming:
    """One change of names, atomic: `node` leaves `source` (None: it is new) and is at `target` (None: it is gone)."""

    node: Node
    source: Place | None
    target: Place | None
    replaces: bool = False

    def places(self) -> set[tuple[int, str]]:
        return {(id(place[0]), place[1]) for place in (self.source, self.target) if place is not None}

    def persist(self) -> None:
        if self.source is not None:
            self.source[0].durable.pop(self.source[1], None)
        if self.target is not None:
            self.target[0].durable[self.target[1]] = self.node


class NameJournal:
    """Changes of names that no sync of a directory has made durable, in order, found by directory and by name."""

    def __init__(self) -> None:
        self._changes: dict[int, Renaming] = {}
        self._count = 0
        # The changes of each directory, and of each of its names.
        self._by_directory: dict[int, set[int]] = {}
        self._by_place: dict[tuple[int, str], set[int]] = {}

    def __len__(self) -> int:
        return len(self._changes)

    def __iter__(self) -> Iterator[Renaming]:
        return iter(self._changes.values())

    def append(self, change: Renaming) -> None:
        number, self._count = self._count, self._count + 1
        self._changes[number] = change
        for place in change.places():
            self._by_directory.setdefault(place[0], set()).add(number)
            self._by_place.setdefault(place, set()).add(number)

    def take(self, directory: DirectoryNode) -> list[Renaming]:
        """Remove the changes that touch a directory, and those that happened before to the same names; in order."""
        waiting = [-number for number in self._by_directory.get(id(directory), ())]
        heapq.heapify(waiting)
        taken: dict[int, Renaming] = {}
        while waiting:
            number = -heapq.heappop(waiting)
            if number in taken:
                continue
            change = taken[number] = self._changes.pop(number)
            for place in change.places():
                for earlier in self._by_place[place]:
                    if earlier < number:
                        heapq.heappush(waiting, -earlier)
        for number, change in taken.items():
            for place in change.places():
                _discard(self._by_directory, place[0], number)
                _discard(self._by_place, place, number)
        return [change for _, change in sorted(taken.items())]

    def clear(self) -> None:
        self._changes.clear()
        self._by_directory.clear()
        self._by_place.clear()


def _discard(index: dict[K, set[int]], key: K, number: int) -> None:
    found = index.get(key)
    if found is not None:
        found.discard(number)
        if not found:
            del index[key]


class Storage:
    """The device and the kernel's memory of it. It outlives the processes and the power losses of its host."""

    def __init__(self, rng: random.Random, *, capacity_bytes: int):
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.root = DirectoryNode()
        self._journal = NameJournal()

    def change_name(self, change: Renaming) -> None:
        if change.source is not None:
            del change.source[0].entries[change.source[1]]
        if change.target is not None:
            change.target[0].entries[change.target[1]] = change.node
        self._journal.append(change)

    def sync_directory(self, directory: DirectoryNode) -> None:
        """Persist the changes that touch `directory`, and those that happened before to the same names."""
        for change in self._journal.take(directory):
            change.persist()

    def crash(self, model: CrashModel) -> None:
        """Power loss: from here on there is only what was durable, and what luck made durable."""
        for change in self._lucky(model):
            if change.replaces and model is CrashModel.ORDERED and isinstance(change.node, FileNode):
                # ext4 (auto_da_alloc) writes a file's data before a rename that puts it over another.
                change.node.sync()
            change.persist()
        self._journal.clear()
        self.used_bytes = 0
        self._reboot(self.root, model)

    def _lucky(self, model: CrashModel) -> list[Renaming]:
        if model is CrashModel.ORDERED:
            return list(self._journal)[: self.rng.randint(0, len(self._journal))]
        kept: list[Renaming] = []
        lost: set[tuple[int, str]] = set()
        chance = self.rng.choice((0.0, 0.5, 0.9, 1.0))
        for change in self._journal:
            # A change can only persist if all earlier ones of the same names did.
            if self.rng.random() < chance and not (lost & change.places()):
                kept.append(change)
            else:
                lost |= change.places()
        return kept

    def _reboot(self, directory: DirectoryNode, model: CrashModel) -> None:
        directory.entries = dict(directory.durable)
        for _, node in sorted(directory.entries.items()):
            if isinstance(node, FileNode):
                node.crash(self.rng, model)
                self.used_bytes += len(node.data)
            else:
                self._reboot(node, model)


def after_crash(durable: bytes, pending: list[Change], rng: random.Random, model: CrashModel) -> bytes:
    """The content a file has after a power loss that finds these changes not yet durable."""
    if not pending:
        return durable
    return _ordered(durable, pending, rng) if model is CrashModel.ORDERED else _harsh(durable, pending, rng)


def _ordered(durable: bytes, pending: list[Change], rng: random.Random) -> bytes:
    content = bytearray(durable)
    kept = rng.randint(0, len(pending))
    for change in pending[:kept]:
        _apply(content, change)
    torn = pending[kept] if kept < len(pending) else None
    if isinstance(torn, FileWrite):
        first_cut = PAGE - torn.position % PAGE
        cuts = range(first_cut, len(torn.data), PAGE)
        length = rng.choice([0, *cuts])
        _apply(content, FileWrite(torn.position, torn.data[:length]))
    return bytes(content)


def _harsh(durable: bytes, pending: list[Change], rng: random.Random) -> bytes:
    # A truncation is a change of the file system's own records, which are journalled: it is there or not, and writes
    # that came after one that is not there went to blocks nobody refers to.
    truncations = [index for index, change in enumerate(pending) if isinstance(change, Truncate)]
    lost = rng.randint(0, len(truncations))
    known = pending[: truncations[lost]] if lost < len(truncations) else pending
    base = truncations[lost - 1] + 1 if lost else 0
    content = bytearray(durable)
    unit = rng.choice((SECTOR, PAGE))
    chance = rng.choice((0.0, 0.1, 0.5, 0.9, 0.99, 1.0))
    stopped: set[int] = set()  # sectors or pages whose later writes did not reach the device
    for change in known:
        if isinstance(change, Truncate):
            _apply(content, change)
            stopped = {number for number in stopped if number * unit < change.size}
            continue
        for number in range(change.position // unit, -(-(change.position + len(change.data)) // unit)):
            if number in stopped or rng.random() >= chance:
                stopped.add(number)
                continue
            start = max(change.position, number * unit)
            end = min(change.position + len(change.data), (number + 1) * unit)
            _apply(content, FileWrite(start, change.data[start - change.position : end - change.position]))
    sizes = _sizes(durable, known)[base:]
    size = rng.choice((sizes[0], sizes[-1], rng.choice(sizes)))
    _apply(content, Truncate(size))
    return bytes(content)


def _sizes(durable: bytes, changes: list[Change]) -> list[int]:
    """The file's size before the changes and after each of them."""
    sizes = [len(durable)]
    for change in changes:
        end = change.size if isinstance(change, Truncate) else max(sizes[-1], change.position + len(change.data))
        sizes.append(end)
    return sizes


def _apply(content: bytearray, change: Change) -> None:
    if isinstance(change, Truncate):
        if change.size < len(content):
            del content[change.size :]
        else:
            content.extend(bytes(change.size - len(content)))
        return
    if change.position > len(content):
        content.extend(bytes(change.position - len(content)))
    content[change.position : change.position + len(change.data)] = change.data


def _pages(position: int, length: int) -> range:
    return range(position // PAGE, (position + length - 1) // PAGE + 1) if length > 0 else range(0)
