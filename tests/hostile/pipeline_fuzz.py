"""`python -m tests.hostile.pipeline_fuzz [--cpu-seconds 60] [--seed 1]`: mutated requests through a whole broker.

Requests as clients sent them (tests/reference/behaviour), and made-up ones of every API key and version that no
recording has, are mutated and sent to a simulated broker, on connections that end at any moment. Time is virtual, so
what waits for a session to end takes no longer than the rest. Beside them an innocent client writes, reads and commits.
A finding is a traceback or a defect in the broker's log, a step that keeps the event loop for long, an innocent that is
not served, a lost record of it, or memory that is not given back when all connections are gone. What was tried until
now is said every half a minute, and when Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import importlib.util
import json
import logging
import random
import struct
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from crc32c import crc32c
from tests.broker import raw
from tests.broker.played import Transport
from tests.broker.sim import Client, SimulatedBroker
from tests.groups.recordings import BEHAVIOUR
from tests.protocol.kio_pairs import kio_class, pair

from headrace.broker.requests.dispatch import load_handlers
from headrace.broker.server.acceptor import Acceptor
from headrace.broker.server.connection import ServerConnection
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.runtime.simulated import Simulation, run_simulation

from .mutating import mutated

RETRIED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
# Who may send these may take a broker away (another one registers in its place, and it is fenced).
TAKES_AWAY = frozenset(
    (
        ApiKey.ALTER_PARTITION,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    )
)
TAKING_AWAY_EVERY = 6
CPU_S_MAX = 1.0
INNOCENT_EVERY = 50
INPUTS_PER_BROKER = 1_000
TOLD_EVERY_S = 30.0
NAMES = {"t": "t", "t2": "u", "u": "u", "g": "g", "x": "x", "m1": "m-1", "m2": "m-2", "m3": "m-3", "host": "broker"}
NUMBERS = {"pid": 1, "pid2": 2, "node": 0, "port": 9092, "sid": 1, "e1": 1}
OTHERS = {
    "cluster": "c",
    "dir": "/data",
    "node_text": "0",
    "tid": "AAAAAAAAAAAAAAAAAAAAAQ",
    "tid2": "AAAAAAAAAAAAAAAAAAAAAg",
}


class Seed(NamedTuple):
    """A request without its length."""

    kind: tuple[int, int]
    frame: bytes


@functools.cache
def _replay() -> Any:
    spec = importlib.util.spec_from_file_location("replay", BEHAVIOUR / "replay.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded() -> Iterator[Seed]:
    replay = _replay()
    handlers = load_handlers()
    for path in sorted(BEHAVIOUR.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            for step in json.loads(line)["steps"]:
                key = replay.API_KEYS.get(step.get("api"))
                if key not in handlers or not handlers[key].low <= step["v"] <= handlers[key].high:
                    continue
                try:
                    body = replay.expand(step.get("req", {}), NAMES | NUMBERS | OTHERS)
                except KeyError:
                    continue  # it names what an earlier answer told
                yield Seed((key, step["v"]), replay.encode_request(step["api"], step["v"], 7, "fuzz", body))


def made_up(kinds: set[tuple[int, int]], rng: random.Random) -> Iterator[Seed]:
    """Of every version that is served and not among these."""
    for key, handler in load_handlers().items():
        for version in range(handler.low, handler.high + 1):
            if (key, version) in kinds:
                continue
            cls = handler.request_class
            for _ in range(3):
                try:
                    kio = kio_class(handler.api_key.name.lower(), version, "request")
                    message = pair(cls, kio, version, rng)[0]
                except (KeyError, ModuleNotFoundError):
                    message = cls()
                yield Seed((key, version), bytes(raw.frame(message, version, 7)[4:]))


@functools.cache
def seeds() -> dict[tuple[int, int], list[bytes]]:
    """By API key and version, each once."""
    found: dict[tuple[int, int], dict[bytes, None]] = {}
    for seed in recorded():
        found.setdefault(seed.kind, {})[seed.frame] = None
    for seed in made_up(set(found), random.Random(1)):
        found.setdefault(seed.kind, {})[seed.frame] = None
    return {kind: list(frames) for kind, frames in sorted(found.items())}


def sealed(frame: bytes) -> bytes:
    """With the right checksum in every batch that it has."""
    data = bytearray(frame)
    at = data.find(b"\2", 16)
    while at >= 0:
        start = at - 16
        end = start + 12 + int.from_bytes(data[start + 8 : start + 12], "big", signed=True)
        if start + 61 <= end <= len(data):
            struct.pack_into(">I", data, start + 17, crc32c(bytes(data[start + 21 : end])))
        at = data.find(b"\2", at + 1)
    return bytes(data)


def worse(frame: bytes, rng: random.Random) -> bytes:
    """Mostly its body: what its header says decides who looks at it."""
    header = 14 if rng.random() < 0.9 else 0
    data = frame[:header] + mutated(frame[header:], rng)
    return sealed(data) if rng.random() < 0.7 else data


class Findings(logging.Handler):
    """What went wrong, each kind once, with the input that showed it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: dict[str, str] = {}
        self.latest = b""

    def add(self, what: str, more: str = "") -> None:
        if what not in self.found:
            self.found[what] = f"{what}\n  {self.latest.hex()[:2000]}\n{more}"
            print(self.found[what], flush=True)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            where = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            self.add(f"{type(error).__name__} at {where}", f"{message}\n{error!r:.500}")
        elif "please report" in message:
            self.add(message[:200])


class Innocent:
    """Has a topic and a group of its own, and knows what it has written."""

    def __init__(self, simulation: Simulation) -> None:
        self.client = Client(simulation, "innocent")
        self.written: list[bytes] = []

    async def begin(self) -> None:
        # Virtual weeks may pass.
        topic = raw.create_topics_request({"innocent": 1}, retention_ms="-1")
        await self.client.insist(topic, raw.CREATE_TOPICS_VERSION)

    async def turn(self) -> str | None:
        """What is wrong, if anything is."""
        value = b"value %d" % len(self.written)
        asked = raw.produce_request("innocent", 0, raw.batch([value]))
        done = raw.produced(await self.client.insist(asked, raw.PRODUCE_VERSION))
        if done.error_code or done.base_offset != len(self.written):
            return f"a write was answered with error {done.error_code}, offset {done.base_offset}"
        self.written.append(value)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=len(self.written))
        topic = OffsetCommitRequestTopic(name="innocent", partitions=[partition])
        commit = OffsetCommitRequest(group_id="innocent", generation_id_or_member_epoch=-1, topics=[topic])
        for _ in range(60):
            # Anybody may delete the coordinators' topics, too: they are made again.
            await self.client.insist(FindCoordinatorRequest(key="innocent"), 0)
            answer = (await self.client.insist(commit, 7)).topics[0].partitions[0]
            if answer.error_code not in RETRIED:
                break
            await asyncio.sleep(1)
        return f"a commit was answered with error {answer.error_code}" if answer.error_code else None

    async def check(self) -> str | None:
        try:
            rows = await self.client.read_all("innocent", 0)
        except AssertionError as error:
            return str(error)
        finally:
            self.client.close()
        return None if [value for _, value in rows] == self.written else "what was written is not what is read"


class Fuzzing:
    def __init__(self, rng: random.Random, findings: Findings) -> None:
        self.random = rng
        self.findings = findings
        self.counts: Counter[tuple[int, int]] = Counter()
        self.answered = 0
        self.brokers = 0
        self.is_judged = True  # whether the innocent is to be served
        self.longest_s = 0.0

    def told(self) -> str:
        counts = self.counts
        of_kinds = (
            f"{len(counts)} of {len(seeds())} keys and versions, {min(counts.values(), default=0)} at least of each"
        )
        return f"{counts.total()} requests, {of_kinds}; {self.answered} connections answered"

    def broker_runs(self, inputs: int, kinds: list[tuple[int, int]]) -> None:
        """One broker, from its start to its end."""
        run_simulation(lambda simulation: self._main(simulation, inputs, kinds), self.random.randrange(1 << 30))

    async def _main(self, simulation: Simulation, inputs: int, kinds: list[tuple[int, int]]) -> None:
        machine = SimulatedBroker(simulation, {"group.initial.rebalance.delay.ms": "0"})
        await machine.start()
        innocent = Innocent(simulation)
        await innocent.begin()
        await innocent.client.insist(raw.create_topics_request({"t": 2, "u": 1}), raw.CREATE_TOPICS_VERSION)
        await innocent.client.insist(raw.produce_request("t", 0, raw.batch([b"a", b"b"])), raw.PRODUCE_VERSION)
        for number in range(inputs):
            if number % INNOCENT_EVERY == 0 and self.is_judged:
                await self._tell(innocent.turn())
            await machine.host.start(self._one(machine, self.random.choice(kinds)))
        if not self.is_judged:
            innocent.client.close()
            await asyncio.sleep(1)
            await machine.stop()
            return
        await self._tell(innocent.turn())
        await self._tell(innocent.check())
        await asyncio.sleep(1)
        await machine.host.start(self._end(machine))
        await machine.stop()

    async def _tell(self, asked: Any) -> None:
        try:
            async with asyncio.timeout(120):
                wrong = await asked
        except TimeoutError:
            wrong = "it was not served for two minutes"
        if wrong is not None and self.is_judged:
            self.findings.add(f"the innocent: {wrong}")

    async def _one(self, machine: SimulatedBroker, kind: tuple[int, int]) -> None:
        assert machine.broker is not None
        rng = self.random
        transport = Transport()
        connection = transport.connection = ServerConnection(machine.broker.acceptor, "PLAINTEXT")
        connection.connection_made(transport)
        for _ in range(rng.choice((1, 1, 2, 5))):
            frame = rng.choice(seeds()[kind])
            frame = worse(frame, rng) if rng.random() < 0.95 else frame
            self.counts[kind] += 1
            self.findings.latest = frame
            began = time.thread_time()
            try:
                _receive(connection, transport, struct.pack(">i", len(frame)) + frame)
                await asyncio.sleep(0)
            except Exception as error:
                logging.getLogger("tests").exception("a connection raised %r", error)
            used_s = time.thread_time() - began
            self.longest_s = max(self.longest_s, used_s)
            if used_s > CPU_S_MAX:
                self.findings.add(f"API key {kind[0]} version {kind[1]} kept the event loop for {used_s:.1f} s")
        await asyncio.sleep(rng.choice((0, 0, 0.001, 0.1, 30 if rng.random() < 0.02 else 0)))
        self.answered += bool(transport.written)
        transport.closed = transport.closed or "lost"
        connection.connection_lost(None)

    async def _end(self, machine: SimulatedBroker) -> None:
        """What may go on without its client comes to an end; then nothing is held any more."""
        assert machine.broker is not None
        acceptor = machine.broker.acceptor
        for _ in range(600):
            if not acceptor.is_busy and not acceptor.held_bytes:
                break
            await asyncio.sleep(1)
        spare = acceptor.spares.kept_bytes - _spare_of_innocent(acceptor)
        held = acceptor.held_bytes, acceptor.answers.held_bytes, spare
        if acceptor.is_busy or any(held):
            self.findings.add(f"{held} bytes are held of requests, answers, spares; busy: {acceptor.is_busy}")


def _spare_of_innocent(acceptor: Acceptor) -> int:
    """What connections that are open may keep."""
    spares = [connection._reader._spare for connection in acceptor.connections]
    return sum(len(spare) for spare in spares if spare is not None)


def _receive(connection: ServerConnection, transport: Transport, data: bytes) -> None:
    while data and not transport.closed:
        buffer = connection.get_buffer(-1)
        piece, data = data[: len(buffer)], data[len(buffer) :]
        buffer[: len(piece)] = piece
        connection.buffer_updated(len(piece))


def fuzz(seed: int, inputs: int, cpu_s: float | None = None) -> tuple[Fuzzing, Findings]:
    """So many inputs, or as many as there is time for; the same seed gives the same ones."""
    findings = Findings()
    fuzzing = Fuzzing(random.Random(seed), findings)
    kinds = list(seeds())
    logger, level = logging.getLogger(), logging.getLogger().level
    logger.addHandler(findings)
    told = time.monotonic()
    try:
        while cpu_s is None or time.process_time() < cpu_s:
            fuzzing.brokers += 1
            fuzzing.is_judged = fuzzing.brokers % TAKING_AWAY_EVERY != 0
            # Every key and version has its turn, those of one broker in any order.
            of_broker = [kind for kind in kinds if (kind[0] in TAKES_AWAY) != fuzzing.is_judged]
            chosen = sorted(of_broker, key=lambda kind: (fuzzing.counts[kind], fuzzing.random.random()))
            fuzzing.broker_runs(min(inputs, INPUTS_PER_BROKER), chosen[: max(40, len(chosen) // 4)])
            gc.collect()  # what was never awaited is said then
            if time.monotonic() - told > TOLD_EVERY_S:
                told = time.monotonic()
                print(f"{time.process_time():.0f} s of CPU: {fuzzing.told()}", flush=True)
            inputs -= INPUTS_PER_BROKER
            if cpu_s is None and inputs <= 0:
                break
            inputs = max(inputs, INPUTS_PER_BROKER)
    except KeyboardInterrupt:
        pass  # what was tried until then counts
    finally:
        logger.removeHandler(findings)
        logger.setLevel(level)
    return fuzzing, findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.pipeline_fuzz")
    parser.add_argument("--cpu-seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("headrace").propagate = True
    fuzzing, findings = fuzz(options.seed, INPUTS_PER_BROKER, options.cpu_seconds)
    print(f"seed {options.seed}, {time.process_time():.0f} s of CPU: {fuzzing.told()}")
    print(f"the longest step took {fuzzing.longest_s * 1e3:.0f} ms; {len(findings.found)} findings")
    return 1 if findings.found else 0


if __name__ == "__main__":
    raise SystemExit(main())
