"""Hosts that die and come back, and a network that delays, cuts, resets and forgets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import ssl
import subprocess
import sys

import pytest

from headrace.runtime import ConnectFailedError, ListenFailedError
from headrace.runtime.simulated import (
    CrashModel,
    HostDiedError,
    NetworkModel,
    SimulatedCrash,
    Simulation,
    SimulationFailedError,
    run_simulation,
    run_twice,
    simulated_runtime,
)

from .recorder import Recorder


async def serve(host, port: int = 9092):
    """An echo server on `host`; gives its listener and the list of its connections."""
    connections: list[Recorder] = []

    def make():
        connections.append(Recorder(echo=True))
        return connections[-1]

    listener = await host.start(host.runtime.network.listen(make, host.name, port))
    return listener, connections


async def dial(host, target: str, port: int = 9092, timeout_s: float = 5.0) -> Recorder:
    return (await host.start(host.runtime.network.connect(Recorder, target, port, timeout_s=timeout_s)))[1]


def test_a_conversation_repeats_under_a_seed_and_differs_under_another():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        await serve(b)
        clients = await asyncio.gather(*[dial(a, "b") for _ in range(5)])
        for i in range(20):
            for client in clients:
                client.transport.write(bytes([i]) * simulation.rng.randint(1, 5_000))
        sizes = simulation.rng.randint(0, 10)
        await asyncio.sleep(5)
        for client in clients:
            client.transport.close()
        return sizes, [len(client.received) for client in clients]

    hashes = {run_twice(main, seed).trace_hash for seed in range(5)}
    assert len(hashes) == 5


def test_the_stream_is_split_and_delayed_in_many_ways():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        _, connections = await serve(b)
        client = await dial(a, "b")
        pieces = []
        connections[0].data_received = lambda data: pieces.append(len(data))
        started = asyncio.get_running_loop().time()
        client.transport.write(b"x" * 10_000)
        while sum(pieces) < 10_000:
            await asyncio.sleep(0.000_1)
        return len(pieces), asyncio.get_running_loop().time() - started

    outcomes = [run_simulation(main, seed).value for seed in range(60)]
    assert {1, 2, 3} <= {count for count, _ in outcomes}
    assert max(delay for _, delay in outcomes) > 2 * min(delay for _, delay in outcomes)


def test_a_partition_holds_bytes_back_until_it_heals():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        await serve(b)
        client = await dial(a, "b")
        simulation.network.partition(["a"], ["b"])
        client.transport.write(b"hello")
        client.transport.write_eof()
        with pytest.raises(ConnectFailedError, match=r"took over 2.0 s"):
            await dial(a, "b", timeout_s=2.0)
        await asyncio.sleep(100)
        assert client.received == b""
        simulation.network.heal()
        assert await client.lost is None
        assert client.received == b"hello"

    for seed in range(10):
        run_simulation(main, seed)


def test_what_a_closed_end_had_sent_still_arrives_after_a_partition():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        _, connections = await serve(b)
        client = await dial(a, "b")
        simulation.network.partition(["a"], ["b"])
        client.transport.write(b"last words")
        client.transport.close()
        await client.lost
        await asyncio.sleep(10)
        simulation.network.heal()
        await connections[0].until(lambda: "eof" in connections[0].events)
        assert connections[0].received == b"last words"

    run_simulation(main, 1)


def test_a_one_way_partition_lets_answers_through_only():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        _, connections = await serve(b)
        client = await dial(a, "b")
        client.transport.write(b"x")
        await client.until(lambda: client.received == b"x")
        simulation.network.partition(["a"], ["b"], one_way=True)
        connections[0].transport.write(b"news")
        await client.until(lambda: client.received == b"xnews")
        client.transport.write(b"answer")
        await asyncio.sleep(10)
        assert connections[0].received == b"x"

    run_simulation(main, 1)


def test_a_reset_reaches_both_ends():
    async def main(simulation):
        a, b, c = (simulation.host(name) for name in "abc")
        _, connections = await serve(b)
        client, bystander = await dial(a, "b"), await dial(c, "b")
        assert simulation.network.reset("a", "b") == 1
        assert isinstance(await client.lost, ConnectionResetError)
        assert isinstance(await connections[0].lost, ConnectionResetError)
        client.transport.write(b"ignored")
        bystander.transport.write(b"fine")
        await bystander.until(lambda: bystander.received == b"fine")

    run_simulation(main, 1)


def test_a_half_open_connection_swallows_what_is_sent():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        _, connections = await serve(b)
        client = await dial(a, "b")
        assert simulation.network.half_open("b", "a") == 1
        assert isinstance(await connections[0].lost, ConnectionResetError)
        for _ in range(50):
            client.transport.write(b"x" * 10_000)
        await asyncio.sleep(3600)
        assert client.events == ["made", "pause"]
        client.transport.abort()
        assert await client.lost is None

    run_simulation(main, 1)


def test_a_bad_network_resets_now_and_then():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        await serve(b)
        lost = 0
        for _ in range(50):
            client = await dial(a, "b")
            client.transport.write(b"hello")
            try:
                async with asyncio.timeout(10):
                    await client.until(lambda: client.received == b"hello")  # noqa: B023 - awaited in this turn
            except TimeoutError:
                lost += isinstance(await client.lost, ConnectionResetError)
            client.transport.close()
        return lost

    assert 0 < run_simulation(main, 1, network=NetworkModel(reset_probability=0.1)).value < 50


def test_names_ports_and_tls_are_checked():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        await serve(b, 1)
        with pytest.raises(ListenFailedError, match="Address already in use"):
            await serve(b, 1)
        with pytest.raises(ListenFailedError, match="this host is 'a'"):
            await a.runtime.network.listen(Recorder, "b", 2)
        with pytest.raises(ConnectFailedError, match="Name or service not known"):
            await dial(a, "nowhere")
        with pytest.raises(ConnectFailedError, match="Connection refused"):
            await dial(a, "b", 2)
        with pytest.raises(ConnectFailedError, match="Connection refused"):
            await dial(a, "localhost", 1)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with pytest.raises(ValueError, match="TLS is not simulated"):
            await a.runtime.network.connect(Recorder, "b", 1, ssl=context, timeout_s=1)

    run_simulation(main, 1)


# Hosts


def test_a_killed_process_resets_its_connections_and_stops_between_two_steps():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        await serve(b)
        client = await dial(a, "b")
        steps = []

        async def count():
            while True:
                await asyncio.sleep(1)
                steps.append(1)

        counting = b.start(count())
        await asyncio.sleep(5.5)
        b.kill(power_loss=False)
        assert not b.alive
        assert isinstance(await client.lost, ConnectionResetError)
        with pytest.raises(HostDiedError):
            await counting
        with pytest.raises(ConnectFailedError, match="refused"):
            await dial(a, "b", timeout_s=2.0)
        await asyncio.sleep(100)
        assert len(steps) == 5
        with pytest.raises(HostDiedError, match="restart it first"):
            b.start(count())

    run_simulation(main, 1)


def test_a_connection_that_nobody_answers_is_made_when_the_way_is_free_again():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        await serve(b)
        simulation.network.partition(["a"], ["b"])
        asyncio.get_running_loop().call_later(2.5, simulation.network.heal)
        began = simulation.loop.time()
        await dial(a, "b", timeout_s=10.0)
        # A kernel asks again after one second, and after two more.
        assert 3.0 <= simulation.loop.time() - began < 4.0
        b.kill(power_loss=True)
        with pytest.raises(ConnectFailedError, match="took over"):
            await dial(a, "b", timeout_s=2.0)

    run_simulation(main, 1)


def test_timers_and_callbacks_of_a_killed_host_never_run():
    async def main(simulation):
        host = simulation.host("a")
        ran: list[str] = []

        async def set_timers():
            loop = asyncio.get_running_loop()
            loop.call_later(1, ran.append, "before")
            loop.call_later(10, ran.append, "after")

        await host.start(set_timers())
        await asyncio.sleep(5)
        host.kill(power_loss=False)
        host.restart()
        await asyncio.sleep(100)
        assert ran == ["before"]

    run_simulation(main, 1)


def test_after_a_power_loss_peers_hear_nothing_until_the_host_is_back():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        await serve(b)
        client = await dial(a, "b")
        b.kill()
        client.transport.write(b"anyone?")
        await asyncio.sleep(1000)
        assert not client.lost.done()
        b.restart()
        await serve(b)
        client.transport.write(b"hello again")
        assert isinstance(await client.lost, ConnectionResetError)
        again = await dial(a, "b")
        again.transport.write(b"x")
        await again.until(lambda: again.received == b"x")

    run_simulation(main, 1)


@pytest.mark.parametrize("had_arrived", [True, False])
def test_what_a_host_without_power_was_sent_is_sent_again_and_answered_with_a_reset_once_it_is_back(had_arrived):
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        await serve(b)
        client = await dial(a, "b")
        if had_arrived:
            client.transport.write(b"x")
            await client.until(lambda: client.received == b"x")
            b.kill()
        else:
            b.kill()
            client.transport.write(b"x")
        await asyncio.sleep(5)
        b.restart()
        simulation.network.partition(["a"], ["b"])
        await asyncio.sleep(10)
        assert not client.lost.done()
        simulation.network.heal()
        await asyncio.sleep(20)
        # What was confirmed is sent no more: nothing tells of the loss until something else is sent.
        assert client.lost.done() is not had_arrived

    run_simulation(main, 1)


@pytest.mark.parametrize("is_killed", [True, False])
def test_failed_disk_work_that_nobody_looked_at_is_a_mistake_unless_its_host_died(is_killed):
    def fail() -> None:
        raise ValueError("no")

    async def main(simulation):
        host = simulation.host("a")

        async def ask() -> None:
            host.runtime.offload(fail)
            await asyncio.sleep(10)

        asked = host.start(ask())
        await asyncio.sleep(5)
        if is_killed:
            host.kill()
        with contextlib.suppress(HostDiedError):
            await asked
        gc.collect()  # the collector is off meanwhile, and what failed is part of a cycle

    with contextlib.nullcontext() if is_killed else pytest.raises(SimulationFailedError, match="never retrieved"):
        run_simulation(main, seed=1)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_failed_task_that_nobody_looked_at_is_a_mistake_unless_its_host_died(is_killed):
    async def main(simulation):
        host = simulation.host("a")

        async def fail() -> None:
            raise ValueError("no")

        async def begin() -> None:
            simulation.kept = asyncio.get_running_loop().create_task(fail())
            await asyncio.sleep(10)

        begun = host.start(begin())
        await asyncio.sleep(5)
        if is_killed:
            host.kill()
        with contextlib.suppress(HostDiedError):
            await begun

    with contextlib.nullcontext() if is_killed else pytest.raises(SimulationFailedError, match="never retrieved"):
        run_simulation(main, seed=1)


def test_clean_up_code_of_a_killed_host_reaches_nobody():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        _, connections = await serve(b)

        async def careful():
            _, client = await a.runtime.network.connect(Recorder, "b", 9092, timeout_s=5)
            file = a.disk.open("/data/log", create=True)
            a.disk.sync_dir("/data")
            try:
                await asyncio.sleep(1000)
            finally:
                client.transport.write(b"goodbye")
                client.transport.close()
                file.append([b"never"])

        a.start(careful())
        await asyncio.sleep(10)
        a.kill()
        await asyncio.sleep(10)
        assert connections[0].received == b""
        assert a.disk.read_file("/data/log") == b""

    run_twice(main, 1)


def test_an_asynchronous_generator_of_a_killed_host_ends_with_it():
    async def main(simulation):
        host = simulation.host("a")

        @contextlib.asynccontextmanager
        async def entered_slowly():
            await asyncio.sleep(10)
            yield

        async def enter() -> None:
            async with entered_slowly():
                await asyncio.sleep(10)

        for wait_s in (5, 15):
            begun = host.start(enter())
            await asyncio.sleep(wait_s)
            host.kill()
            with contextlib.suppress(HostDiedError):
                await begun
            host.restart()
            await asyncio.sleep(1)

    run_simulation(main, seed=1)


def test_a_host_dies_at_the_chosen_disk_operation_and_restarts_on_what_is_left():
    async def main(simulation):
        host = simulation.host("a")

        async def write():
            file = host.runtime.disk.open("/data/log", create=True)
            host.runtime.disk.sync_dir("/data")
            for i in range(100):
                await host.runtime.offload(file.append, [bytes([i]) * 10])
                await host.runtime.offload(file.sync)

        host.disk.crash_after(2 + 21)
        with pytest.raises(HostDiedError):
            await host.start(write())
        runtime = host.restart()
        content = runtime.disk.read_file("/data/log")
        assert content[:100] == b"".join(bytes([i]) * 10 for i in range(10))
        assert len(content) <= 110

    for seed in range(10):
        run_twice(main, seed)


def test_a_crash_inside_a_task_of_the_host_ends_that_task():
    async def main(simulation):
        host = simulation.host("a")

        async def inner():
            host.runtime.disk.open("/data/a", create=True)

        async def outer():
            await asyncio.sleep(1)
            await asyncio.create_task(inner())

        host.disk.crash_after(0)
        with pytest.raises(HostDiedError):
            await host.start(outer())
        await asyncio.sleep(10)

    run_simulation(main, 1)


def test_results_and_errors_of_started_work_come_back():
    async def main(simulation):
        host = simulation.host("a")

        async def fail():
            raise KeyError("x")

        async def cancelled():
            raise asyncio.CancelledError

        assert await host.start(asyncio.sleep(1, "done")) == "done"
        with pytest.raises(KeyError):
            await host.start(fail())
        with pytest.raises(asyncio.CancelledError):
            await host.start(cancelled())

    run_simulation(main, 1)


def test_hosts_have_clocks_disks_and_randomness_of_their_own():
    async def main(simulation):
        a, b = simulation.host("a"), simulation.host("b")
        assert simulation.host("a") is a
        a.clock.jump(60_000)
        assert a.runtime.clock.now_ms() - b.runtime.clock.now_ms() == 60_000
        a.disk.open("/data/only-here", create=True)
        assert not b.disk.exists("/data/only-here")
        first = a.runtime.uuid()
        assert first != b.runtime.uuid()
        a.restart()
        assert a.disk.exists("/data/only-here")
        assert a.runtime.uuid() != first
        assert a.runtime.clock.now_ms() - b.runtime.clock.now_ms() == 60_000

    run_simulation(main, 1)


@pytest.mark.slow
def test_a_chain_of_kills_and_restarts_repeats():
    async def main(simulation):
        hosts = [simulation.host(f"broker-{i}") for i in range(3)]
        rng = simulation.rng

        async def life(host, peers):
            await host.runtime.network.listen(lambda: Recorder(echo=True), None, 9092)
            file = host.runtime.disk.open("/data/log", create=True)
            while True:
                await asyncio.sleep(host.runtime.rng.uniform(0.01, 0.1))
                await host.runtime.offload(file.append, [host.runtime.rng.randbytes(500)])
                if host.runtime.rng.random() < 0.3:
                    await host.runtime.offload(file.sync)
                try:
                    peer = host.runtime.rng.choice(peers)
                    transport, _ = await host.runtime.network.connect(Recorder, peer, 9092, timeout_s=1)
                    transport.write(b"x" * 1_000)
                    await asyncio.sleep(0.01)
                    transport.close()
                except ConnectFailedError:
                    pass

        def boot(host):
            host.start(life(host, [other.name for other in hosts if other is not host]))

        for host in hosts:
            boot(host)
        for _ in range(6):
            await asyncio.sleep(rng.uniform(0.1, 1))
            victim = rng.choice(hosts)
            victim.kill(power_loss=rng.random() < 0.5, model=rng.choice(list(CrashModel)))
            await asyncio.sleep(rng.uniform(0.0, 1))
            victim.restart()
            boot(victim)
            if rng.random() < 0.3:
                simulation.network.partition([victim.name], [rng.choice(hosts).name])
            else:
                simulation.network.heal()
        return [host.disk.size("/data/log") if host.disk.exists("/data/log") else 0 for host in hosts]

    results = [run_twice(main, seed) for seed in range(3)]
    assert len({result.trace_hash for result in results}) == 3


@pytest.mark.slow
def test_a_seed_takes_the_same_course_in_another_process():
    """Not even the hash seed of strings, which differs from process to process, may show."""
    script = (
        "import asyncio\n"
        "from headrace.runtime.simulated import run_simulation\n"
        "async def main(simulation):\n"
        "    host = simulation.host('a')\n"
        "    await host.runtime.network.listen(asyncio.Protocol, None, 1)\n"
        "    async def work(i):\n"
        "        file = host.disk.open(f'/data/{i}', create=True)\n"
        "        await host.runtime.offload(file.append, [b'x' * i])\n"
        "        transport, _ = await host.runtime.network.connect(asyncio.Protocol, 'a', 1, timeout_s=9)\n"
        "        transport.write(b'y' * 5000)\n"
        "        await asyncio.sleep(1)\n"
        "    await asyncio.gather(*[host.start(work(i)) for i in range(20)])\n"
        "    host.kill()\n"
        "    return host.disk.listdir('/data')\n"
        "result = run_simulation(main, 11)\n"
        "print(result.trace_hash, result.value)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_a_lone_runtime_serves_code_that_needs_no_loop():
    runtime = simulated_runtime(3)
    runtime.disk.replace_file("/data/meta.properties", b"x")
    assert runtime.disk.read_file("/data/meta.properties") == b"x"
    assert runtime.uuid() == simulated_runtime(3).uuid()
    assert runtime.clock.now_ms() == simulated_runtime(4).clock.now_ms()


def test_a_simulated_crash_cannot_be_handled_by_accident():
    assert not issubclass(SimulatedCrash, Exception)


def test_what_went_wrong_first_is_told_though_others_do_not_end_after_it() -> None:
    async def never_end() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1.0)

    async def main(simulation: Simulation) -> None:
        simulation.host("one").start(never_end())
        await asyncio.sleep(2.0)
        raise LookupError("the first")

    with pytest.raises(LookupError, match="the first"):
        run_simulation(main, 1)
