"""A console beside brokers that a command starts: a process of its own, so that it costs the broker nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.config import ConfigError

DEFAULT_PORT = 8080
_END_S = 5.0
_NEEDED = ("starlette", "uvicorn")


def check_installed() -> None:
    """Say what is missing before anything is started."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError({"--console": f"--console needs {', '.join(missing)}: pip install 'headrace[console]'"})


def command(
    address: str,
    port: int,
    *,
    allow_changes: bool,
    with_parent: bool,
    audit_logs: Iterable[Path] = (),
    metrics: Iterable[str] = (),
) -> list[str]:
    """The command line of a console for brokers at that address. `audit_logs`: what they write down; `metrics`: where
    their figures are."""
    options = ["--port", str(port)]
    for url in metrics:
        options += ["--metrics", url]
    for path in audit_logs:
        options += ["--broker-audit", str(path)]
    if allow_changes:
        options.append("--allow-changes")
    if with_parent:
        options.append("--with-parent")
    return [sys.executable, "-m", "headrace.cli", "console", "-b", address, *options]


@contextlib.contextmanager
def console_beside(
    address: str | None,
    port: int | None,
    *,
    allow_changes: bool,
    audit_logs: Iterable[Path] = (),
    metrics: Iterable[str] = (),
) -> Iterator[None]:
    """A console for as long as this lasts; it says itself where it is. It ends with this process, however that ends."""
    if port is None or address is None:
        yield
        return
    # Here, so that a broker without a console starts without it.
    import subprocess

    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_BOOTSTRAP"}
    # A Ctrl-C in this terminal is for the broker, which ends the console when it has stopped.
    process = subprocess.Popen(
        command(address, port, allow_changes=allow_changes, with_parent=True, audit_logs=audit_logs, metrics=metrics),
        stdin=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_with_parent(parent: int, look_s: float = 1.0) -> None:
    """End this process when the one that started it is gone; for a thread."""
    while os.getppid() == parent:
        time.sleep(look_s)
    os._exit(0)
