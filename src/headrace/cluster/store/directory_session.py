"""Nodes that the brokers of one machine share in a directory, for development and for tests without Java.

Every change is one entry at the end of a file, written and synced under a file lock; each process makes the tree of
nodes from it. A session is a lock on a file of its own, which the kernel lets go of when its process dies, and a time
stamp on it, which stands still when the process does. Whoever notices either writes down that the session is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from headrace.cluster.image import InconsistentMetadataError
from headrace.cluster.store.node_formats import reading
from headrace.cluster.store.node_tree import NodeTree, Touched, TreeNode, Watches
from headrace.cluster.store.session import (
    CheckVersion,
    ConnectionBrokenError,
    Create,
    Delete,
    NodeError,
    Operation,
    SessionBase,
    SessionExpiredError,
    SessionState,
    StoreNode,
    Watch,
    Write,
)
from headrace.errors import HeadraceError
from headrace.runtime import DirectoryLockedError, Disk, DiskError, FileMissingError, Lock, OverloadedError, Runtime

logger = logging.getLogger("headrace.cluster.store")

T = TypeVar("T")

_FRAME: Final = struct.Struct(">II")
_META: Final = struct.Struct(">I")
REWRITE_AFTER_BYTES: Final = 8 * 1024 * 1024
EXPIRED_KEPT_MAX: Final = 1000
POLL_S: Final = 0.1
# The size of one file tells whether others changed anything: that is asked for more often than all else.
_GLANCE_S: Final = 0.01
_LOCK_RETRY_S: Final = 0.002
_TRIES_MAX: Final = 100


class SharedTree:
    """The file of changes and the tree made of it. Blocking; one thread at a time."""

    def __init__(self, disk: Disk, directory: str, rewrite_after_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._rewrite_after_bytes = rewrite_after_bytes
        self.tree = NodeTree()
        #: In the order in which they ended.
        self.expired: dict[str, None] = {}
        self._generation = -1
        self._position = 0
        # Beyond the position there may be what a process that died has written half.
        self._size_seen = -1
        disk.makedirs(directory)  # by itself: of several at once only the last would be its owner's alone
        disk.makedirs(os.path.join(directory, "sessions"))

    def session_path(self, name: str) -> str:
        return os.path.join(self._directory, "sessions", name)

    def _changes_path(self, generation: int) -> str:
        return os.path.join(self._directory, f"changes.{generation}")

    @property
    def _current_path(self) -> str:
        return os.path.join(self._directory, "current")

    def lock(self) -> Lock:
        """Nobody else changes anything while this is held; `DirectoryLockedError` while another does."""
        return self._disk.lock(os.path.join(self._directory, "lock"))

    # --- reading

    def may_have_changed(self) -> bool:
        """Whether others have written something down since; asked without a lock, and cheap."""
        try:
            return self._disk.size(self._changes_path(self._generation)) != self._size_seen
        except DiskError:
            return True

    def refresh(self) -> Touched | None:
        """Make the changes that others have written down; None when the whole tree may be another."""
        for _ in range(_TRIES_MAX):
            try:
                return self._refresh()
            except FileMissingError:
                continue  # it was rewritten meanwhile, so another one is current by now
        raise InconsistentMetadataError(f"{self._directory}: {self._current_path} names a file that is not there")

    def _refresh(self) -> Touched | None:
        is_other = False
        generation = self._current()
        if generation != self._generation:
            self.tree, self._generation, self._position = NodeTree(), generation, 0
            is_other = True
        touched = Touched()
        path = self._changes_path(generation)
        size = self._disk.size(path) if self._disk.exists(path) else 0
        self._size_seen = size
        if generation > 0 and size == 0:
            raise FileMissingError("read", path, None)
        if size > self._position:
            file = self._disk.open(path)
            try:
                data = file.read(self._position, size - self._position)
            finally:
                file.close()
            for meta, blobs, length in _frames(data):
                change = self._replay(path, meta, blobs)
                touched.nodes |= change.nodes
                touched.parents |= change.parents
                self._position += length
        return None if is_other else touched

    def _current(self) -> int:
        try:
            data = self._disk.read_file(self._current_path)
        except FileMissingError:
            return 0
        with reading(self._current_path):
            return int(data)

    def _replay(self, path: str, meta: dict[str, Any], blobs: Iterator[bytes]) -> Touched:
        """Make one change that is written down. One that does not fit is nobody's who reads it now."""
        try:
            with reading(path):
                return self._replayed(meta, blobs)
        except (NodeError, InconsistentMetadataError) as error:
            self._generation = -1  # the tree may have a part of it
            if isinstance(error, NodeError):
                raise InconsistentMetadataError(f"{path}: a change does not fit those before it ({error})") from error
            raise

    def _replayed(self, meta: dict[str, Any], blobs: Iterator[bytes]) -> Touched:
        if "expired" in meta:
            self.expired[meta["expired"]] = None
            return self.tree.expire(meta["expired"])
        if "tree" in meta:
            self.expired.update(dict.fromkeys(meta.get("over", ())))
            self.tree.replace(
                {path: TreeNode(_next(blobs), version, owner) for path, _, version, owner in meta["tree"]}
            )
            return Touched()
        return self.tree.apply(meta["session"], [_operation(row, blobs) for row in meta["operations"]])

    # --- writing, with the lock

    def commit(self, session: str, operations: Sequence[Operation]) -> Touched:
        """Make a change, or raise what is wrong with it."""
        touched = self.tree.apply(session, operations)
        rows, blobs = [], []
        for operation in operations:
            row, blob = _row(operation)
            rows.append(row)
            blobs.append(blob)
        self._write(_frame({"session": session, "operations": rows}, blobs))
        return touched

    def expire(self, session: str) -> Touched:
        touched = self.tree.expire(session)
        self.expired[session] = None
        self._write(_frame({"expired": session}, []))
        with contextlib.suppress(DiskError):
            self._disk.remove(self.session_path(session))
        return touched

    def _write(self, frame: bytes) -> None:
        try:
            file = self._disk.open(self._changes_path(self._generation), create=True)
            try:
                if file.size() > self._position:
                    file.truncate(self._position)  # what a process that died left half-written
                file.append([frame])
                file.sync()
            finally:
                file.close()
            if self._position == 0:
                self._disk.sync_dir(self._directory)
        except DiskError:
            # The tree has what the file may not have.
            self._generation = -1
            raise
        self._position += len(frame)
        if self._position > self._rewrite_after_bytes:
            self._rewrite()

    def _rewrite(self) -> None:
        """Begin a new file with the tree as it is."""
        old, generation = self._generation, self._generation + 1
        rows = [[path, len(node.data), node.version, node.owner] for path, node in self.tree.nodes.items()]
        # Whoever stood still meanwhile has to learn that it is over, and reads nothing of the file before.
        over = list(self.expired)[-EXPIRED_KEPT_MAX:]
        frame = _frame({"tree": rows, "over": over}, [node.data for node in self.tree.nodes.values()])
        try:
            self._disk.replace_file(self._changes_path(generation), frame)
            self._disk.replace_file(self._current_path, b"%d\n" % generation)
        except DiskError as error:
            logger.warning("%s: the changes could not be rewritten: %s", self._directory, error)
            return
        self._generation, self._position = generation, len(frame)
        with contextlib.suppress(DiskError):
            self._disk.remove(self._changes_path(old))

    # --- who is alive

    def is_dead(self, session: str) -> bool:
        """Whether the process of a session is gone: its lock is free."""
        try:
            self._disk.lock(self.session_path(session)).release()
        except DirectoryLockedError:
            return False
        return True

    def stamp(self, session: str) -> int:
        """What changes for as long as the session's process goes on."""
        try:
            return self._disk.mtime_ms(self.session_path(session))
        except FileMissingError:
            return -1


def _frame(meta: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    text = json.dumps(meta, separators=(",", ":")).encode()
    payload = b"".join((_META.pack(len(text)), text, *blobs))
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _frames(data: bytes) -> Iterator[tuple[dict[str, Any], Iterator[bytes], int]]:
    """The whole entries of a piece of the file; what follows the last of them is being written, or never was."""
    position = 0
    while len(data) - position >= _FRAME.size:
        length, checksum = _FRAME.unpack_from(data, position)
        payload = data[position + _FRAME.size : position + _FRAME.size + length]
        if len(payload) != length or zlib.crc32(payload) != checksum:
            return
        with reading("the journal of the directory"):
            (size,) = _META.unpack_from(payload)
            meta = json.loads(payload[_META.size : _META.size + size])
            rows = meta.get("operations") or meta.get("tree") or []
            sizes = [int(row[-3]) for row in rows]
        yield meta, _blobs(payload, _META.size + size, sizes), _FRAME.size + length
        position += _FRAME.size + length


def _blobs(payload: bytes, position: int, sizes: list[int]) -> Iterator[bytes]:
    for size in sizes:
        yield payload[position : position + size]
        position += size


def _next(blobs: Iterator[bytes]) -> bytes:
    for blob in blobs:
        return blob
    raise ValueError("there are more nodes than data of nodes")


def _row(operation: Operation) -> tuple[list[Any], bytes]:
    """An operation without its data. The third entry from the end is the data's size."""
    match operation:
        case Create(path, data, is_ephemeral):
            return ["create", path, len(data), is_ephemeral, None], data
        case Write(path, data, version):
            return ["write", path, len(data), version, None], data
        case Delete(path, version):
            return ["delete", path, 0, version, None], b""
        case CheckVersion(path, version):
            return ["check", path, 0, version, None], b""


def _operation(row: list[Any], blobs: Iterator[bytes]) -> Operation:
    with reading("the journal of the directory"):
        kind, path, _, extra, _ = row
        data = _next(blobs)
    if kind == "create":
        return Create(path, data, extra)
    if kind == "write":
        return Write(path, data, extra)
    return Delete(path, extra) if kind == "delete" else CheckVersion(path, extra)


class _BusyError(Exception):
    """Another process changes the directory right now."""


class DirectorySession(SessionBase):
    """Implements `StoreSession`."""

    def __init__(
        self,
        runtime: Runtime,
        directory: str,
        *,
        timeout_s: float,
        poll_s: float = POLL_S,
        rewrite_after_bytes: int = REWRITE_AFTER_BYTES,
    ) -> None:
        super().__init__(runtime.clock, timeout_s)
        self._runtime = runtime
        self._directory = os.path.abspath(directory)
        self._poll_s = poll_s
        self._rewrite_after_bytes = rewrite_after_bytes
        self.name = runtime.uuid().hex()
        self._watches = Watches()
        self._pool = runtime.workers.pool("metadata-store", 1)
        self._shared: SharedTree | None = None
        self._lock: Lock | None = None
        self._polling: asyncio.Task[None] | None = None
        # When each other session's stamp was last seen to change.
        self._stamps: dict[str, tuple[int, float]] = {}
        self._stamped_at = 0.0

    async def start(self) -> None:
        try:
            await self._pool.submit(self._open)
        except DiskError as error:
            raise ConnectionBrokenError(str(error)) from error
        self._become(SessionState.CONNECTED)
        self._polling = asyncio.get_running_loop().create_task(self._poll())

    def _open(self) -> None:
        self._shared = SharedTree(self._runtime.disk, self._directory, self._rewrite_after_bytes)
        self._lock = self._runtime.disk.lock(self._shared.session_path(self.name))
        self._shared.refresh()
        self._heard_at = self._runtime.clock.boottime()

    @property
    def _tree(self) -> SharedTree:
        assert self._shared is not None, "start() comes first"
        return self._shared

    async def close(self) -> None:
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            if self._state is not SessionState.EXPIRED:
                with contextlib.suppress(ConnectionBrokenError, SessionExpiredError):
                    await self._locked(functools.partial(self._tree.expire, self.name))
        self._end()
        lock, self._lock = self._lock, None
        if lock is not None:
            await self._pool.submit(lock.release)
        await self._pool.close()

    def _become(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._set_state(state)
        for callback in self._callbacks:
            callback()

    def _end(self) -> None:
        if self._state is not SessionState.EXPIRED:
            self._become(SessionState.EXPIRED)
            self._fire(self._watches.take_all())

    # --- looking after

    async def _poll(self) -> None:
        """See what others changed, show that this process goes on, and look whether the others do."""
        while self._state is not SessionState.EXPIRED:
            await self._until_due()
            try:
                dead = await self._read(self._look_around)
                for name in dead:
                    logger.warning("%s: a session has expired: its process ended, or stood still", self._directory)
                    await self._locked(functools.partial(self._tree.expire, name))
            except SessionExpiredError:
                return
            except Exception as error:
                # Also a damaged file, say, or a defect: nobody else looks whether this session is still alive.
                if isinstance(error, HeadraceError):
                    logger.error("%s", error)
                else:
                    logger.exception("%s could not be looked at, by a defect: please report it", self._directory)
                if self._state is SessionState.CONNECTED:
                    self._become(SessionState.SUSPENDED)
                    self._fire(self._watches.take_all())
            else:
                self._become(SessionState.CONNECTED)

    async def _until_due(self) -> None:
        """Wait for the next look around, or until there is something to see."""
        due = self._runtime.clock.monotonic() + self._poll_s
        while self._runtime.clock.monotonic() < due:
            await asyncio.sleep(min(_GLANCE_S, self._poll_s))
            if self._tree.may_have_changed():
                return

    def _look_around(self) -> list[str]:
        """The sessions of others that are over."""
        now = self._runtime.clock.monotonic()
        shared = self._tree
        if now - self._stamped_at > self._timeout_s / 8:
            self._stamped_at, heard_at = now, self._runtime.clock.boottime()
            self._runtime.disk.set_mtime_ms(shared.session_path(self.name), self._runtime.clock.now_ms())
            self._heard_at = heard_at
        owners = sorted(shared.tree.owners() - {self.name})
        self._stamps = {name: stamp for name, stamp in self._stamps.items() if name in owners}
        over = []
        for name in owners:
            stamp = shared.stamp(name)
            if self._stamps.get(name, (None, 0.0))[0] != stamp:
                self._stamps[name] = (stamp, now)
            if shared.is_dead(name) or now - self._stamps[name][1] > self._timeout_s:
                over.append(name)
        return over

    def _fire(self, watches: list[Watch]) -> None:
        loop = asyncio.get_running_loop()
        for watch in watches:
            loop.call_soon(watch)

    # --- requests

    async def _read(self, look: Callable[[], T]) -> T:
        """Look at the tree as it is now."""
        return await self._do(self._tree.refresh, lambda: (look(), Touched()))

    async def _locked(self, change: Callable[[], Touched]) -> None:
        """Make a change while nobody else makes one."""
        deadline = self._runtime.clock.monotonic() + self._timeout_s
        while True:
            try:
                await self._do(self._tree.refresh, lambda: (None, change()), with_lock=True)
                return
            except _BusyError as error:
                if self._runtime.clock.monotonic() > deadline:
                    raise ConnectionBrokenError(str(error)) from error
                await asyncio.sleep(_LOCK_RETRY_S * (1 + self._runtime.rng.random()))

    async def _do(
        self,
        refresh: Callable[[], Touched | None],
        work: Callable[[], tuple[T, Touched]],
        *,
        with_lock: bool = False,
    ) -> T:
        """See what others changed, then do something. Whoever watches is told of all of it, also if that fails."""

        def attempt() -> tuple[list[Touched | None], T | None, Exception | None]:
            try:
                lock = self._tree.lock() if with_lock else None
            except DirectoryLockedError as error:
                return [], None, _BusyError(str(error))
            seen: list[Touched | None] = []
            try:
                seen.append(refresh())
                if self.name in self._tree.expired:
                    return seen, None, SessionExpiredError(f"the session {self.name} is over")
                found, touched = work()
                return [*seen, touched], found, None
            except (NodeError, DiskError) as error:
                return seen, None, error
            finally:
                if lock is not None:
                    lock.release()

        try:
            seen, found, error = await self._pool.submit(attempt)
        except OverloadedError as overloaded:
            raise ConnectionBrokenError(f"{self._directory} cannot be used: {overloaded}") from overloaded
        for touched in seen:
            self._fire(self._watches.take_all() if touched is None else self._watches.take(touched))
        if isinstance(error, SessionExpiredError) or self._state is SessionState.EXPIRED:
            self._end()
            raise SessionExpiredError(f"the session {self.name} is over")
        if isinstance(error, DiskError):
            raise ConnectionBrokenError(f"{self._directory} cannot be used: {error}") from error
        if error is not None:
            raise error
        return found  # type: ignore[return-value]  # None only with an error

    async def get(self, path: str, watch: Watch | None = None) -> StoreNode | None:
        # Before it is read, so that no change in between is missed. One that came before makes it fire once too often.
        if watch is not None:
            self._watches.on_node(path, watch)
        return await self._read(lambda: self._tree.tree.get(path))

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        if watch is not None:
            self._watches.on_children(path, watch)
        return await self._read(lambda: self._tree.tree.children(path))

    async def apply(self, operations: Sequence[Operation]) -> None:
        await self._locked(lambda: self._tree.commit(self.name, operations))

    async def sync(self) -> None:
        await self._read(lambda: None)
