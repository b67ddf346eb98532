"""One record alone in its batch and its request, by the shortest way there is.

What goes through columns, batches and generated encoders is made for thousands of records, and costs several times as
much as the socket when it is done for one. The bytes are the same either way.
"""

from __future__ import annotations

import struct

from headrace.client.producer._batch import ProducerBatch
from headrace.client.producer._core import VERSION_BY_NAME_MAX, ProducerCore
from headrace.client.producer._rows import RECORD_OVERHEAD_BYTES
from headrace.client.producer.delivery import Delivery
from headrace.errors import UnsupportedVersionError
from headrace.net.connection import Call, Connection
from headrace.protocol.codec import Buffer, encode_parts, has_flexible_header
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.schema import ZERO_UUID
from headrace.protocol.wire import UVARINT, uvarint
from headrace.records.batch import HEADER_BYTES, Codec
from headrace.records.build import build_one
from headrace.records.murmur2 import partition_for_key

_BYTES_MAX = 16 * 1024
"""Larger ones go the usual way, which does not copy them."""
_FRAMES_MAX = 256
_HEAD = struct.Struct(">ihhih")
_HEAD_BYTES = _HEAD.size - 4
_PROBE = memoryview(b"?")


class Frame:
    """What stands around a batch in a request with nothing else: encoded once by the codec, and cut there."""

    __slots__ = ("_after", "_before", "_client_id_bytes", "_size", "connection", "topic_id", "version")

    def __init__(self, connection: Connection, request: ProduceRequest, version: int, topic_id: bytes) -> None:
        """`request` has `_PROBE` for its records; its version must have flexible fields."""
        self.connection = connection
        self.topic_id = topic_id
        self.version = version
        client_id = None if connection.client_id is None else connection.client_id.encode()
        parts = encode_parts(request, version)
        at = next(index for index, part in enumerate(parts) if part is _PROBE)
        body = b"".join(parts[:at])
        if not body.endswith(UVARINT[len(_PROBE) + 1]):
            raise AssertionError(f"Produce v{version} has no length before its records")
        # An empty list of tagged fields stands between the header and the body.
        self._before = (client_id or b"") + b"\0" + body[:-1]
        self._after = b"".join(parts[at + 1 :])
        self._client_id_bytes = -1 if client_id is None else len(client_id)
        self._size = _HEAD_BYTES + len(self._before) + len(self._after)

    def around(self, batch: bytes | bytearray, correlation_id: int) -> bytes:
        count = uvarint(len(batch) + 1)
        size = self._size + len(count) + len(batch)
        head = _HEAD.pack(size, 0, self.version, correlation_id, self._client_id_bytes)
        return b"".join((head, self._before, count, batch, self._after))


class OneRecord:
    """Sends a record when there is nothing else to do for its producer."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core
        self._accumulator = core.accumulator
        self._settings = settings = core.settings
        self._is_plain = settings.codec is Codec.NONE and settings.transactional_id is None
        self._bytes_max = min(_BYTES_MAX, settings.max_request_size - HEADER_BYTES)
        # For its name and its schema, should the call fail: what it would carry is in the batch.
        self._request = self._new_request([])
        self._frames: dict[tuple[str, int], Frame] = {}

    def send(self, delivery: Delivery) -> Call | None:
        """Send the first record that is pending, without waiting, connecting or telling anybody anything.

        The call that it went with; None when it takes a turn of the core to send it.
        """
        core = self._core
        if not core.can_send_one:
            return None
        now = core.core.clock.monotonic()
        if self._is_plain and (call := self._send_alone(delivery, now)) is not None:
            return call
        before = core.last_call
        self._accumulator.drain(now, core.core.clock.now_ms(), now, rows_max=1)
        if self._accumulator.active:
            core.send_pass(now, may_connect=False)
        last = core.last_call
        return last if last is not None and last is not before and last.was_sent and not last.done else None

    def _send_alone(self, delivery: Delivery, now: float) -> Call | None:
        topic, value, key, partition, timestamp, headers, _, _ = delivery
        core, accumulator = self._core, self._accumulator
        view = core.core.view.topics.get(topic)
        if headers is not None or view is None or not view.partitions or topic not in accumulator.used_topics:
            return None
        size = RECORD_OVERHEAD_BYTES + (0 if value is None else len(value)) + (0 if key is None else len(key))
        if size > self._bytes_max:
            return None
        is_sticky = partition is None and (key is None or self._settings.ignore_keys)
        if is_sticky:
            partition = accumulator.sticky_partition(view)
        elif partition is None:
            partition = partition_for_key(key, len(view.partitions))
        leader = core.core.view.leader_of(topic, partition)
        connection = None if leader is None else core.core.resting_connection(leader.id)
        frame = None if connection is None else self._frame(connection, topic, view.topic_id, partition)
        queue = accumulator.queue(topic, partition)
        if connection is None or frame is None or queue.sequences.assigned:
            return None
        if timestamp is None:
            timestamp = core.core.clock.now_ms()
        batch = ProducerBatch(core.sender, topic, partition, now)
        if self._settings.idempotent:
            batch.identify(*queue.sequences.following(core.identity))
        try:
            encoded = batch.encoded = build_one(
                timestamp, key, value, batch.producer_id, batch.producer_epoch, batch.sequence
            )
        except Exception:  # noqa: BLE001 - by the usual way the record fails, and says why
            return None
        if not accumulator.take_first(delivery):
            return None
        # From here on nothing can fail: the record is out of `pending`, and its number is taken.
        batch.take_one(delivery, key, value, timestamp, size)
        if self._settings.idempotent:
            queue.sequences.assign(batch)
        accumulator.began(queue, batch)
        accumulator.used_topics[topic] = now
        if is_sticky:
            accumulator.sticky_took(view, size)
        core.metrics.batch_sent(batch, len(encoded), now)
        core.metrics.request_sent()
        number = connection.next_number()
        parts: list[Buffer] = [frame.around(encoded, number)]
        names = {frame.topic_id: topic}
        # Should the socket fail on the spot, that is reported later.
        return core.core.send_frame(
            connection,
            self._request,
            (frame.version, number, parts),
            lambda call: core.answered(call, [batch], names),
            now,
        )

    def _frame(self, connection: Connection, topic: str, topic_id: bytes, partition: int) -> Frame | None:
        found = self._frames.get((topic, partition))
        if found is not None and found.connection is connection and found.topic_id == topic_id:
            return found
        if found is not None or len(self._frames) >= _FRAMES_MAX:
            # A new connection, or a new topic of the same name: frames would keep what is gone alive.
            self._frames.clear()
        data = PartitionProduceData(index=partition, records=_PROBE)
        request = self._new_request([TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])])
        try:
            version = connection.pick_version(request, VERSION_BY_NAME_MAX if topic_id == ZERO_UUID else None)
        except UnsupportedVersionError:
            return None
        if not has_flexible_header(ProduceRequest, version):
            return None
        found = self._frames[topic, partition] = Frame(connection, request, version, topic_id)
        return found

    def _new_request(self, topics: list[TopicProduceData]) -> ProduceRequest:
        settings = self._settings
        return ProduceRequest(
            transactional_id=None, acks=settings.acks, timeout_ms=settings.request_timeout_ms, topic_data=topics
        )
