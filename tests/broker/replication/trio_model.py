"""Three whole brokers under random faults, each schedule from a seed; run as

    python -m tests.broker.replication.trio_model SEEDS [FIRST]

Clients insist on their records, numbered by idempotent producers, while brokers are cut off from one another, are
fenced and unfenced, do not hear of what the controller decides, and leaders change. Afterwards everything heals: every
record that was acknowledged is in every log, once, at the offset that was told, and all logs are equal.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys

from tests.broker import raw
from tests.broker.raw import AsyncRawClient
from tests.broker.replication.trio import NODES, TOPIC, Trio, simulated

from headrace.runtime import ConnectFailedError

RECORDS_PER_CLIENT = 12
CLIENTS = 3
FAULTS = 12
HEAL_S = 120.0
_GONE = (ConnectionError, TimeoutError, ConnectFailedError)


class Producer:
    """One idempotent producer, one record at a time, repeated until it is acknowledged."""

    def __init__(self, trio: Trio, number: int, rng: random.Random) -> None:
        self.trio = trio
        self.number = number
        self.rng = rng
        self.acknowledged: dict[bytes, int] = {}
        self.clients: dict[int, AsyncRawClient] = {}

    async def run(self) -> None:
        for sequence in range(RECORDS_PER_CLIENT):
            value = b"%d.%d" % (self.number, sequence)
            while (offset := await self._send(value, sequence)) is None:
                await asyncio.sleep(self.rng.uniform(0.01, 0.3))
            self.acknowledged[value] = offset
            await asyncio.sleep(self.rng.uniform(0.0, 0.8))
        for client in self.clients.values():
            client.close()

    async def _send(self, value: bytes, sequence: int) -> int | None:
        node_id = self.rng.choice(NODES)
        batch = raw.batch([value], producer_id=100 + self.number, producer_epoch=0, base_sequence=sequence)
        request = raw.produce_request(TOPIC, 0, batch)
        request.timeout_ms = self.rng.choice((200, 3000))
        try:
            client = self.clients.get(node_id)
            if client is None:
                client = self.clients[node_id] = await self.trio.client(node_id)
            result = raw.produced(await client.request(request, 9, timeout_s=5.0))
        except _GONE:
            gone = self.clients.pop(node_id, None)
            if gone is not None:
                gone.close()
            return None
        if result.error_code:
            # A leader that lacks the batch before refuses; another one will have it.
            return None
        return result.base_offset


async def _disturb(trio: Trio, rng: random.Random) -> None:
    network = trio.simulation.network
    for _ in range(FAULTS):
        await asyncio.sleep(rng.uniform(0.05, 1.5))
        node_id = rng.choice(NODES)
        kind = rng.randrange(7)
        if kind == 0:
            network.partition([f"b{node_id}"], [f"b{other}" for other in NODES if other != node_id])
        elif kind == 1:
            network.heal()
        elif kind == 2:
            trio.deaf.add(node_id)
        elif kind == 3:
            trio.deaf.clear()
            await trio.tell()
        elif kind == 4:
            await trio.fence(node_id)
        elif kind == 5:
            await trio.unfence(node_id)
        else:
            await trio.elect_preferred()
    network.heal()
    trio.deaf.clear()
    await trio.tell()
    for node_id in NODES:
        await trio.unfence(node_id)


def _is_healed(trio: Trio) -> bool:
    logs = [trio.partition(node_id).log for node_id in NODES]
    # Not their leader epochs: a follower learns of one by its first record, and the last one may have none.
    ends = {(log.end_offset, log.high_watermark) for log in logs}
    is_equal = len(ends) == 1 and logs[0].end_offset == logs[0].high_watermark
    return is_equal and len(trio.state.isr) == len(NODES)


def _contents(trio: Trio, node_id: int) -> list[tuple[int, bytes]]:
    log = trio.partition(node_id).log
    found: list[tuple[int, bytes]] = []
    offset = 0
    while offset < log.end_offset:
        part = log.locate(offset, 1 << 20, limit=log.end_offset, at_least_one=True)
        records = raw.values_of(part.file.read(part.position, part.length))
        found += records
        offset = records[-1][0] + 1
    return found


async def _audit(trio: Trio, rng: random.Random) -> None:
    await trio.create_topic(tuple(rng.sample(NODES, 3)))
    producers = [Producer(trio, number, rng) for number in range(CLIENTS)]
    running = [asyncio.ensure_future(producer.run()) for producer in producers]
    await _disturb(trio, rng)
    try:
        async with asyncio.timeout(HEAL_S):
            await asyncio.gather(*running)
            while not _is_healed(trio):
                await asyncio.sleep(0.05)
    except TimeoutError:
        logs = {node_id: trio.partition(node_id).log for node_id in NODES}
        raise AssertionError(f"it does not heal: {trio.state}, {logs}") from None
    first = _contents(trio, 1)
    assert all(_contents(trio, node_id) == first for node_id in NODES), "logs differ"
    by_offset = dict(first)
    values = [value for _, value in first]
    assert len(set(values)) == len(values), "a record is there twice"
    for producer in producers:
        assert len(producer.acknowledged) == RECORDS_PER_CLIENT
        for value, offset in producer.acknowledged.items():
            assert by_offset.get(offset) == value, f"{value!r} was acknowledged at {offset}: {by_offset.get(offset)!r}"


def run(seed: int) -> None:
    rng = random.Random(seed)
    settings = {"min.insync.replicas": str(rng.choice((1, 2))), "replica.lag.time.max.ms": "1500"}

    async def test(trio: Trio) -> None:
        await _audit(trio, rng)

    try:
        simulated(test, seed, settings)
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def main(arguments: list[str]) -> int:
    seeds = int(arguments[0]) if arguments else 20
    first = int(arguments[1]) if len(arguments) > 1 else 0
    for seed in range(first, first + seeds):
        run(seed)
    print(f"{seeds} schedules of three brokers: nothing lost, nothing twice, all logs equal")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
