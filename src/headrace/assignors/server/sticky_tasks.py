"""The assignor of streams groups: each task to one member, near to where it was, and standby copies elsewhere.

Tasks stay where they were as long as nobody has more than its share; the others go to the process that has the least,
and in it to the member that has the least. Ties are broken as Java breaks them, so that a group gets the same answer
from whichever broker coordinates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from headrace.assignors._java_order import hash_order, utf16_key

T = TypeVar("T")

TaskIds = Mapping[str, Iterable[int]]
"""Subtopology → numbers of tasks."""


class StickyTask(NamedTuple):
    subtopology: str
    number: int


class TaskMember(NamedTuple):
    """A member as the assignor sees it, with what it was to have before."""

    process_id: str
    active: TaskIds
    standby: TaskIds


class SubtopologySpec(NamedTuple):
    subtopology: str
    tasks: int
    is_stateful: bool


@dataclass(slots=True)
class AssignedTasks:
    active: dict[str, set[int]] = field(default_factory=dict)
    standby: dict[str, set[int]] = field(default_factory=dict)


def assign_tasks(
    members: Mapping[str, TaskMember], subtopologies: Iterable[SubtopologySpec], standby_replicas: int
) -> dict[str, AssignedTasks]:
    """What each member is to have."""
    return _Assignment(members, list(subtopologies), standby_replicas).run()


class _Process:
    """The members that run in one process, which share its disk: no task is there twice."""

    def __init__(self) -> None:
        self.tasks: set[StickyTask] = set()
        self.counts: dict[str, int] = {}
        self.count = 0
        self._by_load: _JavaHeap[str] | None = None

    @property
    def load(self) -> float:
        return self.count / len(self.counts)

    def add_to_least_loaded(self) -> str:
        """The member that the next task goes to."""
        if len(self.counts) == 1:
            return next(iter(self.counts))
        if self._by_load is None:
            self._by_load = _JavaHeap(self.counts.__getitem__)
            for member_id in hash_order(self.counts):
                self._by_load.add(member_id)
        return self._by_load.poll()

    def put_back(self, member_id: str) -> None:
        if self._by_load is not None:
            self._by_load.add(member_id)

    def forget_order(self) -> None:
        self._by_load = None


@dataclass(slots=True)
class _Share:
    """How many each member should have at most. Who has so many is left out, and the rest is shared anew."""

    tasks: int
    members: int
    each: int = 0

    def __post_init__(self) -> None:
        self._divide()

    def count(self, has: int) -> None:
        if has == self.each:
            self.members -= 1
            self.tasks -= has
            self._divide()

    def _divide(self) -> None:
        self.each = -(-self.tasks // self.members) if self.members else 0


class _Assignment:
    def __init__(
        self, members: Mapping[str, TaskMember], subtopologies: list[SubtopologySpec], standby_replicas: int
    ) -> None:
        self._members = members
        self._standby_replicas = standby_replicas
        self._active = [StickyTask(one.subtopology, n) for one in subtopologies for n in range(one.tasks)]
        stateful = [one for one in subtopologies if one.is_stateful]
        self._stateful = [StickyTask(one.subtopology, n) for one in stateful for n in range(one.tasks)]
        self._active_share = _Share(len(self._active), len(members))
        self._share = _Share(len(self._active) + len(self._stateful) * standby_replicas, len(members))
        self._processes: dict[str, _Process] = {}
        self._had_active: dict[StickyTask, str] = {}
        self._had_standby: dict[StickyTask, list[str]] = {}
        self._given = {member_id: AssignedTasks() for member_id in members}
        for member_id in hash_order(members):
            member = members[member_id]
            self._processes.setdefault(member.process_id, _Process()).counts[member_id] = 0
            for task in _tasks(member.active):
                self._had_active[task] = member_id
            for task in _tasks(member.standby):
                self._had_standby.setdefault(task, []).append(member_id)

    def run(self) -> dict[str, AssignedTasks]:
        if self._members:
            self._assign_active()
            if self._standby_replicas > 0:
                self._assign_standby()
        return self._given

    def _process_of(self, member_id: str) -> _Process:
        return self._processes[self._members[member_id].process_id]

    def _heap(self) -> _JavaHeap[_Process]:
        heap: _JavaHeap[_Process] = _JavaHeap(lambda process: process.load)
        for process_id in hash_order(self._processes, len(self._members)):
            heap.add(self._processes[process_id])
        return heap

    def _give(self, member_id: str, task: StickyTask, *, is_active: bool, in_order: bool = False) -> None:
        process = self._process_of(member_id)
        process.tasks.add(task)
        process.counts[member_id] += 1
        process.count += 1
        if in_order:
            process.put_back(member_id)
        else:
            process.forget_order()
        given = self._given[member_id]
        (given.active if is_active else given.standby).setdefault(task.subtopology, set()).add(task.number)
        has = process.counts[member_id]
        if is_active:
            self._active_share.count(has)
        self._share.count(has)

    def _has_room(self, member_id: str, share: _Share) -> bool:
        return self._process_of(member_id).counts[member_id] < share.each

    def _assign_active(self) -> None:
        left: list[StickyTask] = []
        for task in sorted(self._active, key=_by_number):
            had = self._had_active.get(task)
            if had is not None and self._has_room(had, self._active_share):
                self._give(had, task, is_active=True)
            else:
                left.append(task)
        rest: list[StickyTask] = []
        for task in left:
            had = self._least_loaded_of(self._had_standby.get(task), task)
            if had is not None and self._has_room(had, self._active_share):
                self._give(had, task, is_active=True)
            else:
                rest.append(task)
        heap = self._heap()
        for task in sorted(rest, key=_by_subtopology):
            process = heap.poll()
            self._give(process.add_to_least_loaded(), task, is_active=True, in_order=True)
            heap.add(process)

    def _least_loaded_of(self, member_ids: list[str] | None, task: StickyTask) -> str | None:
        """Of those that had a task, one that does not run it already. None where the process of the first one does."""
        if not member_ids or task in self._process_of(member_ids[0]).tasks:
            return None
        found = member_ids[0]
        process = self._process_of(found)
        process_load, member_load = process.load, process.counts[found]
        for member_id in member_ids[1:]:
            other = self._process_of(member_id)
            if other.load < process_load and task not in other.tasks and other.counts[member_id] < member_load:
                found, process_load, member_load = member_id, other.load, other.counts[member_id]
        return found

    def _assign_standby(self) -> None:
        left: list[tuple[StickyTask, int]] = []
        for task in sorted(self._stateful, key=_by_number, reverse=True):
            for copy in range(self._standby_replicas):
                had = self._had_active.get(task)
                if had is None or task in self._process_of(had).tasks or not self._has_room(had, self._share):
                    had = self._least_loaded_of(self._had_standby.get(task), task)
                if had is None or not self._has_room(had, self._share):
                    left.append((task, self._standby_replicas - copy))
                    break
                self._give(had, task, is_active=False)
        heap = self._heap()
        for task, copies in sorted(left, key=lambda one: _by_subtopology(one[0]), reverse=True):
            for _ in range(copies):
                if not self._give_to_least_loaded(heap, task):
                    break

    def _give_to_least_loaded(self, heap: _JavaHeap[_Process], task: StickyTask) -> bool:
        """False: every process has it already."""
        passed: list[_Process] = []
        while heap:
            process = heap.poll()
            passed.append(process)
            if task not in process.tasks:
                self._give(process.add_to_least_loaded(), task, is_active=False, in_order=True)
                break
        else:
            process = None
        # The last one first, as they come back out of calls within calls.
        for one in reversed(passed):
            heap.add(one)
        return process is not None


def _tasks(ids: TaskIds) -> Iterable[StickyTask]:
    return (StickyTask(subtopology, number) for subtopology, numbers in ids.items() for number in numbers)


def _by_number(task: StickyTask) -> tuple[int, bytes]:
    return task.number, utf16_key(task.subtopology)


def _by_subtopology(task: StickyTask) -> tuple[bytes, int]:
    return utf16_key(task.subtopology), task.number


class _JavaHeap(Generic[T]):
    """A `java.util.PriorityQueue`, which gives equals in an order of its own."""

    def __init__(self, key: Callable[[T], float]) -> None:
        self._key = key
        self._items: list[T] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> None:
        items, key = self._items, self._key
        items.append(item)
        at = len(items) - 1
        while at > 0:
            parent = (at - 1) >> 1
            if key(item) >= key(items[parent]):
                break
            items[at] = items[parent]
            at = parent
        items[at] = item

    def poll(self) -> T:
        items, key = self._items, self._key
        first, last = items[0], items.pop()
        count = len(items)
        if count:
            at = 0
            while at < count >> 1:
                child = 2 * at + 1
                if child + 1 < count and key(items[child]) > key(items[child + 1]):
                    child += 1
                if key(last) <= key(items[child]):
                    break
                items[at] = items[child]
                at = child
            items[at] = last
        return first
