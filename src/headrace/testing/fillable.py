"""`headrace start` on a disk that can be made full: as long as the file DIR.full exists, nothing more fits into DIR.

    python -m headrace.testing.fillable start --dir DIR …

Only the log directory is full; what is elsewhere, as the metadata that brokers share, is on another disk.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any


def marker_of(directory: str) -> str:
    """The file that says that a directory's disk is full."""
    return f"{os.path.abspath(directory)}.full"


def make_fillable(directory: str) -> None:
    """Let this process find no more room in a directory while its marker is there."""
    marker, inside = marker_of(directory), os.path.abspath(directory) + os.sep
    files: set[tuple[int, int]] = set()
    open_file = os.open

    def opening(path: Any, *arguments: Any, **options: Any) -> int:
        number = open_file(path, *arguments, **options)
        if os.path.abspath(os.fsdecode(path)).startswith(inside):
            files.add(_identity(number))
        return number

    def refusing(write: Callable[..., int]) -> Callable[..., int]:
        def checked(number: int, *arguments: Any) -> int:
            if os.path.exists(marker) and _identity(number) in files:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(number, *arguments)

        return checked

    os.open = opening
    for name in {"write", "pwrite", "pwritev"} & set(dir(os)):
        setattr(os, name, refusing(getattr(os, name)))


def _identity(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino


def main(arguments: Sequence[str]) -> int:
    make_fillable(arguments[arguments.index("--dir") + 1])
    from headrace.cli.start import start

    return start(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
