"""What the operating system offers, chosen once when this is loaded: Linux's calls, and a portable way beside each.

`HEADRACE_PORTABLE=1` takes the portable ways on Linux too, so that tests run what other systems would. What is only
there on macOS (`F_FULLFSYNC`, `renamex_np`, its clock) is taken on macOS alone. Other modules ask nothing of the
platform by themselves.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import select
import selectors
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from headrace.runtime.interface import Buffer

IS_MACOS: Final[bool] = sys.platform.startswith("darwin")
PORTABLE: Final[bool] = not sys.platform.startswith("linux") or os.environ.get("HEADRACE_PORTABLE", "") not in ("", "0")
"""Whether nothing is used that only Linux has."""

HAS_EPOLL: Final = not PORTABLE and hasattr(select, "epoll")
"""epoll's descriptor can be waited for in turn, and a socket can be in it without being waited for."""
RWF_NOWAIT: Final[int] = 0 if PORTABLE else getattr(os, "RWF_NOWAIT", 0)
"""Read only what is in memory. 0 where the system cannot: then every read of a file is a disk thread's."""
_IOV_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024) if "SC_IOV_MAX" in os.sysconf_names else 16


def client_selector() -> selectors.BaseSelector:
    """For the few sockets of a client. poll() has nothing that a child would share with its parent after a fork."""
    if HAS_EPOLL:
        return selectors.EpollSelector()
    return selectors.PollSelector() if hasattr(selectors, "PollSelector") else selectors.SelectSelector()


# --- files ------------------------------------------------------------------------------------------------------------


def _preadv(number: int, buffer: bytearray | memoryview, position: int) -> int:
    return os.preadv(number, (buffer,), position)


def _pread_into(number: int, buffer: bytearray | memoryview, position: int) -> int:
    data = os.pread(number, len(buffer), position)
    buffer[: len(data)] = data
    return len(data)


def _pwritev(number: int, parts: Sequence[Buffer], position: int) -> int:
    return os.pwritev(number, parts if len(parts) <= _IOV_MAX else parts[:_IOV_MAX], position)


def _pwrite_joined(number: int, parts: Sequence[Buffer], position: int) -> int:
    return os.pwrite(number, b"".join(parts[:_IOV_MAX]), position)


_HAS_VECTORS: Final = not PORTABLE and hasattr(os, "preadv") and hasattr(os, "pwritev")
read_into: Final[Callable[[int, bytearray | memoryview, int], int]] = _preadv if _HAS_VECTORS else _pread_into
"""Read once from a position into a buffer (descriptor, buffer, position); how many bytes came."""
write_parts: Final[Callable[[int, Sequence[Buffer], int], int]] = _pwritev if _HAS_VECTORS else _pwrite_joined
"""Write once what begins `parts` at a position (descriptor, parts, position); how many bytes went."""


def _full_sync(number: int) -> None:
    """macOS's fsync leaves the bytes in the drive's own memory; this has them written (Java's `force` does so too)."""
    try:
        fcntl.fcntl(number, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined, unused-ignore]  # macOS only
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL):
            raise
        os.fsync(number)  # this file system has no other, as one of the network


def _sync(number: int) -> None:
    os.fsync(number)


def _sync_data(number: int) -> None:
    os.fdatasync(number)


sync_file: Final[Callable[[int], None]] = _full_sync if IS_MACOS and hasattr(fcntl, "F_FULLFSYNC") else _sync
"""Wait until a file, or a directory, is on the disk with all that belongs to it."""
sync_data: Final[Callable[[int], None]] = sync_file if PORTABLE or not hasattr(os, "fdatasync") else _sync_data
"""Wait until a file's bytes, and its length, are on the disk."""


def lock_alone(number: int) -> None:
    """Lock an open file against other processes, or raise BlockingIOError (PermissionError on some systems).

    The POSIX lock is what Apache Kafka's broker takes. Linux's flock is another lock, which a second descriptor that
    this process closes does not drop. On systems of BSD's family both are of one kind, so that one process would wait
    for itself.
    """
    if not PORTABLE:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2  # of Linux's renameat2; macOS's RENAME_SWAP is the same number


def exchange(path: str, other: str) -> None:
    """Swap two directories in one step. There is no portable way: ENOTSUP where the system has no such call."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(path), os.fsencode(other)
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(*names, _RENAME_EXCHANGE)
    else:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), path)
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)


# --- clocks -----------------------------------------------------------------------------------------------------------


def _boottime() -> Callable[[], float]:
    name = "CLOCK_MONOTONIC" if IS_MACOS else "" if PORTABLE else "CLOCK_BOOTTIME"
    number = getattr(time, name, None)
    try:
        if number is not None:
            time.clock_gettime(number)
            return functools.partial(time.clock_gettime, number)
    except OSError:
        pass  # as in some sandboxes
    return time.monotonic


boottime: Final = _boottime()
"""Seconds, those in which the machine was asleep included; the monotonic clock has to do where there is no such one.

On Linux that is CLOCK_BOOTTIME. On macOS it is CLOCK_MONOTONIC, while Python's `time.monotonic` stops there in sleep.
"""


# --- what the system says of itself -----------------------------------------------------------------------------------

_HAS_PROC: Final = not PORTABLE and os.path.isdir("/proc/self/fd")
HAS_MEMORY_FILES: Final = _HAS_PROC and hasattr(os, "memfd_create")
"""Whether a file can be made that is on no disk, and has a name while it is open."""


def open_descriptor_count() -> int:
    """How many descriptors this process has; a guess where the system does not say."""
    for directory in ("/proc/self/fd", "/dev/fd") if _HAS_PROC else ("/dev/fd",):
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return 3


def first_port_of_connections(source: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> int:
    """The lowest port that the system gives to outgoing connections by itself; 0 where that is not known."""
    try:
        return 0 if PORTABLE else int(source.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
