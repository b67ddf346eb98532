"""The producer's configuration: Kafka 4.3's keys with their defaults, and what follows from several together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.configs import SCHEMA_SETTINGS, common_keys, key, read_config
from headrace.client.other_names import in_kafkas_words
from headrace.config import (
    NO_DEFAULT,
    ConfigDefinition,
    ConfigError,
    ConfigKey,
    ConfigType,
    any_of,
    at_least,
    between,
    non_empty,
    one_of,
)
from headrace.net.backoff import Backoff
from headrace.records import Codec

_STRING, _INT, _LONG, _LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.LIST
_BOOLEAN, _CLASS = ConfigType.BOOLEAN, ConfigType.CLASS
_INT32_MAX = 2_147_483_647
_IDEMPOTENT_IN_FLIGHT_MAX = 5

PRODUCER_KEYS = (
    *common_keys(receive_buffer_bytes=32_768),
    key(
        "buffer.memory",
        _LONG,
        33_554_432,
        at_least(0),
        doc="Bytes of records that wait to be sent; when it is full, send waits or is refused.",
    ),
    key(
        "retries",
        _INT,
        _INT32_MAX,
        between(0, _INT32_MAX),
        doc="How often a request is sent again; delivery.timeout.ms ends it in any case.",
    ),
    key(
        "acks",
        _STRING,
        "all",
        one_of("all", "-1", "0", "1"),
        "all (-1): every in-sync replica has it; 1: the leader has it; 0: no answer is waited for.",
    ),
    key(
        "compression.type",
        _STRING,
        "none",
        one_of("none", "gzip", "snappy", "lz4", "zstd"),
        doc="How batches are compressed.",
    ),
    key("compression.gzip.level", _INT, -1, any_of(between(1, 9), one_of(-1)), doc="-1: the library's own."),
    key("compression.lz4.level", _INT, 9, between(1, 17), doc="Higher is smaller and slower."),
    key("compression.zstd.level", _INT, 3, between(-131_072, 22), doc="Higher is smaller and slower."),
    key("batch.size", _INT, 16_384, at_least(0), doc="Bytes of a partition's records that make a batch full."),
    key(
        "partitioner.adaptive.partitioning.enable",
        _BOOLEAN,
        True,
        doc="Records without a key go less to partitions whose queue is long.",
    ),
    key(
        "partitioner.availability.timeout.ms",
        _LONG,
        0,
        at_least(0),
        doc="Records without a key avoid a partition that could not be sent to for so long; 0: they do not.",
    ),
    key("partitioner.ignore.keys", _BOOLEAN, False, doc="Keys do not decide the partition."),
    key("partitioner.class", _CLASS, None, doc="A class or an object that chooses partitions; None: Kafka's own way."),
    key("linger.ms", _LONG, 5, at_least(0), doc="How long a batch that is not full waits for more records."),
    key(
        "delivery.timeout.ms",
        _INT,
        120_000,
        at_least(0),
        doc="How long a record may take from send to its acknowledgement.",
    ),
    key("max.request.size", _INT, 1_048_576, at_least(0), doc="The largest request, and so the largest record."),
    key(
        "max.block.ms",
        _LONG,
        60_000,
        at_least(0),
        doc="How long send may wait for a topic's metadata or for memory, and transactional calls for their answer.",
    ),
    key(
        "metadata.max.idle.ms",
        _LONG,
        300_000,
        at_least(5000),
        doc="Forget a topic that nothing was sent to for so long.",
    ),
    key(
        "max.in.flight.requests.per.connection",
        _INT,
        5,
        at_least(1),
        doc="Requests that are under way to a broker at once.",
    ),
    # Java demands both; here plain bytes need no serializer.
    key(
        "key.serializer",
        _CLASS,
        None,
        doc="Makes bytes of keys: bytes, string, json, int, float …, a class or an object. None: bytes.",
    ),
    key("value.serializer", _CLASS, None, doc="Makes bytes of values, in the same way."),
    key(
        "interceptor.classes",
        _LIST,
        (),
        doc="Objects or names of classes with on_send(record) and on_acknowledgement(metadata, error).",
    ),
    key("enable.idempotence", _BOOLEAN, True, doc="A record that is sent again is written once, and order holds."),
    key(
        "transactional.id",
        _STRING,
        None,
        non_empty(),
        doc="Names this producer across restarts; needed for transactions.",
    ),
    key("transaction.timeout.ms", _INT, 60_000, doc="A transaction that is open for longer is aborted by the broker."),
    key(
        "transaction.two.phase.commit.enable",
        _BOOLEAN,
        False,
        doc="Refused: two-phase commit (KIP-939) is not done here.",
    ),
)
PRODUCER_CONFIGS = ConfigDefinition(PRODUCER_KEYS)

# Read by the serializers themselves.
_EXTRA = ("key.serializer.", "value.serializer.", "serializer.", *SCHEMA_SETTINGS)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """What the producer's core needs to know, in its own types. Sizes in bytes, times in seconds where not said."""

    acks: int
    idempotent: bool
    batch_size: int
    linger_s: float
    delivery_timeout_s: float
    delivery_timeout_ms: int
    request_timeout_ms: int
    max_block_ms: int
    buffer_memory: int
    max_request_size: int
    in_flight_max: int
    retries: int
    retry_backoff: Backoff
    codec: Codec
    level: int | None
    ignore_keys: bool
    adaptive: bool
    availability_timeout_s: float
    metadata_idle_s: float
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ProducerSettings:
        codec = Codec[values["compression.type"].upper()]
        level_key = f"compression.{values['compression.type']}.level"
        return cls(
            acks={"all": -1, "-1": -1, "0": 0, "1": 1}[values["acks"]],
            idempotent=values["enable.idempotence"],
            batch_size=values["batch.size"],
            linger_s=values["linger.ms"] / 1000,
            delivery_timeout_s=values["delivery.timeout.ms"] / 1000,
            delivery_timeout_ms=values["delivery.timeout.ms"],
            request_timeout_ms=values["request.timeout.ms"],
            max_block_ms=values["max.block.ms"],
            buffer_memory=values["buffer.memory"],
            max_request_size=values["max.request.size"],
            in_flight_max=values["max.in.flight.requests.per.connection"],
            retries=values["retries"],
            retry_backoff=Backoff(values["retry.backoff.ms"], values["retry.backoff.max.ms"]),
            codec=codec,
            level=values.get(level_key),
            ignore_keys=values["partitioner.ignore.keys"],
            adaptive=values["partitioner.adaptive.partitioning.enable"],
            availability_timeout_s=values["partitioner.availability.timeout.ms"] / 1000,
            metadata_idle_s=values["metadata.max.idle.ms"] / 1000,
            transactional_id=values["transactional.id"],
            transaction_timeout_ms=values["transaction.timeout.ms"],
        )


def read_producer_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """Typed values, with Kafka's rules for keys that depend on one another."""
    given = _with_level(in_kafkas_words(given, PRODUCER_CONFIGS))
    # Numbers are natural for acks; Kafka has it as text.
    if isinstance(given.get("acks"), int) and not isinstance(given.get("acks"), bool):
        given = {**given, "acks": str(given["acks"])}
    values = read_config(PRODUCER_CONFIGS, given, extra=_EXTRA)
    problems: dict[str, str] = {}
    _check_idempotence(values, given, problems)
    _check_timeouts(values, given, problems)
    _check_transactions(values, given, problems)
    if problems:
        raise ConfigError(problems)
    return values


def _with_level(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """librdkafka has one level for whatever codec there is; Kafka has one for each that has levels."""
    if "compression.level" not in given:
        return given
    codec, level = given.get("compression.type", "none"), given["compression.level"]
    name = f"compression.{codec}.level"
    if name in given:
        raise ConfigError({name: f"compression.level and {name} are the same configuration; give only one of them"})
    rest = {key: value for key, value in given.items() if key != "compression.level"}
    # As in librdkafka: -1 is the codec's own, and a codec without levels takes no notice.
    return rest if str(level) == "-1" or name not in PRODUCER_CONFIGS else {**rest, name: level}


def _check_idempotence(values: dict[str, Any], given: Mapping[str, Any], problems: dict[str, str]) -> None:
    """Settings that idempotence cannot work with turn it off, unless it was asked for: then they are refused."""
    conflicts = []
    if values["retries"] == 0:
        conflicts.append("retries must be greater than 0")
    if values["acks"] not in ("all", "-1"):
        conflicts.append("acks must be all")
    in_flight = values["max.in.flight.requests.per.connection"]
    if in_flight > _IDEMPOTENT_IN_FLIGHT_MAX:
        conflicts.append(f"max.in.flight.requests.per.connection must be at most {_IDEMPOTENT_IN_FLIGHT_MAX}")
    if not conflicts or not values["enable.idempotence"]:
        return
    # As in Kafka: more than five in flight is refused even when idempotence is only the default.
    if "enable.idempotence" in given or in_flight > _IDEMPOTENT_IN_FLIGHT_MAX:
        problems["enable.idempotence"] = f"with enable.idempotence, {' and '.join(conflicts)}; or set it to false"
    else:
        values["enable.idempotence"] = False


def _check_transactions(values: dict[str, Any], given: Mapping[str, Any], problems: dict[str, str]) -> None:
    if values["transactional.id"] is not None and not values["enable.idempotence"]:
        problems["transactional.id"] = (
            "transactions need an idempotent producer: with transactional.id leave enable.idempotence on, acks all and "
            "retries above 0"
        )
    if values["transaction.two.phase.commit.enable"]:
        problems["transaction.two.phase.commit.enable"] = (
            "two-phase commit (KIP-939) is not supported: leave transaction.two.phase.commit.enable out"
        )


def _check_timeouts(values: dict[str, Any], given: Mapping[str, Any], problems: dict[str, str]) -> None:
    least = min(values["linger.ms"] + values["request.timeout.ms"], _INT32_MAX)
    if values["delivery.timeout.ms"] >= least:
        return
    if "delivery.timeout.ms" in given:
        problems["delivery.timeout.ms"] = (
            f"delivery.timeout.ms={values['delivery.timeout.ms']} is less than linger.ms + request.timeout.ms = {least}"
        )
    else:
        values["delivery.timeout.ms"] = least


__all__ = ["NO_DEFAULT", "PRODUCER_CONFIGS", "ConfigKey", "ProducerSettings", "read_producer_config"]
