"""The exit codes of every command, in one place, as `headrace --help` lists them."""

from __future__ import annotations

from enum import IntEnum


class ReaderGone(BaseException):
    """Who read our output has seen enough (`| head`). No error, and not to be caught as one."""


class Exit(IntEnum):
    """What the number says to a script."""

    OK = 0
    FAILED = 1
    """Something was refused or failed: by a broker, a disk, the network."""
    USAGE = 2
    """The command line or a configuration value is wrong; nothing was done."""
    TIMEOUT = 3
    """No answer within `--timeout`."""
    INTERRUPTED = 130
    """Ctrl-C."""
