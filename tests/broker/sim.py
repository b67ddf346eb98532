"""A whole broker inside a simulation: its process, the power it loses, and the clients that insist on their records."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.broker.broker import Broker
from headrace.errors import ErrorCode
from headrace.log import LogConfig
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.runtime import ConnectFailedError, Runtime
from headrace.runtime.simulated import CrashModel, Host, Simulation

from . import raw
from .raw import AsyncRawClient

PORT = 9092
INIT_PRODUCER_ID_VERSION, METADATA_VERSION = 3, 9
GONE = (ConnectionError, TimeoutError, ConnectFailedError)
RETRY_S = 0.05


class SmallSegmentsBroker(Broker):
    """With segments far below the smallest that Kafka allows, so that they roll also in a short run."""

    segment_bytes = 20_000

    def log_config(self, topic: str) -> LogConfig:
        return dataclasses.replace(super().log_config(topic), segment_bytes=self.segment_bytes)


class SimulatedBroker:
    """`headrace start` on a simulated machine: it can be started, stopped, killed and lose its power."""

    def __init__(self, simulation: Simulation, settings: Mapping[str, str] | None = None, name: str = "broker") -> None:
        self.simulation = simulation
        self.host: Host = simulation.host(name)
        self.settings = {
            "listeners": f"PLAINTEXT://{name}:{PORT}",
            "log.dirs": "/data/one",
            "offsets.topic.num.partitions": "1",
            **(settings or {}),
        }
        self.broker: Broker | None = None

    async def start(self) -> None:
        """Return once it serves. Raises what keeps it from that; HostDiedError when the power goes meanwhile."""
        runtime = self.host.runtime if self.host.alive else self.host.restart()
        self.broker = SmallSegmentsBroker.from_settings(runtime, self.settings)
        await self.host.start(self.broker.start(), name="broker")

    async def stop(self) -> None:
        """Shut down in order, and let the process end."""
        assert self.broker is not None
        await self.host.start(self._stop(self.broker, self.host.runtime))
        self.broker = None
        self.host.kill(power_loss=False)

    async def _stop(self, broker: Broker, runtime: Runtime) -> None:
        await broker.stop()
        await runtime.close()

    def lose_power(self, model: CrashModel = CrashModel.HARSH) -> None:
        self.broker = None
        self.host.kill(power_loss=True, model=model)

    def kill(self) -> None:
        self.broker = None
        self.host.kill(power_loss=False)


class Client:
    """Keeps one connection to the broker, and makes a new one when that is lost."""

    def __init__(self, simulation: Simulation, name: str, broker: str = "broker") -> None:
        self.host = simulation.host(name)
        self._broker = broker
        self._connection: AsyncRawClient | None = None
        self.may_send = asyncio.Event()
        self.may_send.set()

    async def request(self, message: Any, version: int, timeout_s: float = 5.0) -> Any:
        """One try: the answer, or one of `GONE`."""
        try:
            if self._connection is None:
                self._connection = await AsyncRawClient.connect(self.host.runtime, self._broker, PORT)
                await self.may_send.wait()  # connecting takes time
            return await self._connection.request(message, version, timeout_s)
        except GONE:
            self.close()
            raise

    async def insist(self, message: Any, version: int, timeout_s: float = 5.0) -> Any:
        """Ask until there is an answer."""
        while True:
            await self.may_send.wait()
            with contextlib.suppress(*GONE):
                return await self.request(message, version, timeout_s)
            await asyncio.sleep(RETRY_S)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def read_all(self, topic: str, partition: int) -> list[tuple[int, bytes]]:
        """Every record of a partition, up to its high watermark."""
        rows: list[tuple[int, bytes]] = []
        offset = 0
        while True:
            answer = raw.fetched(await self.insist(raw.fetch_request(topic, partition, offset), raw.FETCH_VERSION))
            assert answer.error_code == 0, f"{topic}-{partition} at {offset}: {ErrorCode(answer.error_code).name}"
            if offset >= answer.high_watermark:
                return rows
            rows += [row for row in raw.values_of(answer.records) if row[0] >= offset]
            assert rows, f"nothing at {offset} of {topic}-{partition}, whose high watermark is {answer.high_watermark}"
            offset = rows[-1][0] + 1


@dataclass
class Story:
    """What was sent to one topic and what the broker said of it."""

    topic: str
    partitions: int
    is_durable: bool
    acknowledged: list[dict[int, bytes]] = field(default_factory=list)
    sent: list[set[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.acknowledged = [{} for _ in range(self.partitions)]
        self.sent = [set() for _ in range(self.partitions)]


class Writer:
    """An idempotent producer: one batch in flight, sent again until it is acknowledged."""

    def __init__(self, simulation: Simulation, name: str, story: Story, rng: random.Random) -> None:
        self.client = Client(simulation, name)
        self._name = name
        self._story = story
        self._rng = rng
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}
        self._count = 0
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            index = self._rng.randrange(self._story.partitions)
            size = self._rng.choice((10, 10, 100, 3_000))
            values = []
            for _ in range(self._rng.randint(1, 4)):
                self._count += 1
                values.append(f"{self._name}:{self._count:06d}:".encode() + bytes(size))
            self._story.sent[index].update(values)
            await self._write(index, values)
            if self._rng.random() < 0.2:
                await asyncio.sleep(self._rng.uniform(0, 0.05))

    async def _write(self, index: int, values: list[bytes]) -> None:
        story = self._story
        while True:
            if self._producer is None:
                await self._introduce()
            assert self._producer is not None
            producer_id, epoch = self._producer
            sequence = self._sequences.get(index, 0)
            # Of today: a broker forgets producers whose last record is older than a day.
            now_ms = self.client.host.clock.now_ms()
            records = raw.batch(
                values, timestamp_ms=now_ms, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )
            answer = raw.produced(
                await self.client.insist(raw.produce_request(story.topic, index, records), raw.PRODUCE_VERSION)
            )
            if answer.error_code == ErrorCode.NONE:
                for at, value in enumerate(values):
                    story.acknowledged[index][answer.base_offset + at] = value
                self._sequences[index] = sequence + len(values)
                return
            if answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not story.is_durable:
                # The log lost what this producer wrote last, as it may without a sync; it begins anew.
                self._producer, self._sequences = None, {}
                continue
            # After a start the partition may not be there yet; anything else is a defect.
            assert answer.error_code in (
                ErrorCode.KAFKA_STORAGE_ERROR,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ), f"{story.topic}-{index}: {ErrorCode(answer.error_code).name}"
            await asyncio.sleep(RETRY_S)

    async def _introduce(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = await self.client.insist(request, INIT_PRODUCER_ID_VERSION)
        assert answer.error_code == 0
        self._producer = (answer.producer_id, answer.producer_epoch)


async def create_topic(client: Client, story: Story) -> None:
    """Make the topic, whatever happens meanwhile."""
    configs = {"flush_messages": "1"} if story.is_durable else {}
    request = raw.create_topics_request({story.topic: story.partitions}, **configs)
    while True:
        answer = await client.insist(request, raw.CREATE_TOPICS_VERSION)
        result = answer.topics[0]
        if result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR, result
        await asyncio.sleep(RETRY_S)


async def check(client: Client, story: Story) -> None:
    """What the log says now is what was written, and holds all that was promised."""
    metadata = await client.insist(MetadataRequest(topics=None), METADATA_VERSION)
    assert story.topic in {topic.name for topic in metadata.topics}, f"{story.topic} is gone"
    for index in range(story.partitions):
        rows = await client.read_all(story.topic, index)
        offsets = [offset for offset, _ in rows]
        values = [value for _, value in rows]
        where = f"{story.topic}-{index}"
        assert offsets == list(range(len(rows))), f"{where} has holes: {offsets}"
        assert len(set(values)) == len(values), f"{where} has records twice"
        assert set(values) <= story.sent[index], f"{where} has records that nobody sent"
        known = story.acknowledged[index]
        for offset, value in rows:
            assert known.get(offset, value) == value, f"{where}: another record is at {offset} than was acknowledged"
        if story.is_durable:
            lost = [offset for offset in known if offset >= len(rows)]
            assert not lost, f"{where} ends at {len(rows)}, but {lost} were acknowledged"
        else:
            # A prefix may be all that is left. What was cut off will be written again, or not.
            story.acknowledged[index] = {offset: value for offset, value in known.items() if offset < len(rows)}
        for name in {value.split(b":")[0] for value in values}:
            of_one = [value for value in values if value.startswith(name + b":")]
            assert of_one == sorted(of_one), f"{where}: the records of {name.decode()} are not in order"
