"""The consumer's configuration: Kafka 4.3's keys with their defaults, and what follows from several together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.configs import SCHEMA_SETTINGS, common_keys, key, read_config
from headrace.config import (
    Check,
    ConfigDefinition,
    ConfigError,
    ConfigType,
    at_least,
    non_empty,
    one_of,
)
from headrace.net.backoff import Backoff

_STRING, _INT, _LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LIST
_BOOLEAN, _CLASS = ConfigType.BOOLEAN, ConfigType.CLASS

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)
_BY_DURATION = "by_duration:"

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
READ_UNCOMMITTED = 0
READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class OffsetResetStrategy:
    """Where to begin without a committed offset: at a special timestamp of ListOffsets, or so long ago."""

    name: str
    timestamp: int = 0
    duration_ms: int | None = None

    def resolve(self, now_ms: int) -> int:
        """The timestamp to ask for."""
        return self.timestamp if self.duration_ms is None else now_ms - self.duration_ms


LATEST = OffsetResetStrategy("latest", LATEST_TIMESTAMP)
EARLIEST = OffsetResetStrategy("earliest", EARLIEST_TIMESTAMP)


def parse_duration_ms(text: str) -> int | None:
    """Milliseconds of an ISO 8601 duration of days, hours, minutes and seconds (PT1H30M); None if it is none."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes = (int(found[name] or 0) for name in ("days", "hours", "minutes"))
    seconds = float(found["seconds"] or 0)
    return ((days * 24 + hours) * 60 + minutes) * 60_000 + round(seconds * 1000)


def parse_reset(text: str) -> OffsetResetStrategy | None:
    """The policy that `auto.offset.reset` names; None for none."""
    word = text.lower()
    if word.startswith(_BY_DURATION):
        return OffsetResetStrategy(text, duration_ms=parse_duration_ms(text[len(_BY_DURATION) :]) or 0)
    return {"latest": LATEST, "earliest": EARLIEST}.get(word)


def _is_reset(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    if value.lower().startswith(_BY_DURATION):
        return parse_duration_ms(value[len(_BY_DURATION) :]) is not None
    return value.lower() in ("latest", "earliest", "none")


CONSUMER_KEYS = (
    # Kafka's default is 64 KB, which makes the kernel hand over fetched data in small pieces: a third of the speed. The
    # system's own choice grows with the connection.
    *common_keys(receive_buffer_bytes=-1),
    key("group.id", _STRING, None, doc="The consumer group. Without one: no subscribe, no commits."),
    key(
        "group.instance.id",
        _STRING,
        None,
        non_empty(),
        doc="Makes this a static member: one that comes back within the session keeps its partitions.",
    ),
    key(
        "session.timeout.ms",
        _INT,
        45_000,
        at_least(0),
        doc="A member without a heartbeat for so long is out of the group.",
    ),
    key(
        "heartbeat.interval.ms",
        _INT,
        3_000,
        at_least(0),
        doc="How often heartbeats are sent; members learn of a rebalance by them.",
    ),
    key(
        "partition.assignment.strategy",
        _LIST,
        ("range", "cooperative-sticky"),
        doc="range, roundrobin, sticky, cooperative-sticky, a class or an object; in order of preference.",
    ),
    key("enable.auto.commit", _BOOLEAN, True, doc="Commit what was handed out, from within poll and when closing."),
    key("auto.commit.interval.ms", _INT, 5_000, at_least(0), doc="How often that is."),
    key("client.rack", _STRING, "", doc="Read from the replica that the leader names for this rack."),
    key(
        "max.partition.fetch.bytes",
        _INT,
        1_048_576,
        at_least(0),
        doc="The most a fetch brings of one partition; a larger first batch comes all the same.",
    ),
    key("fetch.min.bytes", _INT, 1, at_least(0), doc="A broker answers when it has so many bytes …"),
    key(
        "fetch.max.bytes",
        _INT,
        52_428_800,
        at_least(0),
        doc="The most a fetch brings of all partitions; a larger first batch comes all the same.",
    ),
    key("fetch.max.wait.ms", _INT, 500, at_least(0), doc="… or after so long."),
    key(
        "auto.offset.reset",
        _STRING,
        "latest",
        Check("latest, earliest, none or by_duration:<ISO 8601 duration, as in PT1H>", _is_reset),
        "Where to begin without a committed offset, or when it is out of range.",
    ),
    key("check.crcs", _BOOLEAN, True, doc="Check the checksum of every batch."),
    # Java demands both; here plain bytes need no deserializer.
    key(
        "key.deserializer",
        _CLASS,
        None,
        doc="Makes keys of bytes: bytes, string, json, int, float …, a class or an object. None: bytes.",
    ),
    key("value.deserializer", _CLASS, None, doc="Makes values of bytes, in the same way."),
    key(
        "default.api.timeout.ms",
        _INT,
        60_000,
        at_least(0),
        doc="How long a call may take that has no time-out of its own.",
    ),
    key(
        "interceptor.classes",
        _LIST,
        (),
        doc="Objects or names of classes with on_consume(records) and on_commit(offsets).",
    ),
    key("max.poll.records", _INT, 500, at_least(1), doc="The most records that poll gives."),
    key(
        "max.poll.interval.ms",
        _INT,
        300_000,
        at_least(1),
        doc="A member that does not poll for so long leaves the group.",
    ),
    key("exclude.internal.topics", _BOOLEAN, True, doc="A subscribed pattern does not match Kafka's own topics."),
    key(
        "isolation.level",
        _STRING,
        "read_uncommitted",
        one_of("read_committed", "read_uncommitted"),
        doc="read_committed: only records of transactions that were committed, and those outside of any.",
    ),
    key(
        "allow.auto.create.topics",
        _BOOLEAN,
        True,
        doc="Brokers that create topics by themselves may do so for those that are read.",
    ),
    key(
        "group.protocol",
        _STRING,
        "classic",
        one_of("classic", "consumer", ignore_case=True),
        doc="classic, or consumer (KIP-848): the coordinator assigns, and a rebalance stops nobody.",
    ),
    key(
        "group.remote.assignor",
        _STRING,
        None,
        non_empty(),
        doc="With group.protocol=consumer: the coordinator's assignor (uniform, range). None: the coordinator chooses.",
    ),
)
CONSUMER_CONFIGS = ConfigDefinition(CONSUMER_KEYS)

# Read by the deserializers and assignors themselves.
_EXTRA = ("key.deserializer.", "value.deserializer.", "deserializer.", *SCHEMA_SETTINGS)

_CLASSIC_ONLY = {
    "session.timeout.ms": "the broker decides, by group.consumer.session.timeout.ms and the group's own configs",
    "heartbeat.interval.ms": "the broker decides, by group.consumer.heartbeat.interval.ms and the group's own configs",
    "partition.assignment.strategy": "the coordinator assigns; group.remote.assignor names its assignor",
}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What the consumer's core needs to know, in its own types."""

    group_id: str | None
    group_instance_id: str | None
    uses_consumer_protocol: bool
    remote_assignor: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    auto_commit: bool
    auto_commit_interval_s: float
    rack: str
    partition_fetch_bytes: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    reset: OffsetResetStrategy | None
    check_crcs: bool
    isolation: int
    max_poll_records: int
    exclude_internal_topics: bool
    allow_auto_create_topics: bool
    request_timeout_ms: int
    api_timeout_s: float
    retry_backoff: Backoff
    metadata_max_age_ms: int

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ConsumerSettings:
        return cls(
            group_id=values["group.id"],
            group_instance_id=values["group.instance.id"],
            uses_consumer_protocol=values["group.protocol"].lower() == "consumer",
            remote_assignor=values["group.remote.assignor"],
            session_timeout_ms=values["session.timeout.ms"],
            heartbeat_interval_ms=values["heartbeat.interval.ms"],
            max_poll_interval_ms=values["max.poll.interval.ms"],
            auto_commit=values["enable.auto.commit"],
            auto_commit_interval_s=values["auto.commit.interval.ms"] / 1000,
            rack=values["client.rack"],
            partition_fetch_bytes=values["max.partition.fetch.bytes"],
            fetch_min_bytes=values["fetch.min.bytes"],
            fetch_max_bytes=values["fetch.max.bytes"],
            fetch_max_wait_ms=values["fetch.max.wait.ms"],
            reset=parse_reset(values["auto.offset.reset"]),
            check_crcs=values["check.crcs"],
            isolation=READ_COMMITTED if values["isolation.level"] == "read_committed" else READ_UNCOMMITTED,
            max_poll_records=values["max.poll.records"],
            exclude_internal_topics=values["exclude.internal.topics"],
            allow_auto_create_topics=values["allow.auto.create.topics"],
            request_timeout_ms=values["request.timeout.ms"],
            api_timeout_s=values["default.api.timeout.ms"] / 1000,
            retry_backoff=Backoff(values["retry.backoff.ms"], values["retry.backoff.max.ms"]),
            metadata_max_age_ms=values["metadata.max.age.ms"],
        )


def read_consumer_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """Typed values, with Kafka's rules for keys that depend on one another."""
    strategy = given.get("partition.assignment.strategy")
    if strategy is not None and not isinstance(strategy, (str, list, tuple)):
        # One assignor, given as an object or a class.
        given = {**given, "partition.assignment.strategy": [strategy]}
    values = read_config(CONSUMER_CONFIGS, given, extra=_EXTRA)
    problems: dict[str, str] = {}
    if values["group.protocol"].lower() == "consumer":
        for name, why in _CLASSIC_ONLY.items():
            if given.get(name) is not None:
                problems[name] = f"{name} cannot be set with group.protocol=consumer: {why}"
    elif values["group.remote.assignor"] is not None:
        problems["group.remote.assignor"] = (
            "group.remote.assignor needs group.protocol=consumer; classic groups use partition.assignment.strategy"
        )
    if values["heartbeat.interval.ms"] >= values["session.timeout.ms"]:
        problems["heartbeat.interval.ms"] = (
            f"heartbeat.interval.ms={values['heartbeat.interval.ms']} must be less than session.timeout.ms="
            f"{values['session.timeout.ms']}, and should be at most a third of it"
        )
    if values["group.id"] is None:
        if given.get("enable.auto.commit") in (True, "true"):
            problems["enable.auto.commit"] = "enable.auto.commit=true needs a group.id: offsets are kept per group"
        values["enable.auto.commit"] = False
    elif not values["group.id"]:
        problems["group.id"] = "group.id is empty: leave it out, or name a group"
    if not values["partition.assignment.strategy"]:
        problems["partition.assignment.strategy"] = "partition.assignment.strategy must name at least one assignor"
    if problems:
        raise ConfigError(problems)
    return values
