"""A registry on a thread with its own event loop, beside whatever else the process does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping

from headrace.config import RawValue
from headrace.registry.server import RegistryServer

LEADER_S_MAX = 60.0
"""How long to wait at the start until it is decided which instance writes."""


@contextlib.contextmanager
def running_registry(settings: Mapping[str, RawValue], *, in_memory: bool = False) -> Iterator[RegistryServer]:
    """Start a registry, and stop it at the end. What it gives may be looked at from any thread."""
    ready, stop = threading.Event(), threading.Event()
    started: list[RegistryServer] = []
    failed: list[BaseException] = []

    async def main() -> None:
        server = RegistryServer(settings, in_memory=in_memory)
        try:
            await server.start()
            await server.wait_for_leader(LEADER_S_MAX)
            started.append(server)
            ready.set()
            await asyncio.get_running_loop().run_in_executor(None, stop.wait)
        finally:
            await server.stop()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked for the registry
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="headrace-registry")
    thread.start()
    ready.wait()
    try:
        if failed:
            raise failed[0]
        yield started[0]
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]
