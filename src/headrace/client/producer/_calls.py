"""What the blocking and the asyncio producer have in common: everything that does not wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

from headrace.client.arguments import check_several, whole_number
from headrace.client.compiled import count_rows
from headrace.client.producer._base import (
    ProducerRecord,
    ProducerSetup,
    as_bytes,
    as_headers,
    batch_rows,
    check_record,
    payload_bytes,
)
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._rows import ColumnRows, Rows
from headrace.client.producer._sender import Sender
from headrace.client.producer.delivery import BatchDelivery, Delivery, DeliveryCallback
from headrace.client.typed import K, V
from headrace.functions import check_plain
from headrace.records.arrow import need_arrow
from headrace.runtime import Clock


class ProducerCalls(Generic[K, V]):
    """The calls that return at once. `_sender` takes the records."""

    _sender: Sender

    def __init__(self, setup: ProducerSetup, clock: Clock) -> None:
        self._setup = setup
        self._settings = setup.settings
        self._clock = clock
        self._is_plain = setup.is_plain
        self._closed = False

    @property
    def _core(self) -> ProducerCore | None:
        return self._sender.core

    def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Any = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Send a record, and return at once with its `Delivery`: ask that for `result()`, or await it with asyncio.

        When `buffer.memory` is full, the blocking producer waits for up to `max.block.ms`, and the asyncio one raises
        `BufferExhaustedError`. Without a partition, the key decides; without a key, Kafka's sticky way. Without a
        timestamp (milliseconds), the time it is put into a batch. `headers` are pairs (or a mapping) of name and bytes.
        `on_delivery(error, metadata)` is called once, `error` None when all went well.
        """
        # Everything here is paid per record: one list, one append, few comparisons (docs/design/client-speed.md).
        if on_delivery is not None:
            check_plain(on_delivery, "send(on_delivery=…)")
        if not self._is_plain:
            record, on_delivery = self._setup.convert(
                ProducerRecord(topic, value, key, partition, timestamp, headers), on_delivery
            )
            topic, value, key, partition, timestamp, headers = record
        sender = self._sender
        size = 0
        # What is not bytes by now is made so, or refused: from here on neither is of the user's types.
        if value.__class__ is bytes:
            size = len(value)  # type: ignore[unreachable]
        elif value is not None:
            value = as_bytes(value, "value", topic)  # type: ignore[assignment]
            size = len(value)  # type: ignore[arg-type]
        if key is not None:
            if key.__class__ is not bytes:
                key = as_bytes(key, "key", topic)  # type: ignore[assignment]
            size += len(key)  # type: ignore[arg-type]
            sender.may_have_keys = True
        if headers is not None:
            headers = as_headers(headers, topic) or None
            sender.may_have_extras = True
        if partition is not None or timestamp is not None or topic.__class__ is not str or not topic:
            partition, timestamp = check_record(topic, partition, timestamp)
            sender.may_have_extras = True
        sender.taken = taken = sender.taken + size
        if taken > sender.limit:
            sender = self._make_room(size)
        delivery = Delivery((topic, value, key, partition, timestamp, headers, on_delivery, sender))
        append = sender.append
        append(delivery)
        if sender.is_idle:
            sender.send_now(delivery)
        return delivery

    def send_batch(
        self,
        topic: str,
        values: Sequence[V | None],
        keys: Sequence[K | None] | None = None,
        *,
        partition: int | Sequence[int | None] | None = None,
        timestamps: int | Sequence[int | None] | None = None,
        headers: Sequence[Any] | None = None,
        on_delivery: Callable[[Any, Any], Any] | None = None,
    ) -> BatchDelivery:
        """Send many records at once, as columns: several times faster than one by one. They are not intercepted.

        `on_delivery(error, ranges)` is called once, when all of them are done.
        """
        check_record(topic, whole_number(partition), whole_number(timestamps))
        check_plain(on_delivery, "send_batch(on_delivery=…)")
        check_several(values, "send_batch", "values")
        if keys is not None:
            check_several(keys, "send_batch", "keys")
        delivery = BatchDelivery(self._sender, topic, on_delivery)
        now_ms = self._clock.now_ms()
        rows = batch_rows(self._setup, delivery, topic, values, keys, partition, timestamps, headers, now_ms)
        return self._submit(rows, delivery)

    def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        partition: int | None = None,
        on_delivery: Callable[[Any, Any], Any] | None = None,
    ) -> BatchDelivery:
        """Send an Arrow table or record batch with the columns value, and if wanted key, headers, timestamp, partition.

        Nothing is copied before the records are encoded; serializers and interceptors are not used.
        """
        need_arrow()
        from headrace.client.producer._arrow import arrow_rows

        partition, _ = check_record(topic, partition, None)
        check_plain(on_delivery, "send_arrow(on_delivery=…)")
        delivery = BatchDelivery(self._sender, topic, on_delivery)
        rows = arrow_rows(
            delivery, topic, data, partition, self._setup.partitioner, self._settings.ignore_keys, self._clock.now_ms()
        )
        return self._submit(rows, delivery)

    def _submit(self, rows: Rows | ColumnRows, delivery: BatchDelivery) -> BatchDelivery:
        delivery.expect(len(rows))
        if len(rows) == 0:
            delivery.is_done = True
            return delivery
        size = payload_bytes(rows)
        count_rows(len(rows))
        sender = self._sender
        sender.taken = taken = sender.taken + size
        if taken > sender.limit:
            delivery.sender = sender = self._make_room(size)
        sender.append(rows)
        if sender.is_idle:
            sender.wake()
        return delivery

    def _make_room(self, size: int) -> Sender:
        """The slow way of `send`; the sender that the record is to be appended to."""
        self._sender.make_room(size)
        return self._sender

    def _seconds(self, timeout: float | None) -> float:
        """How long a call waits that was given no time: `max.block.ms`."""
        return self._settings.max_block_ms / 1000 if timeout is None else timeout

    @property
    def client_id(self) -> str:
        """`client.id`, or the name that it was given."""
        return str(self._setup.values["client.id"])

    def metrics(self) -> dict[str, float]:
        """Counters and averages, under Kafka's names."""
        return self._sender.metrics()
