"""What is real? Clock, random, disk, network and threads behind one small interface: the real one and the simulated."""

from headrace.runtime.descriptors import raise_limit as raise_descriptor_limit
from headrace.runtime.errors import (
    ConnectFailedError,
    DirectoryLockedError,
    DiskError,
    FileMissingError,
    ListenFailedError,
    OverloadedError,
    TransportError,
)
from headrace.runtime.interface import (
    Buffer,
    Clock,
    Disk,
    File,
    HeldDirectory,
    Listener,
    Lock,
    Network,
    Runtime,
    WorkerPool,
    Workers,
)
from headrace.runtime.real import real_runtime
from headrace.runtime.writer import BUSY, CHECK_OWNERS, Busy, DirectoryWriter, current_writer, is_on_lane

__all__ = [
    "BUSY",
    "CHECK_OWNERS",
    "Buffer",
    "Busy",
    "Clock",
    "ConnectFailedError",
    "DirectoryLockedError",
    "DirectoryWriter",
    "Disk",
    "DiskError",
    "File",
    "FileMissingError",
    "HeldDirectory",
    "ListenFailedError",
    "Listener",
    "Lock",
    "Network",
    "OverloadedError",
    "Runtime",
    "TransportError",
    "WorkerPool",
    "Workers",
    "current_writer",
    "is_on_lane",
    "raise_descriptor_limit",
    "real_runtime",
]
