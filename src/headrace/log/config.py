"""The configs of a topic as Apache Kafka 4.3 has them, and the values in effect for one log."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from headrace.config import (
    INT32_MAX,
    INT64_MAX,
    ConfigDefinition,
    ConfigError,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Importance,
    RawValue,
    Synonym,
    at_least,
    between,
    list_of,
    one_of,
    parse_value,
)
from headrace.config import Check as _Check
from headrace.records import Codec, TimestampType
from headrace.records.compression import LEVELS

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
_MIB: Final = 1024 * 1024

_THROTTLED: Final = _Check(
    "* or a list of partition:broker",
    lambda value: (
        isinstance(value, tuple) and (value == ("*",) or all(_is_partition_and_broker(element) for element in value))
    ),
)


def _is_partition_and_broker(element: str) -> bool:
    partition, colon, broker = element.partition(":")
    return colon == ":" and partition.isdigit() and broker.isdigit()


def _level(codec: Codec) -> tuple[int, _Check]:
    low, high, default = LEVELS[codec]
    if low <= default <= high:
        return default, between(low, high)
    allowed = f"between {low} and {high}, or {default}"
    return default, _Check(allowed, lambda value: isinstance(value, int) and (low <= value <= high or value == default))


def _key(
    name: str,
    kind: ConfigType,
    default: ConfigValue,
    check: _Check | None,
    synonyms: tuple[Synonym, ...],
    doc: str,
    importance: Importance = Importance.MEDIUM,
) -> ConfigKey:
    return ConfigKey(name, kind, default, check, doc, importance, synonyms=synonyms)


def _same(name: str) -> tuple[Synonym, ...]:
    return (Synonym(name),)


_gzip_default, _gzip_check = _level(Codec.GZIP)
_lz4_default, _lz4_check = _level(Codec.LZ4)
_zstd_default, _zstd_check = _level(Codec.ZSTD)

_KEYS: Final = (
    _key("cleanup.policy", ConfigType.LIST, ("delete",), list_of("compact", "delete"), _same("log.cleanup.policy"),
         "What happens to old records: whole segments are deleted, the last value per key is kept, or both."),
    _key("compression.gzip.level", ConfigType.INT, _gzip_default, _gzip_check, _same("compression.gzip.level"),
         "The level used when the broker compresses with gzip; -1 is zlib's own default."),
    _key("compression.lz4.level", ConfigType.INT, _lz4_default, _lz4_check, _same("compression.lz4.level"),
         "The level used when the broker compresses with lz4."),
    _key("compression.type", ConfigType.STRING, "producer",
         one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), _same("compression.type"),
         "The codec records are stored with; producer keeps what the producer chose."),
    _key("compression.zstd.level", ConfigType.INT, _zstd_default, _zstd_check, _same("compression.zstd.level"),
         "The level used when the broker compresses with zstd."),
    _key("delete.retention.ms", ConfigType.LONG, _DAY_MS, at_least(0), _same("log.cleaner.delete.retention.ms"),
         "How long a tombstone stays in a compacted topic, so that readers can see it."),
    _key("file.delete.delay.ms", ConfigType.LONG, _MINUTE_MS, at_least(0), _same("log.segment.delete.delay.ms"),
         "How long a deleted segment's files stay on disk under another name."),
    _key("flush.messages", ConfigType.LONG, INT64_MAX, at_least(1), _same("log.flush.interval.messages"),
         "Sync the log after this many records; 1 syncs before every acknowledgement."),
    _key("flush.ms", ConfigType.LONG, INT64_MAX, at_least(0),
         (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
         "Sync the log when records have waited this long."),
    _key("follower.replication.throttled.replicas", ConfigType.LIST, (), _THROTTLED, (),
         "Replicas whose followers are throttled, as partition:broker, or * for all."),
    _key("index.interval.bytes", ConfigType.INT, 4096, at_least(0), _same("log.index.interval.bytes"),
         "How many bytes of log lie between two entries of the offset index."),
    _key("leader.replication.throttled.replicas", ConfigType.LIST, (), _THROTTLED, (),
         "Replicas whose leaders are throttled, as partition:broker, or * for all."),
    _key("local.retention.bytes", ConfigType.LONG, -2, at_least(-2), _same("log.local.retention.bytes"),
         "Local size limit of a tiered topic; -2 means retention.bytes. Tiered storage is not supported."),
    _key("local.retention.ms", ConfigType.LONG, -2, at_least(-2), _same("log.local.retention.ms"),
         "Local age limit of a tiered topic; -2 means retention.ms. Tiered storage is not supported."),
    _key("max.compaction.lag.ms", ConfigType.LONG, INT64_MAX, at_least(1), _same("log.cleaner.max.compaction.lag.ms"),
         "The longest a record may stay uncompacted."),
    _key("max.message.bytes", ConfigType.INT, _MIB + 12, at_least(0), _same("message.max.bytes"),
         "The largest batch that is accepted, as it is sent (compressed, with its header)."),
    _key("message.timestamp.after.max.ms", ConfigType.LONG, _HOUR_MS, at_least(0),
         _same("log.message.timestamp.after.max.ms"),
         "How far a record's timestamp may lie after the broker's clock."),
    _key("message.timestamp.before.max.ms", ConfigType.LONG, INT64_MAX, at_least(0),
         _same("log.message.timestamp.before.max.ms"),
         "How far a record's timestamp may lie before the broker's clock."),
    _key("message.timestamp.type", ConfigType.STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
         _same("log.message.timestamp.type"), "Who stamps a record: the producer, or the broker when it appends."),
    _key("min.cleanable.dirty.ratio", ConfigType.DOUBLE, 0.5, between(0, 1), _same("log.cleaner.min.cleanable.ratio"),
         "The uncompacted share of a log at which compaction begins."),
    _key("min.compaction.lag.ms", ConfigType.LONG, 0, at_least(0), _same("log.cleaner.min.compaction.lag.ms"),
         "How long a record stays uncompacted at least."),
    _key("min.insync.replicas", ConfigType.INT, 1, at_least(1), _same("min.insync.replicas"),
         "How many replicas must have a record before acks=all is answered."),
    _key("preallocate", ConfigType.BOOLEAN, False, None, _same("log.preallocate"),
         "Whether a new segment's file is made at full size."),
    _key("remote.log.copy.disable", ConfigType.BOOLEAN, False, None, (), "Tiered storage is not supported."),
    _key("remote.log.delete.on.disable", ConfigType.BOOLEAN, False, None, (), "Tiered storage is not supported."),
    _key("remote.storage.enable", ConfigType.BOOLEAN, False, None, (), "Tiered storage is not supported."),
    _key("retention.bytes", ConfigType.LONG, -1, None, _same("log.retention.bytes"),
         "The size at which a partition's oldest segments are deleted; -1 is no limit."),
    _key("retention.ms", ConfigType.LONG, 7 * _DAY_MS, at_least(-1),
         (Synonym("log.retention.ms"), Synonym("log.retention.minutes", _MINUTE_MS),
          Synonym("log.retention.hours", _HOUR_MS)),
         "The age at which a partition's oldest segments are deleted; -1 is no limit."),
    _key("segment.bytes", ConfigType.INT, 1024 * _MIB, at_least(_MIB), _same("log.segment.bytes"),
         "The size at which a new segment begins."),
    _key("segment.index.bytes", ConfigType.INT, 10 * _MIB, at_least(4), _same("log.index.size.max.bytes"),
         "The size of a segment's index at which a new segment begins."),
    _key("segment.jitter.ms", ConfigType.LONG, 0, at_least(0),
         (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS)),
         "Up to this much is taken off segment.ms at random, so that segments do not all end at once."),
    _key("segment.ms", ConfigType.LONG, 7 * _DAY_MS, at_least(1),
         (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
         "The span of record timestamps after which a new segment begins."),
    _key("unclean.leader.election.enable", ConfigType.BOOLEAN, False, None, _same("unclean.leader.election.enable"),
         "Whether a replica that is out of sync may become leader as a last resort, losing records."),
)  # fmt: skip

TOPIC_CONFIGS: Final = ConfigDefinition(_KEYS)

_CODEC_OF: Final = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

V = TypeVar("V", bool, int, float, str)


@dataclass(slots=True, frozen=True, kw_only=True)
class LogConfig:
    """The values in effect for one log. `codec` None keeps the producer's."""

    compact: bool = False
    delete: bool = True
    codec: Codec | None = None
    gzip_level: int = _gzip_default
    lz4_level: int = _lz4_default
    zstd_level: int = _zstd_default
    delete_retention_ms: int = _DAY_MS
    file_delete_delay_ms: int = _MINUTE_MS
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = INT64_MAX
    max_message_bytes: int = _MIB + 12
    timestamp_after_max_ms: int = _HOUR_MS
    timestamp_before_max_ms: int = INT64_MAX
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    retention_bytes: int = -1
    retention_ms: int = 7 * _DAY_MS
    segment_bytes: int = 1024 * _MIB
    segment_index_bytes: int = 10 * _MIB
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * _DAY_MS
    #: Whether an uncompressed batch that is consistent in itself is taken as it is: no rule here is about its records.
    takes_as_is: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        takes_as_is = (
            not self.compact
            and self.codec in (None, Codec.NONE)
            and self.timestamp_type is TimestampType.CREATE_TIME
            and self.timestamp_before_max_ms == INT64_MAX
        )
        object.__setattr__(self, "takes_as_is", takes_as_is)

    @property
    def segment_age_max_ms(self) -> int:
        """A compacted log must end segments in time for `max.compaction.lag.ms`: the active one is never compacted."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    def compression_level(self, codec: Codec) -> int | None:
        return {Codec.GZIP: self.gzip_level, Codec.LZ4: self.lz4_level, Codec.ZSTD: self.zstd_level}.get(codec)

    def jitter_ms(self, rng: random.Random) -> int:
        """How much earlier than `segment.ms` one segment ends."""
        if self.segment_jitter_ms == 0:
            return 0
        return rng.randrange(min(self.segment_jitter_ms, max(self.segment_ms, 1)))

    @classmethod
    def of(cls, values: Mapping[str, ConfigValue]) -> LogConfig:
        """From parsed topic configs (`TOPIC_CONFIGS.parse`); a key that is missing has its default."""
        known = {**TOPIC_CONFIGS.defaults(), **values}
        policy = known["cleanup.policy"]
        if not isinstance(policy, tuple):
            raise TypeError(f"cleanup.policy must be parsed to a tuple, not {policy!r}")
        return cls(
            compact="compact" in policy,
            delete="delete" in policy,
            codec=_CODEC_OF[_typed(known, "compression.type", str)],
            gzip_level=_typed(known, "compression.gzip.level", int),
            lz4_level=_typed(known, "compression.lz4.level", int),
            zstd_level=_typed(known, "compression.zstd.level", int),
            delete_retention_ms=_typed(known, "delete.retention.ms", int),
            file_delete_delay_ms=_typed(known, "file.delete.delay.ms", int),
            flush_messages=_typed(known, "flush.messages", int),
            flush_ms=_typed(known, "flush.ms", int),
            index_interval_bytes=_typed(known, "index.interval.bytes", int),
            max_compaction_lag_ms=_typed(known, "max.compaction.lag.ms", int),
            max_message_bytes=_typed(known, "max.message.bytes", int),
            timestamp_after_max_ms=_typed(known, "message.timestamp.after.max.ms", int),
            timestamp_before_max_ms=_typed(known, "message.timestamp.before.max.ms", int),
            timestamp_type=_timestamp_type(_typed(known, "message.timestamp.type", str)),
            min_cleanable_dirty_ratio=_typed(known, "min.cleanable.dirty.ratio", float),
            min_compaction_lag_ms=_typed(known, "min.compaction.lag.ms", int),
            min_insync_replicas=_typed(known, "min.insync.replicas", int),
            retention_bytes=_typed(known, "retention.bytes", int),
            retention_ms=_typed(known, "retention.ms", int),
            segment_bytes=_typed(known, "segment.bytes", int),
            segment_index_bytes=_typed(known, "segment.index.bytes", int),
            segment_jitter_ms=_typed(known, "segment.jitter.ms", int),
            segment_ms=_typed(known, "segment.ms", int),
        )


def _timestamp_type(name: str) -> TimestampType:
    return TimestampType.LOG_APPEND_TIME if name == "LogAppendTime" else TimestampType.CREATE_TIME


def _typed(values: Mapping[str, ConfigValue], name: str, kind: type[V]) -> V:
    value = values[name]
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be parsed to {kind.__name__}, not {value!r}")
    return value


def check_together(values: Mapping[str, ConfigValue]) -> None:
    """What no key can say by itself; `values` is the whole parsed configuration of a topic. Raises ConfigError."""
    lag_min, lag_max = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if isinstance(lag_min, int) and isinstance(lag_max, int) and lag_min > lag_max:
        raise ConfigError(
            {
                "min.compaction.lag.ms": f"conflict between topic config setting min.compaction.lag.ms ({lag_min}) and "
                f"max.compaction.lag.ms ({lag_max}): the first must not be greater than the second"
            }
        )
    if values["remote.storage.enable"] is True:
        raise ConfigError(
            {"remote.storage.enable": "remote storage cannot be enabled: tiered storage is not supported"}
        )


def broker_defaults(broker: Mapping[str, RawValue]) -> dict[str, ConfigValue]:
    """Defaults that a broker's own configuration gives its topics: for each key its first synonym that is set."""
    defaults: dict[str, ConfigValue] = {}
    for key in TOPIC_CONFIGS:
        for synonym in key.synonyms:
            raw = broker.get(synonym.name)
            if raw is None:
                continue
            value = parse_value(key.type, raw)
            if synonym.scale != 1 and isinstance(value, int):
                value = _scaled(value, synonym.scale)
            defaults[key.name] = value
            break
    return defaults


def _scaled(value: int, scale: int) -> int:
    # -1 means "no limit" in every unit.
    return value if value < 0 else min(value * scale, INT64_MAX)


INDEX_POSITION_MAX: Final = INT32_MAX
