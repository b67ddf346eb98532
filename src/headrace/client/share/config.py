"""The share consumer's configuration: Kafka 4.3's keys with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.configs import SCHEMA_SETTINGS, common_keys, key, read_config
from headrace.config import ConfigDefinition, ConfigError, ConfigType, at_least, one_of
from headrace.net.backoff import Backoff

_STRING, _INT = ConfigType.STRING, ConfigType.INT

SHARE_CONSUMER_CONFIGS = ConfigDefinition(
    (
        *common_keys(receive_buffer_bytes=-1),
        key("group.id", _STRING, None, doc="The share group."),
        key("client.rack", _STRING, "", doc="Where this member is; the coordinator hears of it."),
        key("fetch.min.bytes", _INT, 1, at_least(0), doc="A broker answers when it has so many bytes …"),
        key("fetch.max.bytes", _INT, 52_428_800, at_least(1), doc="The most that a fetch brings."),
        key("fetch.max.wait.ms", _INT, 500, at_least(0), doc="… or after so long."),
        key("check.crcs", ConfigType.BOOLEAN, True, doc="Check the checksum of every batch."),
        key("max.poll.records", _INT, 500, at_least(1), doc="The most records that a fetch asks for."),
        key("key.deserializer", ConfigType.CLASS, None, doc="Makes keys of bytes. None: bytes."),
        key("value.deserializer", ConfigType.CLASS, None, doc="Makes values of bytes, in the same way."),
        key("default.api.timeout.ms", _INT, 60_000, at_least(0), doc="How long commit and close may take."),
        key(
            "share.acknowledgement.mode",
            _STRING,
            "implicit",
            one_of("implicit", "explicit"),
            doc="implicit: what a poll gave is accepted by the next one. explicit: each record by acknowledge().",
        ),
        key(
            "share.acquire.mode",
            _STRING,
            "batch_optimized",
            one_of("batch_optimized", "record_limit"),
            doc="batch_optimized: whole batches, also beyond max.poll.records. record_limit: never more than that.",
        ),
    )
)
_EXTRA = ("key.deserializer.", "value.deserializer.", "deserializer.", *SCHEMA_SETTINGS)

# What a share group has no use for; as Java's share consumer, we refuse it rather than let it have no effect.
NOT_FOR_SHARES = {
    "auto.offset.reset": "the group's config share.auto.offset.reset says where it begins",
    "enable.auto.commit": "share groups have no offsets of members to commit",
    "group.instance.id": "share groups have no static members",
    "isolation.level": "the group's config share.isolation.level says what it reads",
    "partition.assignment.strategy": "the coordinator assigns",
    "interceptor.classes": "there are no interceptors of share consumers",
    "session.timeout.ms": "the broker decides, by group.share.session.timeout.ms and the group's own configs",
    "heartbeat.interval.ms": "the broker decides, by group.share.heartbeat.interval.ms and the group's own configs",
    "group.protocol": "a share consumer speaks only the protocol of share groups",
    "group.remote.assignor": "the coordinator assigns",
}


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """What the core needs to know, in its own types."""

    group_id: str
    rack: str
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    check_crcs: bool
    records_max: int
    is_explicit: bool
    is_exact: bool
    api_timeout_s: float
    retry_backoff: Backoff


def read_share_config(given: Mapping[str, Any]) -> dict[str, Any]:
    problems = {
        name: f"{name} is not for share consumers: {why}" for name, why in NOT_FOR_SHARES.items() if name in given
    }
    if problems:
        raise ConfigError(problems)
    values = read_config(SHARE_CONSUMER_CONFIGS, given, extra=_EXTRA)
    if not values["group.id"]:
        raise ConfigError({"group.id": "group.id names the share group: a share consumer is always a member of one"})
    return values


def share_settings(values: Mapping[str, Any]) -> ShareSettings:
    return ShareSettings(
        group_id=values["group.id"],
        rack=values["client.rack"],
        fetch_min_bytes=values["fetch.min.bytes"],
        fetch_max_bytes=values["fetch.max.bytes"],
        fetch_max_wait_ms=values["fetch.max.wait.ms"],
        check_crcs=values["check.crcs"],
        records_max=values["max.poll.records"],
        is_explicit=values["share.acknowledgement.mode"] == "explicit",
        is_exact=values["share.acquire.mode"] == "record_limit",
        api_timeout_s=values["default.api.timeout.ms"] / 1000,
        retry_backoff=Backoff(values["retry.backoff.ms"], values["retry.backoff.max.ms"]),
    )
