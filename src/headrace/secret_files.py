"""Files that only their owner may read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def write_secret(path: Path, text: str) -> Path:
    """A file that only its owner can read, at any moment."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    beside.replace(path)
    return path


def append_privately(path: Path) -> BinaryIO:
    """Open a file, such as a log, to write on at its end; if it is new, only its owner can read it."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))
