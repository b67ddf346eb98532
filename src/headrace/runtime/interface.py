"""The seam between Headrace and the operating system: clock, randomness, disk, network and threads, as Protocols.

Everything outside `headrace.runtime` takes a `Runtime` (or the piece of it that is needed) and touches nothing of this
kind by itself. So the same broker runs on a real machine and, under a seed, inside a simulation.
"""

from __future__ import annotations

import asyncio
import base64
import random
import ssl as ssl_module
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)

# A memoryview has to be of bytes (format "B"), so that len() counts bytes.
Buffer = bytes | bytearray | memoryview

_RESERVED_UUIDS = frozenset({bytes(16), bytes(15) + b"\x01"})
_UUID_TRIES_MAX = 1_000


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch. It may jump, in both directions."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back. For time-outs and durations.

        It stands still while the machine is suspended.
        """
        ...

    def boottime(self) -> float:
        """As `monotonic`, from another moment on, and with the time that the machine was suspended, if that is known.

        For what others count as well while this machine does nothing: how long a session with the store lasts, say.
        """
        ...


class File(Protocol):
    """A handle on one open file. Every method but `read_nowait` and `size` may block: the caller picks the thread.

    Appends are meant to come from one handle per file, one at a time; reads may run beside them, from any thread, and a
    `close` beside a running read is safe (the read ends normally).
    """

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Where the next append goes. Known to the handle: no system call."""
        ...

    def append(self, parts: Sequence[Buffer]) -> int:
        """Write all parts at the end and return the position where they begin.

        Short writes are continued. On an error the file is cut back to where it was and `DiskError` is raised; its
        `rolled_back` is False when even that failed (bytes after `size()` are then garbage).
        """
        ...

    def pwrite(self, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`; the file grows if it has to. Not atomic: an error may leave a part."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def read_nowait(self, position: int, length: int) -> bytearray | None:
        """What `read` gives, if it is in memory already; None when it would block or the file system cannot tell.

        A bytearray because the kernel fills it in place: making it `bytes` would copy every byte a second time.
        """
        ...

    def read_into_nowait(self, position: int, buffer: bytearray | memoryview) -> int | None:
        """What `read_into` does, if all of it is in memory already; None as for `read_nowait`."""
        ...

    def send_nowait(self, position: int, length: int, socket_number: int) -> int | None:
        """Send bytes from here to a socket without a copy of them in this process, as many as it has room for.

        None when the file would have to be waited for, 0 when the socket has no room, or this cannot be done at all.
        """
        ...

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        """Fill `buffer` and return the number of bytes read; fewer than its length only at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """fdatasync. After one failure each later sync of this handle fails too: the kernel may have dropped pages."""
        ...

    def close(self) -> None:
        """Idempotent. Does not sync."""
        ...


class HeldDirectory(Protocol):
    """A directory that is open: its names can be made durable also when descriptors have run short since."""

    def sync(self) -> None: ...

    def close(self) -> None:
        """Idempotent."""
        ...


class Lock(Protocol):
    @property
    def path(self) -> str: ...

    def release(self) -> None:
        """Idempotent."""
        ...


class Disk(Protocol):
    """Files and directories by path. Every failure is a `DiskError`; a missing path is `FileMissingError`.

    When the process has no file descriptor left, whoever was given to `when_short` is asked to close something, and
    the work is tried again as long as that helps; all but `open` then wait a while, unless on an event loop.
    """

    def when_short(self, make_room: Callable[[], bool]) -> None:
        """Ask this method for room when descriptors are short; it says whether it closed something. Kept weakly."""
        ...

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. With `create`, a missing file is made (durable after `sync_dir`)."""
        ...

    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...

    def listdir(self, path: str) -> list[str]:
        """Names, sorted."""
        ...

    def makedirs(self, path: str) -> None:
        """Like `mkdir -p`: an existing directory is fine. Not durable until the parents are synced."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces an existing file. Durable after `sync_dir` of both parents."""
        ...

    def remove(self, path: str) -> None: ...
    def rmtree(self, path: str) -> None: ...
    def free_bytes(self, path: str) -> int: ...
    def total_bytes(self, path: str) -> int: ...
    def mtime_ms(self, path: str) -> int: ...
    def set_mtime_ms(self, path: str, mtime_ms: int) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable: names created, renamed or removed in it."""
        ...

    def open_dir(self, path: str) -> HeldDirectory:
        """For several changes of names that `sync` makes durable, without the need of a descriptor in between."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Write `path + '.tmp'`, sync, rename, sync the directory: after a crash either the old or the new content."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the exclusive lock file `path`, or raise `DirectoryLockedError` saying which process holds it."""
        ...


class Listener(Protocol):
    @property
    def addresses(self) -> list[tuple[str, int]]:
        """(host, port) of each listening socket, with the real port when 0 was asked for."""
        ...

    def close(self) -> None:
        """Stop accepting. Connections that are open stay open."""
        ...

    async def wait_closed(self) -> None:
        """Return once the listening sockets are gone. Does not wait for open connections."""
        ...


class Network(Protocol):
    """asyncio-shaped: what is built on it is ordinary `asyncio.Protocol` / `BufferedProtocol` code."""

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int,
        *,
        ssl: Callable[[], ssl_module.SSLContext] | None = None,
        backlog: int = 128,
        handshake_timeout_s: float = 10.0,
    ) -> Listener:
        """Listen on every address `host` has (None or "": all interfaces, IPv4 and IPv6), all on one port.

        `ssl` is asked for each connection, so that new ones may have other certificates than those that are open.
        """
        ...

    async def connect(
        self,
        protocol_factory: Callable[[], ProtocolT],
        host: str,
        port: int,
        *,
        ssl: ssl_module.SSLContext | None = None,
        server_hostname: str | None = None,
        timeout_s: float,
    ) -> tuple[asyncio.Transport, ProtocolT]:
        """Connect, TLS handshake included, within `timeout_s`; otherwise `ConnectFailedError`."""
        ...


class WorkerPool(Protocol):
    """Threads that take blocking work in the order it was given; with one thread it is also done in that order."""

    def submit(self, fn: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Call from the loop. Raises `Overloaded` when too much is waiting. Cancelling does not stop the work."""
        ...

    async def close(self) -> None:
        """Finish what was submitted, then end the threads. Idempotent."""
        ...


class Workers(Protocol):
    """Where blocking work goes."""

    def offload(self, fn: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]: ...

    def pool(self, name: str, threads: int, *, queued_max: int = 10_000) -> WorkerPool:
        """A pool of its own; threads start when the first work comes."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True, frozen=True)
class Runtime:
    """All of reality that Headrace uses, to be passed in. The real `rng` is the system's: fit for secrets."""

    clock: Clock
    rng: random.Random
    disk: Disk
    network: Network
    workers: Workers
    #: How many files and connections may be open at once beside those that already were; None: any number.
    descriptors: int | None = None
    #: The seconds of CPU that the calling thread has had, to tell what costs much. In virtual time nothing does.
    cpu: Callable[[], float] = float

    def uuid(self) -> bytes:
        """A random (version 4) id that Kafka's own tools accept: none of the reserved, no leading dash in base64."""
        for _ in range(_UUID_TRIES_MAX):
            raw = bytearray(self.rng.randbytes(16))
            raw[6] = raw[6] & 0x0F | 0x40
            raw[8] = raw[8] & 0x3F | 0x80
            value = bytes(raw)
            if value not in _RESERVED_UUIDS and not base64.urlsafe_b64encode(value).startswith(b"-"):
                return value
        raise AssertionError(f"{_UUID_TRIES_MAX} random ids in a row were unusable: the random source is broken")

    def offload(self, fn: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run blocking work off the loop: real, on a disk thread; simulated, inline after a virtual delay."""
        return self.workers.offload(fn, *args)

    async def close(self) -> None:
        """End the threads, after the work they have."""
        await self.workers.close()
