"""The topic configs are Apache Kafka 4.3.1's: names, types, defaults, limits, and the broker keys behind them."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.config import INT64_MAX, ConfigError, format_value
from headrace.log.config import TOPIC_CONFIGS, LogConfig, broker_defaults, check_together
from headrace.records import Codec, TimestampType

REFERENCE = Path(__file__).parent.parent / "reference" / "configs" / "topics.jsonl"
KEYS: list[dict[str, Any]] = [json.loads(line) for line in REFERENCE.read_text().splitlines()]


def test_the_table_has_kafkas_keys_and_no_others() -> None:
    assert sorted(TOPIC_CONFIGS.names) == sorted(key["name"] for key in KEYS)


@pytest.mark.parametrize("key", KEYS, ids=[key["name"] for key in KEYS])
def test_each_key_is_kafkas(key: dict[str, Any]) -> None:
    ours = TOPIC_CONFIGS[key["name"]]
    assert ours.type.name == key["type"]
    assert format_value(ours.default) == key["default"]  # type: ignore[arg-type]  # every key has a default
    assert [[synonym.name, synonym.scale] for synonym in ours.synonyms] == key["synonyms"]
    assert ours.doc


RANGE = re.compile(r"\[(-?\d+),\.\.\.(?:,(-?\d+))?\](?: or (-?\d+))?")
RANGED = [(key["name"], match) for key in KEYS if (match := RANGE.fullmatch(key["valid"]))]


@pytest.mark.parametrize(("name", "limits"), RANGED, ids=[name for name, _ in RANGED])
def test_numbers_have_kafkas_limits(name: str, limits: re.Match[str]) -> None:
    ours = TOPIC_CONFIGS[name]
    low, high, extra = limits.groups()
    ours.parse(low)
    with pytest.raises(ConfigError):
        ours.parse(str(int(low) - 1))
    if high is not None:
        ours.parse(high)
        with pytest.raises(ConfigError):
            ours.parse(str(int(high) + 1))
    if extra is not None:
        ours.parse(extra)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "shred"),
        ("compression.type", "brotli"),
        ("message.timestamp.type", "createtime"),
        ("retention.ms", "-2"),
        ("segment.bytes", "1048575"),
        ("min.insync.replicas", "0"),
        ("leader.replication.throttled.replicas", "1"),
        ("compression.gzip.level", "0"),
        ("preallocate", "maybe"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)):
        TOPIC_CONFIGS.parse_given({name: value})


def test_a_log_config_holds_the_parsed_values() -> None:
    config = LogConfig.of(
        TOPIC_CONFIGS.parse(
            {
                "cleanup.policy": "compact,delete",
                "compression.type": "zstd",
                "message.timestamp.type": "LogAppendTime",
                "segment.ms": "5000",
                "max.compaction.lag.ms": "1000",
                "compression.zstd.level": "7",
            }
        )
    )
    assert (config.compact, config.delete, config.codec) == (True, True, Codec.ZSTD)
    assert config.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert config.segment_age_max_ms == 1000
    assert config.compression_level(Codec.ZSTD) == 7
    assert config.compression_level(Codec.SNAPPY) is None
    assert LogConfig.of({}) == LogConfig()


def test_a_brokers_keys_are_its_topics_defaults() -> None:
    defaults = broker_defaults({"log.retention.hours": "2", "log.retention.minutes": "5", "message.max.bytes": "99"})
    assert defaults == {"retention.ms": 300_000, "max.message.bytes": 99}
    assert broker_defaults({"log.retention.hours": "-1"}) == {"retention.ms": -1}
    assert broker_defaults({"log.roll.hours": str(2**31 - 1)}) == {
        "segment.ms": min((2**31 - 1) * 3_600_000, INT64_MAX)
    }


def test_keys_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms"):
        check_together(TOPIC_CONFIGS.parse({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}))
    with pytest.raises(ConfigError, match="tiered storage is not supported"):
        check_together(TOPIC_CONFIGS.parse({"remote.storage.enable": "true"}))
    check_together(TOPIC_CONFIGS.parse({}))


def test_jitter_stays_below_its_bound() -> None:
    rng = random.Random(1)
    config = LogConfig(segment_jitter_ms=10)
    assert {config.jitter_ms(rng) for _ in range(300)} == set(range(10))
    assert LogConfig().jitter_ms(rng) == 0
