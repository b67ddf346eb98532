"""The metadata log in nodes: appended to by the controller of the latest epoch alone, cut short by snapshots.

An append names the version of `/epoch` that its controller's election left there. The next election changes it, so
whatever the one before still sends is refused: no lease and no clock is needed for that. A group of records that needs
several nodes counts once its last one is there; the next controller removes a group that was left unfinished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.cluster.image import Image, InconsistentMetadataError
from headrace.cluster.records import MetadataRecord
from headrace.cluster.store import (
    DecisionTooLargeError,
    OutcomeUnknownError,
    Reading,
    SessionLostError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.cluster.store.batches import batches_within, checked_batches, records_of
from headrace.cluster.store.node_formats import (
    EPOCH,
    LOG_HEADER_BYTES,
    SNAPSHOT,
    SNAPSHOTS,
    LogNode,
    SnapshotPointer,
    decode_log_node,
    encode_log_node,
    log_path,
)
from headrace.cluster.store.node_link import NodeLink
from headrace.cluster.store.session import (
    NODE_BYTES_MAX,
    CheckVersion,
    ConnectionBrokenError,
    Create,
    Delete,
    NodeError,
    NodeExistsError,
    NodeMissingError,
    Operation,
    StoreSession,
    Watch,
    Write,
)
from headrace.errors import StaleControllerEpochError
from headrace.records import split
from headrace.records.batch import assign
from headrace.runtime import Runtime

SNAPSHOT_AFTER_BYTES = 4 * 1024 * 1024
SNAPSHOT_AFTER_NODES = 2000
GROUP_NODES_MAX = 256
_READ_AT_ONCE = 32
_DELETED_AT_ONCE = 500
_CHUNK_BYTES = NODE_BYTES_MAX - 1024


class Won(NamedTuple):
    """An election: the version of `/epoch` it left, in the session that it was won in."""

    epoch: int
    version: int
    session: StoreSession | None


class _Place(NamedTuple):
    """Where an offset is in the log: at the beginning of this node."""

    offset: int
    number: int


class _Unfinished(NamedTuple):
    """The first nodes of a group whose last one is not there: how many, and which group."""

    nodes: int
    nonce: bytes


@dataclass(slots=True)
class _Group:
    """Records that were written together, as far as they have been read."""

    nonce: bytes = b""
    records: list[tuple[int, MetadataRecord]] = field(default_factory=list)


class _ReplacedError(Exception):
    """A snapshot took the place of what was being read."""


class NodeLog:
    """Reads for whoever follows, and appends for the controller."""

    def __init__(
        self, runtime: Runtime, link: NodeLink, after_nodes: int, after_bytes: int, node_bytes_max: int = NODE_BYTES_MAX
    ) -> None:
        self._runtime = runtime
        self._link = link
        self._node_bytes_max = node_bytes_max
        self._after_nodes = after_nodes
        self._after_bytes = after_bytes
        self._seen = _Place(0, 0)
        # What was found behind that, of a group that is not finished.
        self._unfinished = _Unfinished(0, b"")
        # The controller's own: where its next append goes.
        self._end: _Place | None = None
        self._nodes = 0
        self._bytes = 0

    # --- reading

    async def read_from(self, offset: int) -> Reading:
        while True:
            try:
                return await self._read(offset, await self._pointer())
            except _ReplacedError:
                continue

    async def _pointer(self) -> SnapshotPointer:
        node = await self._link.read(lambda session: session.get(SNAPSHOT))
        return SnapshotPointer() if node is None else SnapshotPointer.decode(node.data)

    async def _read(self, offset: int, pointer: SnapshotPointer) -> Reading:
        reading = Reading(end_offset=offset)
        # What was seen on a server that lagged behind may have been removed since, with a snapshot up to that offset.
        number = max(self._seen.number, pointer.next_number) if self._seen.offset == offset else pointer.next_number
        if offset < pointer.end_offset:
            reading.snapshot = await self._read_snapshot(pointer)
            reading.snapshot_end = reading.end_offset = pointer.end_offset
            number = pointer.next_number
        self._seen = _Place(reading.end_offset, number)
        at_once = 1
        group = _Group()
        while True:
            nodes = await self._nodes_from(number, at_once)
            for node in nodes:
                if node is None:
                    break
                number += 1
                self._take(node, number, group, reading)
            if not nodes or nodes[-1] is None:
                break
            # Mostly one node is new; whoever is far behind asks for many before long.
            at_once = min(2 * at_once, _READ_AT_ONCE)
        latest = await self._pointer()
        if latest.next_number > number:
            raise _ReplacedError
        self._unfinished = _Unfinished(number - self._seen.number, group.nonce)
        return reading

    def _take(self, node: LogNode, next_number: int, group: _Group, reading: Reading) -> None:
        header = node.batch.header()
        if header.next_offset <= reading.end_offset and not group.records:
            # From before what was asked for.
            self._seen = _Place(reading.end_offset, next_number)
            return
        if group.records and node.nonce != group.nonce:
            # The group was not finished, and the next controller wrote others in its place: look again.
            raise _ReplacedError
        expected = group.records[-1][0] + 1 if group.records else reading.end_offset
        if header.base_offset > expected:
            where = log_path(next_number - 1)
            raise InconsistentMetadataError(
                f"{self._link.where}{where}: it begins at offset {header.base_offset}, but {expected} was expected"
            )
        group.nonce = node.nonce
        group.records += [entry for entry in records_of(node.batch, "the metadata log") if entry[0] >= expected]
        if node.ends_group:
            reading.records += group.records
            group.records = []
            reading.end_offset = header.next_offset
            reading.epoch = max(reading.epoch, node.epoch)
            self._seen = _Place(header.next_offset, next_number)

    async def _nodes_from(self, number: int, count: int) -> list[LogNode | None]:
        """Some nodes from this one on; None for the first that is not there (yet)."""
        paths = [log_path(number + index) for index in range(count)]

        async def ask(session: StoreSession) -> list[LogNode | None]:
            found = []
            # Mostly one is asked for, and it is not there yet.
            asked = [session.get(path) for path in paths]
            nodes = [await asked[0]] if count == 1 else await asyncio.gather(*asked)
            for path, node in zip(paths, nodes):
                found.append(None if node is None else decode_log_node(path, node.data))
                if node is None:
                    break
            return found

        return await self._link.read(ask)

    async def _read_snapshot(self, pointer: SnapshotPointer) -> list[MetadataRecord]:
        records: list[MetadataRecord] = []
        for index in range(pointer.chunks):
            path = f"{SNAPSHOTS}/{pointer.name}/{index:06d}"
            node = await self._link.read(lambda session, path=path: session.get(path))  # type: ignore[misc]  # the default binds this turn's path
            if node is None:
                if await self._pointer() != pointer:
                    raise _ReplacedError
                raise InconsistentMetadataError(f"{self._link.where}{path}: this part of the snapshot is missing")
            for batch in checked_batches(node.data, path):
                records += [record for _, record in records_of(batch, path)]
        return records

    async def grown_beyond(self, offset: int) -> None:
        """Wait until there may be something at this offset that was not read yet."""
        if self._seen.offset != offset:
            return
        number, unfinished = self._seen.number, self._unfinished

        async def look(session: StoreSession, watch: Watch | None) -> bool:
            """Whether the next node is there, the group that it would be of is another's, or a snapshot has it."""
            if await session.get(log_path(number + unfinished.nodes), watch) is not None:
                return True
            if unfinished.nodes:
                path = log_path(number)
                first = await session.get(path, watch)
                if first is None or decode_log_node(path, first.data).nonce != unfinished.nonce:
                    return True
            node = await session.get(SNAPSHOT)
            return node is not None and SnapshotPointer.decode(node.data).next_number > number

        await self._link.other_than([False], look)

    # --- appending

    async def take_over(self, won: Won) -> None:
        """After an election: find the end of the log, and remove a group that the one before did not finish."""
        pointer = await self._pointer()
        place = _Place(pointer.end_offset, pointer.next_number)
        number, self._nodes, self._bytes = place.number, 0, 0
        while True:
            nodes = await self._nodes_from(number, _READ_AT_ONCE)
            for node in nodes:
                if node is None:
                    break
                number += 1
                self._nodes += 1
                self._bytes += len(node.batch.buffer)
                if node.ends_group:
                    place = _Place(node.batch.header().next_offset, number)
            if nodes[-1] is None:
                break
        for unfinished in range(number - 1, place.number - 1, -1):
            await self._insist(won, [Delete(log_path(unfinished))], done=NodeMissingError)
        self._end = place

    async def append(self, won: Won, records: Sequence[MetadataRecord]) -> int:
        end = self._end
        if end is None:
            raise StaleControllerEpochError(f"The controller of epoch {won.epoch} has lost its place in the log.")
        if not records:
            await self._insist(won, [])
            return end.offset
        try:
            room = self._node_bytes_max - LOG_HEADER_BYTES
            batches = list(batches_within(records, self._runtime.clock.now_ms(), room))
        except ValueError as error:
            raise DecisionTooLargeError(
                f"{error} is too large for the store (at most {self._node_bytes_max} bytes)"
            ) from error
        if len(batches) > GROUP_NODES_MAX:
            raise DecisionTooLargeError(
                f"A decision of {sum(map(len, batches))} bytes of metadata is too large; ask for less at once "
                f"(at most {GROUP_NODES_MAX * self._node_bytes_max} bytes)."
            )
        nonce = self._runtime.rng.randbytes(16)
        self._end = None  # until it is known how it went
        place = end
        for index, batch in enumerate(batches):
            assign(batch, place.offset, won.epoch)
            next_offset = next(split(batch)).header().next_offset
            data = encode_log_node(won.epoch, nonce, index == len(batches) - 1, batch)
            try:
                await self._append_node(won, place.number, data, nonce)
            except (StoreUnavailableError, StoreRefusedError) as error:
                if index == 0:
                    if self._end is None:
                        self._end = end  # nothing of it is there
                    raise
                raise OutcomeUnknownError(f"{self._link.where} failed in the middle of a decision: {error}") from error
            place = _Place(next_offset, place.number + 1)
            self._nodes += 1
            self._bytes += len(data)
        self._end = place
        return place.offset

    async def _append_node(self, won: Won, number: int, data: bytes, nonce: bytes) -> None:
        path = log_path(number)
        operations: list[Operation] = [CheckVersion(EPOCH, won.version)]
        if number > 0:
            operations.append(CheckVersion(log_path(number - 1)))
        operations.append(Create(path, data))
        deadline = self._runtime.clock.monotonic() + self._link.timeout_s
        tries = 0
        while True:
            try:
                await self._link.change(operations)
                return
            except ConnectionBrokenError as error:
                reason: Exception = error
            except NodeExistsError as error:
                reason = error
            except NodeError as error:
                raise _deposed(won) from error
            except SessionLostError as error:
                raise StaleControllerEpochError(f"The controller of epoch {won.epoch} lost its session.") from error
            # It was written, or not, or by another.
            try:
                tries = await self._link.before_another_try(tries)
                found = await self._link.read(lambda session: session.get(path))
            except (StoreUnavailableError, SessionLostError) as error:
                raise OutcomeUnknownError(f"{reason}; whether the metadata was written is not known") from error
            if found is None and self._runtime.clock.monotonic() > deadline:
                # All that was sent was done before this was read. What breaks each connection breaks the next as well.
                raise StoreUnavailableError(f"{self._link.where} does not take what is to be written: {reason}")
            if found is not None:
                if decode_log_node(path, found.data).nonce == nonce:
                    return
                raise _deposed(won)

    async def _insist(self, won: Won, operations: Sequence[Operation], done: type[NodeError] | None = None) -> None:
        """Make a change as the controller, until it is made. `done` says that it had been made already."""
        tries = 0
        while True:
            try:
                await self._link.change([CheckVersion(EPOCH, won.version), *operations])
                return
            except ConnectionBrokenError:
                tries = await self._pause(won, tries)
            except SessionLostError as error:
                raise StaleControllerEpochError(f"The controller of epoch {won.epoch} lost its session.") from error
            except NodeError as error:
                if error.path == EPOCH:
                    raise _deposed(won) from error
                if done is None or not isinstance(error, done):
                    raise InconsistentMetadataError(f"{self._link.where}: {error}") from error
                return

    async def _pause(self, won: Won, tries: int) -> int:
        try:
            return await self._link.before_another_try(tries)
        except SessionLostError as error:
            raise StaleControllerEpochError(f"The controller of epoch {won.epoch} lost its session.") from error

    # --- snapshots

    @property
    def snapshot_due(self) -> bool:
        return self._nodes >= self._after_nodes or self._bytes >= self._after_bytes

    async def take_snapshot(self, won: Won, image: Image) -> None:
        end = self._end
        if end is None:
            raise StaleControllerEpochError(f"The controller of epoch {won.epoch} has lost its place in the log.")
        if image.offset != end.offset:
            raise ValueError(f"the image is that of offset {image.offset}, but the log ends at {end.offset}")
        # At once: the image goes on changing if another is elected meanwhile.
        records = list(image.to_records())
        old = await self._pointer()
        if old.end_offset == end.offset:
            return
        pointer = SnapshotPointer(f"{end.offset:020d}-{won.epoch:010d}", 0, end.offset, end.number)
        top = f"{SNAPSHOTS}/{pointer.name}"
        await self._remove_snapshot(won, pointer.name)
        await self._insist(won, [Create(top, b"")], done=NodeExistsError)
        chunks = 0
        for batch in batches_within(records, self._runtime.clock.now_ms(), _CHUNK_BYTES):
            await self._insist(won, [Create(f"{top}/{chunks:06d}", bytes(batch))], done=NodeExistsError)
            chunks += 1
        data = SnapshotPointer(pointer.name, chunks, pointer.end_offset, pointer.next_number).encode()
        if await self._link.read(lambda session: session.get(SNAPSHOT)) is None:
            await self._insist(won, [Create(SNAPSHOT, data)], done=NodeExistsError)
        else:
            await self._insist(won, [Write(SNAPSHOT, data)])
        self._nodes = self._bytes = 0
        await self._remove_before(won, pointer, end.number)

    async def _remove_before(self, won: Won, pointer: SnapshotPointer, end_number: int) -> None:
        """Remove what the snapshot stands for, but for the last node, which the next append checks."""
        names = await self._link.read(lambda session: session.children("/log"))
        gone = [f"/log/{name}" for name in names if int(name) < end_number - 1]
        # From the oldest on: a crash in between leaves no hole.
        for start in range(0, len(gone), _DELETED_AT_ONCE):
            chunk = [Delete(path) for path in gone[start : start + _DELETED_AT_ONCE]]
            await self._insist(won, chunk, done=NodeMissingError)
        for name in await self._link.read(lambda session: session.children(SNAPSHOTS)):
            if name != pointer.name:
                await self._remove_snapshot(won, name)

    async def _remove_snapshot(self, won: Won, name: str) -> None:
        top = f"{SNAPSHOTS}/{name}"
        if await self._link.read(lambda session: session.get(top)) is None:
            return
        for chunk in await self._link.read(lambda session: session.children(top)):
            await self._insist(won, [Delete(f"{top}/{chunk}")], done=NodeMissingError)
        await self._insist(won, [Delete(top)], done=NodeMissingError)


def _deposed(won: Won) -> StaleControllerEpochError:
    return StaleControllerEpochError(f"The controller of epoch {won.epoch} was replaced by another.")
