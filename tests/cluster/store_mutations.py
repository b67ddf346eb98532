"""Mistakes in the store, put in on purpose: the simulation has to find each of them; run as

python -m tests.cluster.store_mutations [SEEDS]
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

from tests.cluster import store_simulation

from headrace.cluster.image import Image
from headrace.cluster.store import StoreMember, node_log, node_store
from headrace.cluster.store.node_formats import (
    BROKERS,
    EPOCH,
    ElectionData,
    LogNode,
    decode_election,
    decode_log_node,
    encode_member,
    log_path,
)
from headrace.cluster.store.node_link import NodeLink
from headrace.cluster.store.node_log import NodeLog, SnapshotPointer, Won, _Place
from headrace.cluster.store.node_store import NodeStore
from headrace.cluster.store.session import (
    CheckVersion,
    ConnectionBrokenError,
    Create,
    NodeError,
    Operation,
    StoreSession,
    Write,
)
from headrace.errors import HeadraceError, StaleControllerEpochError


class Mutation(NamedTuple):
    name: str
    #: It is found within so many seeds, counted from 0.
    seeds: int
    #: What to put in the place of what.
    patches: tuple[tuple[Any, str, Any], ...]


_change = NodeLink.change
_take, _remove_before, _take_snapshot = NodeLog._take, NodeLog._remove_before, NodeLog.take_snapshot
_register, _read_from = NodeStore.register, NodeStore.read_from


async def _without_epoch(link: NodeLink, operations: Sequence[Operation]) -> None:
    """Changes of a controller that do not look at the epoch."""
    await _change(link, [one for one in operations if not (isinstance(one, CheckVersion) and one.path == EPOCH)])


async def _sent_is_made(log: NodeLog, won: Won, number: int, data: bytes, nonce: bytes) -> None:
    """An append whose connection broke counts as made."""
    operations: list[Operation] = [CheckVersion(EPOCH, won.version), Create(log_path(number), data)]
    try:
        await log._link.change(operations)
    except ConnectionBrokenError:
        return
    except NodeError as error:
        raise StaleControllerEpochError("replaced") from error


def _any_writer(path: str, data: bytes) -> LogNode:
    """A node that is there already counts as our own, whoever wrote it."""
    return decode_log_node(path, data)._replace(nonce=mock.ANY)


async def _sent_again(log: NodeLog, won: Won, number: int, data: bytes, nonce: bytes) -> None:
    """An append whose connection broke is sent once more, in the next place if that one is taken."""
    while True:
        try:
            await log._link.change([CheckVersion(EPOCH, won.version), Create(log_path(number), data)])
            return
        except ConnectionBrokenError:
            continue
        except NodeError as error:
            if error.path == EPOCH:
                raise StaleControllerEpochError("replaced") from error
            number += 1


def _parts_of_groups(log: NodeLog, node: Any, next_number: int, group: Any, reading: Any) -> None:
    """Records count before their decision is whole."""
    _take(log, node._replace(ends_group=True), next_number, group, reading)


async def _unfinished_stays(log: NodeLog, won: Won) -> None:
    """The next controller writes on behind what the one before left unfinished."""
    pointer = await log._pointer()
    place = _Place(pointer.end_offset, pointer.next_number)
    while (node := (await log._nodes_from(place.number, 1))[0]) is not None:
        place = _Place(node.batch.header().next_offset, place.number + 1)
    log._end = place


async def _last_node_too(log: NodeLog, won: Won, pointer: SnapshotPointer, end_number: int) -> None:
    """Old nodes go with the last one, which the next append looks for."""
    await _remove_before(log, won, pointer, end_number + 1)


async def _old_nodes_first(log: NodeLog, won: Won, image: Image) -> None:
    """What a snapshot stands for goes before the snapshot is there."""
    end = log._end
    assert end is not None
    await _remove_before(log, won, SnapshotPointer("", 0, end.offset, end.number), end.number)
    await _take_snapshot(log, won, image)


def _any_election(data: bytes) -> ElectionData:
    """An election whose connection broke counts as won, whoever won it."""
    return decode_election(data)._replace(nonce=mock.ANY)


async def _unversioned_epoch(link: NodeLink, operations: Sequence[Operation]) -> None:
    """An election raises the epoch whatever it is by now."""
    changes = [Write(one.path, one.data) if isinstance(one, Write) and one.path == EPOCH else one for one in operations]
    await _change(link, changes)


async def _registered_anyway(store: NodeStore, member: StoreMember) -> None:
    """A node of an earlier session of ours is taken as good, though it goes with that session."""
    await store._link.begin()
    path = f"{BROKERS}/{member.node_id}"
    node = await store._link.read(lambda session: session.get(path))
    if node is not None and node.data == encode_member(member):
        return
    await _register(store, member)


async def _not_the_latest(store: NodeStore, offset: int, *, latest: bool = False) -> Any:
    """The latest is what the server at hand has."""
    return await _read_from(store, offset)


async def _watch_after_looking(log: NodeLog, offset: int) -> None:
    """What comes between the look and the watch is not told."""
    if log._seen.offset != offset:
        return
    number = log._seen.number

    async def look(session: StoreSession, watch: Any) -> bool:
        found = await session.get(log_path(number)) is not None
        await session.get(log_path(number), watch)
        return found

    await log._link.other_than([False], look)


MUTATIONS = (
    Mutation("a controller does not look at the epoch", 10, ((NodeLink, "change", _without_epoch),)),
    Mutation("what was sent counts as made", 10, ((NodeLog, "_append_node", _sent_is_made),)),
    Mutation("what was sent is sent again", 10, ((NodeLog, "_append_node", _sent_again),)),
    Mutation("whatever is there counts as ours", 40, ((node_log, "decode_log_node", _any_writer),)),
    Mutation("parts of decisions are read", 10, ((NodeLog, "_take", _parts_of_groups),)),
    Mutation("what is unfinished stays", 10, ((NodeLog, "take_over", _unfinished_stays),)),
    Mutation("the last node is removed", 10, ((NodeLog, "_remove_before", _last_node_too),)),
    Mutation("old nodes go before the snapshot", 10, ((NodeLog, "take_snapshot", _old_nodes_first),)),
    Mutation("any election counts as won", 10, ((node_store, "decode_election", _any_election),)),
    Mutation("the epoch is raised whatever it is", 40, ((NodeLink, "change", _unversioned_epoch),)),
    Mutation("an earlier registration is taken as good", 40, ((NodeStore, "register", _registered_anyway),)),
    Mutation("the latest is what a server has", 10, ((NodeStore, "read_from", _not_the_latest),)),
    Mutation("watched after looking", 10, ((NodeLog, "grown_beyond", _watch_after_looking),)),
)


@contextlib.contextmanager
def put_in(mutation: Mutation) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for target, name, replacement in mutation.patches:
            stack.enter_context(mock.patch.object(target, name, replacement))
        yield


def found_after(mutation: Mutation, seeds: int) -> tuple[int, str] | None:
    """The first seed in which something is wrong, and what; None when it is in none of them."""
    with put_in(mutation):
        for seed in range(seeds):
            try:
                store_simulation.run(seed)
            except (AssertionError, HeadraceError) as error:
                return seed, str(error)
    return None


def main(arguments: list[str]) -> int:
    missed = 0
    for mutation in MUTATIONS:
        found = found_after(mutation, int(arguments[0]) if arguments else mutation.seeds)
        missed += found is None
        shown = "NOT FOUND" if found is None else f"seed {found[0]}: {found[1][:100]}"
        print(f"{mutation.name}: {shown}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
