"""Cycles of information flow between operations: Adya's G1c, as Jepsen's Kafka workload looks for it.

A reader depends on the writer of each value that it read (write-read), and what began after another operation ended
depends on that one (real time, which holds the order within a process too). Committed records are read after their
commit was asked for, and a transaction reads before it asks for its own: these dependencies have no cycle on a sound
broker. The order of two writes in a partition (write-write) is not among them, since records of open transactions
interleave; `write_order_cycles` counts what Jepsen would see with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from .history import Operation, Outcome, Place

Graph = Mapping[int, Iterable[int]]


def information_flow_cycles(operations: Sequence[Operation]) -> list[list[Operation]]:
    """The operations of each cycle of write-read and real-time dependencies."""
    graph = _write_read(operations)
    count = len(operations)
    # One node for each moment, each before the next: as many edges as operations, instead of one for every pair.
    moments = sorted({one.began for one in operations} | {one.ended for one in operations if _has_ended(one)})
    node_of = {at: count + index for index, at in enumerate(moments)}
    for before, after in pairwise(moments):
        graph[node_of[before]].add(node_of[after])
    for index, operation in enumerate(operations):
        at = node_of[operation.began] - 1
        if at >= count:
            # The moment before, so that what ends and what begins at the same time are not in an order.
            graph[at].add(index)
        if _has_ended(operation):
            graph[index].add(node_of[operation.ended])
    return _cycles_of_operations(graph, operations)


def write_order_cycles(operations: Sequence[Operation], logs: Mapping[Place, Sequence[tuple[int, int]]]) -> int:
    """How many groups of operations write-write and write-read dependencies tie into cycles. Kafka allows them."""
    graph = _write_read(operations)
    writer = _writers(operations)
    for log in logs.values():
        writers = [writer[value] for _, value in log if writer.get(value) is not None]
        for before, after in pairwise(writers):
            if before != after:
                graph[before].add(after)
    return len(_cycles_of_operations(graph, operations))


def _has_ended(operation: Operation) -> bool:
    return operation.outcome is not Outcome.INFO and operation.ended < float("inf")


def _writers(operations: Sequence[Operation]) -> dict[int, int]:
    """Who wrote a value, where that is one operation; results that were tried again have several."""
    writer: dict[int, int] = {}
    several: set[int] = set()
    for index, operation in enumerate(operations):
        for _, value, _ in operation.writes:
            if writer.setdefault(value, index) != index:
                several.add(value)
    return {value: index for value, index in writer.items() if value not in several}


def _write_read(operations: Sequence[Operation]) -> defaultdict[int, set[int]]:
    graph: defaultdict[int, set[int]] = defaultdict(set)
    writer = _writers(operations)
    for index, operation in enumerate(operations):
        for _, _, value in operation.reads:
            # A transaction that reads its own writes before their commit is a cycle by itself.
            if value in writer:
                graph[writer[value]].add(index)
    return graph


def _cycles_of_operations(graph: Graph, operations: Sequence[Operation]) -> list[list[Operation]]:
    found = []
    for component in _components(graph):
        if len(component) > 1 or component[0] in graph.get(component[0], ()):
            members = sorted(node for node in component if node < len(operations))
            found.append([operations[node] for node in members])
    return found


def _components(graph: Graph) -> Iterator[list[int]]:
    """Strongly connected components (Tarjan's), without recursion: a chain of moments is as long as the history."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for root in list(graph):
        if root in order:
            continue
        work: list[tuple[int, Iterator[int]]] = [(root, iter(graph.get(root, ())))]
        order[root] = low[root] = len(order)
        path.append(root)
        on_path.add(root)
        while work:
            node, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    at = path.index(node) if path[-1] != node else len(path) - 1
                    component, path[at:] = path[at:], []
                    on_path.difference_update(component)
                    yield component
            elif following not in order:
                order[following] = low[following] = len(order)
                path.append(following)
                on_path.add(following)
                work.append((following, iter(graph.get(following, ()))))
            elif following in on_path:
                low[node] = min(low[node], order[following])
