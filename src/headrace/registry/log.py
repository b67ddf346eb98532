"""Where the registry's records are: the topic `_schemas`, read from its beginning, and written in transactions.

A transactional producer is what keeps two instances from writing: whoever becomes the one that writes fences the
producer before it, reads what that one has written, and only then decides anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from headrace import aio
from headrace.client.admin import NewTopic
from headrace.client.errors import FatalTransactionError, ProducerFencedError
from headrace.client.offsets import OffsetSpec
from headrace.errors import HeadraceError, InvalidProducerEpochError, KafkaError, TopicAlreadyExistsError
from headrace.registry.records import NOOP, SchemaChange, UnreadableSchemaRecordError, read
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.registry")

Apply = Callable[[SchemaChange], None]
_POLL_S = 1.0
_RETRY_S = 0.5
_FENCED = (ProducerFencedError, FatalTransactionError, InvalidProducerEpochError)


class LogUnavailableError(HeadraceError):
    """The registry's topic cannot be read or written now."""


class NoLongerWriterError(LogUnavailableError):
    """Another instance writes now."""


class RegistryLog(Protocol):
    """The records of a registry, in one order that all its instances see."""

    async def start(self, apply: Apply) -> None:
        """Read what there is, with a call of `apply` per record, and go on reading until `close`."""

    async def take_over(self) -> None:
        """Be the only one that writes: afterwards nobody else can, and all that was written has been applied."""

    async def write(self, changes: Sequence[SchemaChange]) -> None:
        """Write records, all or none; when it returns they have been applied."""

    async def close(self) -> None:
        """Stop reading and writing."""


class MemoryLog:
    """Records that end with the process: for tests that need a registry and no Kafka."""

    def __init__(self) -> None:
        self._apply: Apply = lambda change: None

    async def start(self, apply: Apply) -> None:
        self._apply = apply

    async def take_over(self) -> None:
        return

    async def write(self, changes: Sequence[SchemaChange]) -> None:
        for change in changes:
            self._apply(change)

    async def close(self) -> None:
        return


class TopicLog:
    """Records in a compacted topic of one partition."""

    def __init__(
        self, client: Mapping[str, Any], topic: str, *, writer: str, replicas: int, start_timeout_s: float
    ) -> None:
        self._client = dict(client)
        self._partition = TopicPartition(topic, 0)
        self._writer = writer
        self._replicas = replicas
        self._start_timeout_s = start_timeout_s
        self._apply: Apply = lambda change: None
        self._producer: aio.Producer | None = None
        self._reading: asyncio.Task[None] | None = None
        self._position = 0
        """All records before it have been applied."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def start(self, apply: Apply) -> None:
        self._apply = apply
        try:
            async with asyncio.timeout(self._start_timeout_s):
                end = await self._find_topic()
        except TimeoutError:
            raise LogUnavailableError(
                f"no broker at {self._client['bootstrap.servers']} gave the topic {self._partition.topic} within "
                f"kafkastore.init.timeout.ms={self._start_timeout_s * 1000:.0f}"
            ) from None
        self._reading = asyncio.create_task(self._read(), name="headrace-registry-reading")
        await self._reach(end)

    async def take_over(self) -> None:
        await self._close_producer()
        producer = aio.Producer(
            {
                **self._client,
                "transactional.id": self._writer,
                "acks": "all",
                "linger.ms": 0,
                "client.id": "schema-registry",
            }
        )
        self._producer = producer
        with _explained():
            await producer.init_transactions()
        # What another instance wrote before it was fenced lies before this record.
        await self.write([SchemaChange(NOOP)])

    async def write(self, changes: Sequence[SchemaChange]) -> None:
        if self._producer is None:
            raise NoLongerWriterError("this instance does not write")
        producer = self._producer
        try:
            with _explained():
                await producer.begin_transaction()
                deliveries = [
                    producer.send(self._partition.topic, change.value_bytes(), key=change.key_bytes(), partition=0)
                    for change in changes
                ]
                await producer.commit_transaction()
                last = (await deliveries[-1]).offset
        except BaseException:
            # Whether it was written is not certain: whoever writes next takes over first, and reads what is there.
            await self._close_producer()
            raise
        await self._reach(last + 1)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._close_producer()

    async def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(HeadraceError):
                await producer.close(0)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _find_topic(self) -> int:
        """Make the topic if there is none; gives where its records end."""
        topic = self._partition.topic
        async with aio.Admin(self._client) as admin:
            while True:
                try:
                    brokers = len((await admin.describe_cluster()).nodes)
                    replicas = max(1, min(self._replicas, brokers))
                    made = await admin.create_topics(
                        [NewTopic(topic, 1, replicas, configs={"cleanup.policy": "compact"})]
                    )
                    made.all()
                    log.info("made the topic %s with %d replicas", topic, replicas)
                except TopicAlreadyExistsError:
                    pass
                except HeadraceError as error:
                    log.warning("the registry's topic cannot be reached yet: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    continue
                try:
                    description = (await admin.describe_topics([topic]))[topic]
                    if len(description.partitions) != 1:
                        raise LogUnavailableError(
                            f"{topic} has {len(description.partitions)} partitions, and the records of a registry "
                            "have one order: they need a topic of one partition"
                        )
                    ends = await admin.list_offsets({self._partition: OffsetSpec.latest()})
                    return ends[self._partition].offset
                except KafkaError as error:
                    log.warning("the registry's topic is not ready: %s", error)
                    await asyncio.sleep(_RETRY_S)

    async def _read(self) -> None:
        config = {
            **self._client,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "client.id": "schema-registry",
        }
        async with aio.Consumer(config) as consumer:
            consumer.assign([self._partition])
            consumer.seek(self._partition, self._position)
            while True:
                try:
                    records = await consumer.poll(_POLL_S)
                    for record in records:
                        self._take(record.offset, record.key, record.value)
                    position = await consumer.position(self._partition)
                except HeadraceError as error:
                    log.warning("the registry's topic cannot be read: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    continue
                self._position = max(self._position, position)
                self._wake()

    def _take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        try:
            change = read(key, value)
        except UnreadableSchemaRecordError as error:
            log.warning("record %d of %s is left out: %s", offset, self._partition.topic, error)
            return
        if change is not None:
            self._apply(change)

    def _wake(self) -> None:
        done = [one for one in self._waiting if one[0] <= self._position]
        self._waiting = [one for one in self._waiting if one[0] > self._position]
        for _, future in done:
            if not future.done():
                future.set_result(None)

    async def _reach(self, offset: int) -> None:
        if self._position >= offset:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, future))
        await future


@contextlib.contextmanager
def _explained() -> Any:
    try:
        yield
    except _FENCED as error:
        raise NoLongerWriterError(f"another instance of the registry writes now: {error}") from error
    except (HeadraceError, OSError) as error:
        if isinstance(error.__cause__, _FENCED):
            raise NoLongerWriterError(f"another instance of the registry writes now: {error.__cause__}") from error
        raise LogUnavailableError(str(error)) from error
