"""The store in a directory: processes that are killed or stand still, changes that are torn, a file that grows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.waiting import DEADLINE_S

from headrace.cluster.store.directory_session import DirectorySession
from headrace.cluster.store.node_store import NodeStore
from headrace.cluster.store.session import Create, Write
from headrace.runtime import real_runtime

from .store_homes import member

_MEMBER = """
import asyncio, sys
from headrace.cluster.store import StoreMember
from headrace.cluster.store.directory_session import DirectorySession
from headrace.cluster.store.node_store import NodeStore
from headrace.runtime import real_runtime

async def main():
    runtime = real_runtime()
    session = lambda: DirectorySession(runtime, sys.argv[1], timeout_s=float(sys.argv[2]))
    store = NodeStore(runtime, session, timeout_s=30.0, where="the store")
    await store.open("a-cluster")
    await store.register(StoreMember(2, bytes(16), "localhost", 1))
    await store.elect(StoreMember(2, bytes(16), "localhost", 1))
    print("registered", flush=True)
    await store.lost()
    print("lost", flush=True)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def beside_a_process(timeout_s: float) -> AsyncIterator[tuple[NodeStore, subprocess.Popen[str]]]:
    """A store of ours, and a process that is registered as broker 2 and is the controller."""
    with tempfile.TemporaryDirectory(prefix="headrace-store-") as directory:
        runtime = real_runtime()
        store = NodeStore(
            runtime,
            lambda: DirectorySession(runtime, directory, timeout_s=timeout_s),
            timeout_s=30.0,
            where="the store",
        )
        await store.open("a-cluster")
        command = [sys.executable, "-c", _MEMBER, directory, str(timeout_s)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                line = await runtime.offload(process.stdout.readline)
                assert line == "registered\n"
                yield store, process
            finally:
                process.kill()
        await store.close()
        await runtime.close()


@pytest.mark.slow
def test_a_process_that_is_killed_is_noticed_and_its_seat_taken() -> None:
    async def main() -> None:
        async with beside_a_process(600.0) as (store, process):
            seat = await store.seat()
            assert seat is not None
            assert list(await store.members()) == [2]
            os.kill(process.pid, signal.SIGKILL)
            # Far sooner than its session would expire.
            assert await asyncio.wait_for(store.seat(seat), DEADLINE_S) is None
            assert await asyncio.wait_for(store.members({2: seat.member}), DEADLINE_S) == {}
            epoch = await store.elect(member(1))
            assert epoch is not None
            assert epoch > seat.epoch

    asyncio.run(main())


@pytest.mark.slow
def test_a_process_that_stands_still_loses_its_session_and_learns_of_it() -> None:
    async def main() -> None:
        async with beside_a_process(4.0) as (store, process):
            seat = await store.seat()
            os.kill(process.pid, signal.SIGSTOP)
            assert await asyncio.wait_for(store.seat(seat), DEADLINE_S) is None
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout is not None
            runtime = real_runtime()
            assert await asyncio.wait_for(runtime.offload(process.stdout.readline), DEADLINE_S) == "lost\n"
            await runtime.close()

    asyncio.run(main())


def test_a_directory_whose_last_change_was_torn_goes_on_before_it() -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-store-") as directory:

        async def main() -> None:
            runtime = real_runtime()
            for number in range(3):
                session = DirectorySession(runtime, directory, timeout_s=30.0)
                await session.start()
                await session.apply([Create(f"/{number}", b"x" * 100)])
                assert await session.children("/") == [str(n) for n in range(number + 1)]
                await session.close()
                with (Path(directory) / "changes.0").open("ab") as file:
                    file.write(b"\x00\x00\x00\x50half of a cha")
            await runtime.close()

        asyncio.run(main())


def test_a_directory_is_rewritten_when_it_has_grown() -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-store-") as directory:

        async def main() -> None:
            runtime = real_runtime()
            one = DirectorySession(runtime, directory, timeout_s=30.0, rewrite_after_bytes=20_000)
            two = DirectorySession(runtime, directory, timeout_s=30.0, rewrite_after_bytes=20_000)
            await one.start()
            await two.start()
            await one.apply([Create("/mine", b"1", is_ephemeral=True), Create("/all", b"")])
            fired = asyncio.Event()
            assert await two.get("/all", fired.set) == (b"", 0)
            for number in range(100):
                await one.apply([Write("/all", b"%d" % number * 500)])
            await asyncio.wait_for(fired.wait(), DEADLINE_S)
            assert await two.get("/all") == (b"99" * 500, 100)
            names = sorted(name for name in os.listdir(directory) if name.startswith("changes."))
            assert len(names) == 1
            assert names != ["changes.0"]
            await one.close()
            assert await two.get("/mine") is None
            await two.close()
            await runtime.close()

        asyncio.run(main())
