"""A tree of nodes in memory, with the rules of ZooKeeper: what a server of the model keeps, and a shared directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.cluster.store.session import (
    ANY_VERSION,
    CheckVersion,
    Create,
    Delete,
    NodeChangedError,
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    Operation,
    StoreNode,
    Watch,
)


class TreeNode(NamedTuple):
    data: bytes
    version: int
    owner: str | None
    """The session that an ephemeral node belongs to."""


@dataclass(slots=True)
class Touched:
    """Whose watches fire after a change."""

    nodes: set[str] = field(default_factory=set)
    parents: set[str] = field(default_factory=set)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class NodeTree:
    """The nodes as they are after a prefix of all changes."""

    def __init__(self) -> None:
        self.nodes: dict[str, TreeNode] = {"/": TreeNode(b"", 0, None)}
        self._names: dict[str, set[str]] = {"/": set()}

    def get(self, path: str) -> StoreNode | None:
        found = self.nodes.get(path)
        return None if found is None else StoreNode(found.data, found.version)

    def children(self, path: str) -> list[str]:
        if path not in self.nodes:
            raise NodeMissingError(path)
        return sorted(self._names[path])

    def owners(self) -> set[str]:
        """The sessions that have ephemeral nodes."""
        return {node.owner for node in self.nodes.values() if node.owner is not None}

    def apply(self, session: str, operations: Sequence[Operation]) -> Touched:
        """Make all changes, or none and raise what is wrong with the first that does not fit."""
        changes: dict[str, TreeNode | None] = {}
        for operation in operations:
            self._change(session, operation, changes)
        touched = Touched()
        for path, node in changes.items():
            self._put(path, node, touched)
        return touched

    def _change(self, session: str, operation: Operation, changes: dict[str, TreeNode | None]) -> None:
        path = operation.path
        found = changes[path] if path in changes else self.nodes.get(path)
        if isinstance(operation, Create):
            parent = parent_of(path)
            above = changes[parent] if parent in changes else self.nodes.get(parent)
            if above is None or above.owner is not None:
                raise NodeMissingError(parent)
            if found is not None:
                raise NodeExistsError(path)
            changes[path] = TreeNode(operation.data, 0, session if operation.is_ephemeral else None)
            return
        if found is None:
            raise NodeMissingError(path)
        if operation.version not in (ANY_VERSION, found.version):
            raise NodeChangedError(path)
        if isinstance(operation, CheckVersion):
            return
        if isinstance(operation, Delete):
            if any(True for _ in self._below(path, changes)):
                raise NodeNotEmptyError(path)
            changes[path] = None
        else:
            changes[path] = TreeNode(operation.data, found.version + 1, found.owner)

    def _below(self, path: str, changes: dict[str, TreeNode | None]) -> Iterator[str]:
        prefix = path.rstrip("/") + "/"
        for name in self._names.get(path, ()):
            if changes.get(prefix + name, True) is not None:
                yield name
        for changed, node in changes.items():
            if node is not None and parent_of(changed) == path:
                yield changed

    def _put(self, path: str, node: TreeNode | None, touched: Touched) -> None:
        was_there = path in self.nodes
        if node is None:
            if not was_there:
                return
            del self.nodes[path]
            del self._names[path]
            self._names[parent_of(path)].discard(path.rpartition("/")[2])
        else:
            self.nodes[path] = node
            self._names.setdefault(path, set())
            self._names[parent_of(path)].add(path.rpartition("/")[2])
        touched.nodes.add(path)
        if not was_there or node is None or node.version == 0:  # also one that took the place of another
            touched.parents.add(parent_of(path))

    def expire(self, session: str) -> Touched:
        """A session is over: its nodes are gone."""
        touched = Touched()
        for path in [path for path, node in self.nodes.items() if node.owner == session]:
            self._put(path, None, touched)
        return touched

    def replace(self, nodes: dict[str, TreeNode]) -> None:
        """Take over all nodes of another tree."""
        self.nodes = dict(nodes)
        self._names = {path: set() for path in self.nodes}
        for path in self.nodes:
            if path != "/":
                self._names[parent_of(path)].add(path.rpartition("/")[2])


class Watches:
    """Who is told of the next change of which node, or of the names below it."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[Watch]] = {}
        self._children: dict[str, list[Watch]] = {}

    def on_node(self, path: str, watch: Watch) -> None:
        self._nodes.setdefault(path, []).append(watch)

    def on_children(self, path: str, watch: Watch) -> None:
        self._children.setdefault(path, []).append(watch)

    def take(self, touched: Touched) -> list[Watch]:
        """Those that fire now, once."""
        fired = [watch for path in sorted(touched.nodes) for watch in self._nodes.pop(path, ())]
        fired += [watch for path in sorted(touched.parents) for watch in self._children.pop(path, ())]
        # Whoever looks at the names below a node that is gone, looks in vain.
        fired += [watch for path in sorted(touched.nodes) for watch in self._children.pop(path, ())]
        return fired

    def take_all(self) -> list[Watch]:
        fired = [watch for watches in (*self._nodes.values(), *self._children.values()) for watch in watches]
        self._nodes.clear()
        self._children.clear()
        return fired
