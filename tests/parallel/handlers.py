"""Handlers that run in other processes: they have to be importable there. Each writes a line per record."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from typing import Any

from headrace.parallel.errors import Reject


@dataclass
class Writer:
    """Appends a line per record, in one write, which the system keeps whole: a killed process loses none."""

    path: str
    wait_s: float = 0.0
    crashes_on: bytes | None = None
    fails_on: bytes | None = None

    def __call__(self, record: Any) -> None:
        if record.value == self.crashes_on:
            os._exit(9)
        if self.wait_s:
            time.sleep(random.random() * self.wait_s)
        if record.value == self.fails_on:
            raise ValueError(f"{record.value!r} cannot be handled")
        line = f"{record.partition} {record.offset} {(record.key or b'-').decode()} {os.getpid()}\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def lines(path: str) -> list[tuple[int, int, str, int]]:
    """(partition, offset, key, process) of what was handled so far, in order."""
    try:
        with open(path) as file:
            text = file.read()
    except FileNotFoundError:
        return []
    found = [line.split() for line in text.splitlines() if line]
    return [(int(p), int(o), key, int(pid)) for p, o, key, pid in found]


def crash_on_first(record: Any) -> None:
    """As native code that crashes does; all other records take a little."""
    if record.offset == 0:
        os._exit(3)
    time.sleep(0.05)


class NotHere:
    """A handler that only the process that made it can load."""

    def __call__(self, record: Any) -> None:
        raise AssertionError("it is never called")

    def __reduce__(self) -> Any:
        return _load_not_here, (os.getpid(),)


def _load_not_here(process: int) -> NotHere:
    if os.getpid() != process:
        os._exit(7)
    return NotHere()


class Choosy(Reject):
    """An exception that cannot be unpickled: it wants two arguments, and keeps one."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def reject_choosily(record: Any) -> None:
    raise Choosy("no", "!")


class OddError(Exception):
    """Another that cannot be unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} is odd, {second}")


def fail_oddly(record: Any) -> None:
    raise OddError("one", "other")
