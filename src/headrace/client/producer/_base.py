"""What both producers share: construction, serializing, interceptors, and the shape of a record."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any, NamedTuple, cast

from headrace.client.arguments import whole_number
from headrace.client.configs import ConnectionConfig, merge
from headrace.client.errors import SerializationError
from headrace.client.producer._failures import InterceptedCallback
from headrace.client.producer._rows import ColumnRows, Rows, is_text
from headrace.client.producer.config import ProducerSettings, read_producer_config
from headrace.client.producer.delivery import BatchDelivery, HeaderList, RecordMetadata
from headrace.client.producer.partitioners import make_partitioner
from headrace.client.serializers import load, make_serializer
from headrace.config import ConfigError, check_plain_setting
from headrace.errors import HeadraceError
from headrace.functions import check_has_run
from headrace.late_imports import late_import
from headrace.records import kernels

log = logging.getLogger("headrace.client.producer")

_counter = itertools.count(1)
_COLUMNS_FROM_ROWS = 1_000
_COLUMNS_FROM_BATCHES = 4
_SAMPLED_ROWS = 100
_PARTITION_MAX = 2**31 - 1
_TIMESTAMP_MAX = 2**63 - 1


class ProducerRecord(NamedTuple):
    """A record as interceptors see it, before it is serialized."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp: int | None = None
    headers: HeaderList | None = None


class ProducerSetup:
    """A producer's configuration, read; and the objects that it names."""

    def __init__(self, config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> None:
        given = merge(config, keywords)
        self.values = read_producer_config(given)
        if not self.values["client.id"]:
            self.values["client.id"] = f"producer-{next(_counter)}"
        self.settings = ProducerSettings.of(self.values)
        self.connection = ConnectionConfig.of(self.values)
        whole = {**given, **self.values}
        self.key_serializer = make_serializer(self.values["key.serializer"], whole, is_key=True)
        self.value_serializer = make_serializer(self.values["value.serializer"], whole, is_key=False)
        self.partitioner = make_partitioner(self.values["partitioner.class"], whole)
        self.interceptors = [_interceptor(given, whole) for given in self.values["interceptor.classes"]]

    @property
    def is_plain(self) -> bool:
        """Whether records go through as they are given."""
        return self.key_serializer is None and self.value_serializer is None and not self.interceptors

    def close(self) -> None:
        for made in (self.key_serializer, self.value_serializer, self.partitioner, *self.interceptors):
            end = getattr(made, "close", None)
            if end is not None:
                try:
                    end()
                except Exception:
                    log.exception("%s could not be closed", type(made).__name__)

    def convert(self, record: ProducerRecord, callback: Callable[..., Any] | None) -> tuple[ProducerRecord, Any]:
        """Interceptors, then serializers: the record as bytes, and the callback that tells interceptors too."""
        for interceptor in self.interceptors:
            try:
                changed = interceptor.on_send(record)
            except Exception:
                log.exception("an interceptor's on_send raised; the record goes on as it was")
                continue
            record = record if changed is None else changed
        key, value, topic = record.key, record.value, record.topic
        if key is not None and self.key_serializer is not None:
            key = self._serialize(self.key_serializer, topic, key, "key")
        if value is not None and self.value_serializer is not None:
            value = self._serialize(self.value_serializer, topic, value, "value")
        return record._replace(key=key, value=value), self._callback(callback)

    @staticmethod
    def _serialize(serializer: Any, topic: str, data: Any, what: str) -> bytes | None:
        try:
            made = serializer.serialize(topic, data)
        except SerializationError:
            raise
        except Exception as error:
            raise SerializationError(
                f"the {what} of a record for {topic} ({type(data).__name__}) could not be serialized: {error!r}"
            ) from error
        if made is not None and not isinstance(made, (bytes, bytearray, memoryview)):
            raise SerializationError(
                f"the {what} serializer gave {type(made).__name__} for {topic}; it has to give bytes"
            )
        return None if made is None else bytes(made)

    def _callback(self, callback: Callable[..., Any] | None) -> Any:
        if not self.interceptors:
            return callback
        interceptors = self.interceptors

        def tell(error: HeadraceError | None, metadata: RecordMetadata) -> None:
            for interceptor in interceptors:
                try:
                    check_has_run(
                        interceptor.on_acknowledgement(metadata, error), "an interceptor's on_acknowledgement"
                    )
                except Exception:
                    log.exception("an interceptor's on_acknowledgement raised")

        return InterceptedCallback(tell, callback)


def _interceptor(given: Any, config: Mapping[str, Any]) -> Any:
    made = load(given, "interceptor.classes", {}) if isinstance(given, str) else given
    if isinstance(made, type):
        made = made()
    for method in ("on_send", "on_acknowledgement"):
        if not callable(getattr(made, method, None)):
            raise ConfigError({"interceptor.classes": f"interceptor {given!r} has no method {method}"})
        check_plain_setting("interceptor.classes", getattr(made, method), method)
    if hasattr(made, "configure"):
        made.configure(config)
    return made


def as_bytes(data: Any, what: str, topic: str) -> bytes | None:
    """What was given for a key or value, as bytes that will not change."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise SerializationError(
        f"the {what} of a record for {topic} is {type(data).__name__}, not bytes: encode it, or set {what}.serializer "
        "(string, json, int, float, or an object of your own)"
    )


def as_headers(headers: Any, topic: str) -> HeaderList:
    """Headers as pairs of name and bytes, from pairs or a mapping; text values are UTF-8."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    made: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        name, value = pair
        if not isinstance(name, str):
            raise SerializationError(f"a header of a record for {topic} has the name {name!r}, which is not text")
        made.append((name, value.encode() if isinstance(value, str) else as_bytes(value, "header", topic)))
    return made


def check_record(topic: Any, partition: Any, timestamp: Any) -> tuple[int | None, int | None]:
    """Refuse what no broker could take. Partition and timestamp as Python's own integers, also where numpy's came."""
    if not isinstance(topic, str) or not topic or not (topic.isascii() or is_text(topic)):
        raise ValueError(f"a record needs the name of a topic, not {topic!r}")
    place = stamp = None
    if partition is not None:
        place = whole_number(partition)
        if place is None or not 0 <= place <= _PARTITION_MAX:
            raise ValueError(f"partition {partition!r} of a record for {topic} is not a partition number")
    if timestamp is not None:
        stamp = whole_number(timestamp)
        if stamp is None or not 0 <= stamp <= _TIMESTAMP_MAX:
            raise ValueError(f"timestamp {timestamp!r} of a record for {topic} is not in milliseconds since 1970")
    return place, stamp


def _numbers(given: Any, count: int, largest: int, what: str) -> list[int | None]:
    """A column of numbers (one for all, a list, or an array) as integers and None, checked."""
    one = whole_number(given)
    if one is not None:
        return [one] * count
    numbers = given.tolist() if hasattr(given, "tolist") else list(given)
    if len(numbers) != count:
        raise ValueError(f"{len(numbers)} {what}s for {count} values")
    if set(map(type, numbers)) - {int, type(None)}:
        for row, number in enumerate(numbers):
            if number is not None and (not hasattr(number, "__index__") or isinstance(number, bool)):
                raise ValueError(f"a {what} is {type(number).__name__}, not an integer")
            numbers[row] = None if number is None else index(number)
    told = [number for number in numbers if number is not None]
    if told and not 0 <= min(told) <= max(told) <= largest:
        wrong = next(number for number in told if not 0 <= number <= largest)
        raise ValueError(f"{wrong} is not a {what}")
    return numbers


def rows_of(
    setup: ProducerSetup,
    delivery: BatchDelivery,
    topic: str,
    values: Sequence[Any],
    keys: Sequence[Any] | None,
    partition: int | Sequence[int | None] | None,
    timestamps: int | Sequence[int | None] | None,
    headers: Sequence[Any] | None,
) -> Rows:
    """Many records, given as columns, checked and serialized."""
    count = len(values)
    for name, column in (("keys", keys), ("headers", headers)):
        if column is not None and len(column) != count:
            raise ValueError(f"{len(column)} {name} for {count} values")
    partitions = None if partition is None else _numbers(partition, count, _PARTITION_MAX, "partition")
    stamps = [None] * count if timestamps is None else _numbers(timestamps, count, _TIMESTAMP_MAX, "timestamp")
    if setup.value_serializer is not None:
        serializer = setup.value_serializer
        values = [None if v is None else setup._serialize(serializer, topic, v, "value") for v in values]
    if keys is not None and setup.key_serializer is not None:
        key_serializer = setup.key_serializer
        keys = [None if k is None else setup._serialize(key_serializer, topic, k, "key") for k in keys]
    return Rows(
        delivery,
        topic,
        _bytes_list(values, "value", topic),
        [None] * count if keys is None else _bytes_list(keys, "key", topic),
        partitions,
        stamps,
        None if headers is None else [None if h is None else as_headers(h, topic) for h in headers],
    )


def _bytes_list(data: Sequence[Any], what: str, topic: str) -> Sequence[bytes | None]:
    if set(map(type, data)) <= {bytes, type(None)}:
        # The records are taken out of it later: what happens to the caller's list until then is no matter.
        return data if isinstance(data, tuple) else list(data)
    return [as_bytes(one, what, topic) for one in data]


def payload_bytes(rows: Rows | ColumnRows) -> int:
    """How much a submission counts against `buffer.memory`."""
    if isinstance(rows, ColumnRows):
        return rows.payload_bytes
    return _total(rows.keys) + _total(rows.values)


def _total(rows: Sequence[bytes | None]) -> int:
    nulls = rows.count(None)
    if nulls == len(rows):
        return 0
    return sum(len(row) for row in rows if row is not None) if nulls else sum(map(len, cast("Sequence[bytes]", rows)))


def batch_rows(
    setup: ProducerSetup,
    delivery: BatchDelivery,
    topic: str,
    values: Sequence[Any],
    keys: Sequence[Any] | None,
    partition: int | Sequence[int | None] | None,
    timestamps: int | Sequence[int | None] | None,
    headers: Sequence[Any] | None,
    now_ms: int,
) -> Rows | ColumnRows:
    """What `send_batch` was given: as columns where that can be, else as rows."""
    if partition is None and timestamps is None and headers is None:
        made = _columns_of(setup, delivery, topic, values, keys, now_ms)
        if made is not None:
            return made
    return rows_of(setup, delivery, topic, values, keys, partition, timestamps, headers)


def _columns_of(
    setup: ProducerSetup,
    delivery: BatchDelivery,
    topic: str,
    values: Sequence[Any],
    keys: Sequence[Any] | None,
    now_ms: int,
) -> ColumnRows | None:
    """Many records straight into columns, where that changes nothing but the time it takes; else None.

    That is: bytes already, enough of them to fill batches of their own, nothing to be asked or looked at row by row,
    and the compiled kernels are there.
    """
    if not setup.is_plain or setup.partitioner is not None or len(values) < _COLUMNS_FROM_ROWS:
        return None
    if (keys is not None and len(keys) != len(values)) or not isinstance(values, (list, tuple)):
        return None
    if kernels.choose(len(values)) is kernels.PLAIN:
        return None
    sample = values[:: max(1, len(values) // _SAMPLED_ROWS)]
    average = sum(len(value) for value in sample if type(value) is bytes) / len(sample)
    if average * len(values) < _COLUMNS_FROM_BATCHES * setup.settings.batch_size:
        # Columns make batches of their own: a few records are better put with what else is on its way.
        return None
    listed_rows = late_import("headrace.client.producer._listed_rows").listed_rows
    made: ColumnRows | None = listed_rows(delivery, topic, list(values), keys, setup.settings.ignore_keys, now_ms)
    return made
