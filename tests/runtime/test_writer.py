"""The writer of a log directory: inline when idle, in order always, syncs shared."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.waiting import becomes

from headrace.runtime import BUSY, DirectoryWriter, DiskError, OverloadedError, real_runtime
from headrace.runtime.simulated import DiskFault, run_simulation


def test_idle_writer_works_inline_and_makes_no_thread(world):
    async def main():
        before = threading.active_count()
        writer = DirectoryWriter(world.runtime, world.root)
        file = world.runtime.disk.open(f"{world.root}/a", create=True)
        assert not writer.busy
        assert writer.try_inline(file.append, [b"abc"]) == 0
        assert writer.try_inline(file.append, [b"d"]) == 3
        assert threading.active_count() == before
        await writer.close()
        file.close()

    world.run(main())


def test_inline_errors_reach_the_caller(world):
    async def main():
        writer = DirectoryWriter(world.runtime, world.root)
        file = world.runtime.disk.open(f"{world.root}/a", create=True)
        file.close()
        with pytest.raises(DiskError):
            writer.try_inline(file.append, [b"abc"])
        with pytest.raises(DiskError):
            await writer.submit(file.append, [b"abc"])
        await writer.close()

    world.run(main())


def test_while_a_sync_runs_work_is_submitted_and_keeps_its_order(world):
    async def main():
        writer = DirectoryWriter(world.runtime, world.root)
        file = world.runtime.disk.open(f"{world.root}/a", create=True)
        assert writer.try_inline(file.append, [b"0"]) == 0
        synced = writer.sync([file])
        assert writer.busy
        assert writer.try_inline(file.append, [b"never"]) is BUSY
        positions = await asyncio.gather(*[writer.submit(file.append, [b"%d" % i]) for i in range(1, 10)])
        assert positions == list(range(1, 10))
        await synced
        assert file.read(0, 99) == b"0123456789"
        await writer.close()
        file.close()

    world.run(main())


def test_waiters_of_submitted_work_go_before_later_inline_work(world):
    """Someone who tries in every turn of the loop gets in only after those who wait have been woken."""

    async def main():
        writer = DirectoryWriter(world.runtime, world.root)
        file = world.runtime.disk.open(f"{world.root}/a", create=True)
        loop = asyncio.get_running_loop()
        order: list[int] = []
        overtaker = loop.create_future()

        async def wait_for(work):
            order.append(await work)

        def try_every_turn():
            position = writer.try_inline(file.append, [b"y"])
            if position is BUSY:
                loop.call_soon(try_every_turn)
            else:
                order.append(position)
                overtaker.set_result(None)

        waiters = [asyncio.ensure_future(wait_for(writer.submit(file.append, [b"x"]))) for _ in range(3)]
        loop.call_soon(try_every_turn)
        async with asyncio.timeout(60):
            await asyncio.gather(overtaker, *waiters)
        assert (sorted(order[:3]), order[3]) == ([0, 1, 2], 3)
        await writer.close()
        file.close()

    world.run(main())


def test_the_writer_becomes_idle_again(world):
    async def main():
        writer = DirectoryWriter(world.runtime, world.root)
        file = world.runtime.disk.open(f"{world.root}/a", create=True)
        await writer.sync([file])
        await writer.submit(file.append, [b"x"])
        await becomes(lambda: not writer.busy, every_s=0)
        assert writer.try_inline(file.append, [b"y"]) == 1
        await writer.close()
        file.close()

    world.run(main())


class CountingFile:
    """Stands for a File. With a gate, its sync takes until the gate is open."""

    def __init__(self, name: str, gate: threading.Event | None = None):
        self.path = name
        self.gate = gate
        self.syncs = 0
        self.error: DiskError | None = None

    def sync(self) -> None:
        self.syncs += 1
        if self.gate is not None:
            self.gate.wait(60)
        if self.error is not None:
            raise self.error


def test_syncs_that_come_during_a_sync_share_the_next_one(world):
    async def main():
        writer = DirectoryWriter(world.runtime, world.root)
        # The simulated disk takes its (virtual) time by itself, and has no thread that could wait.
        gate = threading.Event() if world.name == "real" else None
        file = CountingFile("a", gate)
        first = writer.sync([file])
        await asyncio.sleep(0)  # the round has begun: what comes now is for the next
        later = [writer.sync([file]) for _ in range(50)]
        assert writer.sync([]).done()
        assert not first.done()
        if gate is not None:
            gate.set()
        await asyncio.gather(first, *later)
        assert file.syncs == 2
        await writer.close()

    world.run(main())


def test_syncs_asked_for_in_one_turn_share_one_round(world):
    async def main():
        writer = DirectoryWriter(world.runtime, world.root)
        files = [CountingFile(str(i)) for i in range(20)]
        await asyncio.gather(*[writer.sync([files[i % 20], files[(i + 1) % 20]]) for i in range(100)])
        assert [file.syncs for file in files] == [1] * 20
        await writer.close()

    world.run(main())


def test_a_failed_sync_reaches_those_who_asked_for_that_file_only(world):
    async def main():
        writer = DirectoryWriter(world.runtime, world.root)
        good, bad = CountingFile("good"), CountingFile("bad")
        bad.error = DiskError("sync", "bad", 5)
        outcomes = await asyncio.gather(
            writer.sync([good]), writer.sync([good, bad]), writer.sync([bad]), return_exceptions=True
        )
        assert outcomes == [None, bad.error, bad.error]
        assert (good.syncs, bad.syncs) == (1, 1)
        await writer.close()

    world.run(main())


def test_close_finishes_what_was_asked_for_and_refuses_more(world):
    async def main():
        writer = DirectoryWriter(world.runtime, world.root)
        file = world.runtime.disk.open(f"{world.root}/a", create=True)
        synced = writer.sync([file])
        appended = [writer.submit(file.append, [b"x"]) for _ in range(20)]
        await writer.close()
        assert synced.done()
        assert [future.result() for future in appended] == list(range(20))
        with pytest.raises(DiskError, match="its writer is closed"):
            writer.submit(file.append, [b"y"])
        with pytest.raises(DiskError, match="its writer is closed"):
            writer.sync([file])
        assert writer.try_inline(file.append, [b"y"]) is BUSY
        await writer.close()
        file.close()

    world.run(main())


def test_the_queue_is_bounded(world):
    async def main():
        writer = DirectoryWriter(world.runtime, world.root, queued_max=5)
        file = world.runtime.disk.open(f"{world.root}/a", create=True)
        futures = [writer.submit(file.append, [b"x"]) for _ in range(5)]
        with pytest.raises(OverloadedError, match="5 pieces"):
            writer.submit(file.append, [b"x"])
        await asyncio.gather(*futures)
        assert await writer.submit(file.append, [b"x"]) == 5
        await writer.close()
        file.close()

    world.run(main())


def test_a_cancelled_waiter_does_not_stop_the_work_or_the_others(world):
    async def main():
        writer = DirectoryWriter(world.runtime, world.root)
        file = world.runtime.disk.open(f"{world.root}/a", create=True)
        first, second = writer.submit(file.append, [b"x"]), writer.submit(file.append, [b"y"])
        sync_one, sync_two = writer.sync([file]), writer.sync([file])
        first.cancel()
        sync_one.cancel()
        assert await second == 1
        await sync_two
        await writer.close()
        assert file.read(0, 9) == b"xy"
        file.close()

    world.run(main())


def test_nothing_overtakes_work_whose_waiter_was_cancelled(world):
    async def main():
        writer = DirectoryWriter(world.runtime, world.root)
        file = world.runtime.disk.open(f"{world.root}/a", create=True)
        gate = threading.Event()
        if world.name == "real":
            writer.submit(gate.wait)
        writer.submit(file.append, [b"x"]).cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert writer.try_inline(file.append, [b"y"]) is BUSY
        gate.set()
        assert await writer.submit(file.append, [b"y"]) == 1
        await writer.close()
        file.close()

    world.run(main())


def test_acknowledged_after_sync_survives_a_power_loss():
    """Appends and syncs run at random through the writer; then the power fails: nothing that was synced is missing."""

    async def main(simulation):
        host = simulation.host()
        synced: list[tuple[int, bytes]] = []

        async def produce(rng, writer, file):
            for _ in range(rng.randint(1, 30)):
                data = rng.randbytes(rng.randint(1, 3000))
                position = writer.try_inline(file.append, [data])
                if position is BUSY:
                    position = await writer.submit(file.append, [data])
                await writer.sync([file])
                synced.append((position, data))

        async def work():
            writer = DirectoryWriter(host.runtime, "/data")
            file = host.disk.open("/data/log", create=True)
            host.disk.sync_dir("/data")
            await asyncio.gather(*[produce(host.runtime.rng, writer, file) for _ in range(5)])

        future = host.start(work())
        await asyncio.wait([future], timeout=simulation.rng.uniform(0.0, 0.05))
        host.kill()
        content = host.disk.read_file("/data/log") if synced else b""
        for position, data in synced:
            assert content[position : position + len(data)] == data
        return len(synced)

    counts = [run_simulation(main, seed).value for seed in range(30)]
    assert sum(counts) > 300  # the test tests something


def test_sync_error_of_the_disk_reaches_the_asker():
    async def main(simulation):
        host = simulation.host()

        async def work():
            writer = DirectoryWriter(host.runtime, "/data")
            file = host.disk.open("/data/log", create=True)
            file.append([b"x"])
            host.disk.inject(DiskFault("sync"))
            with pytest.raises(DiskError, match="EIO"):
                await writer.sync([file])
            with pytest.raises(DiskError, match="an earlier sync of this file failed"):
                await writer.sync([file])
            await writer.close()

        await host.start(work())

    run_simulation(main, 3)


def test_a_machine_without_room_for_a_thread_keeps_nobody_waiting(monkeypatch, tmp_path):
    """Those who asked for a sync or an append are told, and all goes on when there is room again."""

    async def main():
        runtime = real_runtime()
        writer = DirectoryWriter(runtime, str(tmp_path))
        file = runtime.disk.open(str(tmp_path / "a"), create=True)
        start = threading.Thread.start

        def refuse(thread):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(OverloadedError, match="no thread can be started"):
                await writer.sync([file])
        assert not writer.busy
        with pytest.raises(OverloadedError):
            writer.submit(file.append, [b"x"])
        monkeypatch.setattr(threading.Thread, "start", start)
        await writer.submit(file.append, [b"x"])
        await writer.sync([file])
        # One thread is enough from here on.
        monkeypatch.setattr(threading.Thread, "start", refuse)
        others = [runtime.disk.open(str(tmp_path / name), create=True) for name in "bcd"]
        await writer.sync([file, *others])
        await writer.close()
        await runtime.close()
        for opened in (file, *others):
            opened.close()

    asyncio.run(main())
