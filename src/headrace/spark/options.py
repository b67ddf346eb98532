"""Options of the source and the sink, by the names of Spark's own Kafka connector, read into values. No Spark in here.

Names are compared without regard to case, as Spark does. Everything wrong is reported at once; an option that nobody
knows is refused with the nearest name, and one that cannot be had is refused with the reason.
"""

from __future__ import annotations

import difflib
import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.consumer.config import CONSUMER_CONFIGS
from headrace.client.other_names import in_kafkas_words
from headrace.client.producer.config import PRODUCER_CONFIGS
from headrace.config import ConfigDefinition, ConfigError, Password
from headrace.topics import TopicPartition

LATEST, EARLIEST = -1, -2
"""Offsets in Spark's JSON that stand for the end and the start of a partition."""

GROUP_PREFIX = "headrace-spark"
_POLL_TIMEOUT_MS = 120_000
_MAX_TRIGGER_DELAY_MS = 15 * 60_000
_INT64_MAX = (1 << 63) - 1

_BYTES = "keys and values are always binary columns: cast or decode them with DataFrame operations"
_REFUSED_SOURCE = {
    "kafka.auto.offset.reset": "use startingOffsets: Spark keeps track of offsets itself",
    "kafka.enable.auto.commit": "Spark keeps track of offsets itself, in the checkpoint",
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
    "kafka.interceptor.classes": "interceptors may change keys and values, which the source gives as they are",
}
_REFUSED_SINK = {
    "kafka.key.serializer": _BYTES,
    "kafka.value.serializer": _BYTES,
    "kafka.transactional.id": "format('headrace') writes at least once; use headrace.spark.exactly_once or write_once",
    "kafka.interceptor.classes": "interceptors see records one by one; the sink sends whole columns",
}
_SOURCE_NAMES = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "value.schema.registry",
    "value.schema",
    "value.schema.subject",
    "value.schema.location",
    "value.schema.message",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafka.bootstrap.servers",
)
_SINK_NAMES = ("topic", "includeHeaders", "includeTimestamp", "kafka.bootstrap.servers")
REGISTRY_PREFIX = "value.schema.registry."
"""Settings of the client that asks the registry, such as `value.schema.registry.basic.auth.user.info`."""
# Spark hands a writer's own settings down to the sink.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "path"})
# Families of settings of Java's clients of which only some are known here.
_JAVAS_OWN = ("sasl.", "ssl.", "metric", "security.", "config.", "auto.include.")
_DELAY = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_UNIT_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_JAVA_GROUP = re.compile(r"\(\?<(?![=!])")
_POSSESSIVE = re.compile(r"\\p\{|\\P\{|&&")


class Mode(enum.Enum):
    BATCH = "batch"
    STREAM = "stream"


class NoMatch(enum.Enum):
    """What to do with a starting timestamp that no record is at or after."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Topics:
    """Which partitions are read: those named, all of the topics named, or all of the topics that match."""

    assigned: tuple[TopicPartition, ...] = ()
    names: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what is read: `everywhere` (LATEST, EARLIEST), or offsets or times (ms) of single partitions.

    `time_ms` is one time for all of them.
    """

    everywhere: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    times_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    time_ms: int | None = None

    @property
    def is_timed(self) -> bool:
        return self.time_ms is not None or bool(self.times_ms)


@dataclass(frozen=True, slots=True)
class ValueSchemaOptions:
    """Where the schema of the values comes from."""

    registry: str
    subject: str | None
    schema: str | None
    location: str | None
    message: str | None
    settings: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """A source's options, checked."""

    topics: Topics
    start: Bound
    end: Bound
    no_match: NoMatch
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    poll_timeout_ms: int
    kafka: Mapping[str, str] = field(repr=False)
    """By Kafka's names. Not shown: secrets are among them."""
    value_schema: ValueSchemaOptions | None = None

    @property
    def read_committed(self) -> bool:
        return self.kafka.get("isolation.level", "read_uncommitted") == "read_committed"

    @property
    def group_id(self) -> str | None:
        """The consumer group that shows the progress, if the user named one."""
        return self.kafka.get("group.id") or None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """A sink's options, checked."""

    topic: str | None
    include_timestamp: bool
    kafka: Mapping[str, str] = field(repr=False)
    """By Kafka's names. Not shown: secrets are among them."""


class _Given:
    """Options as given, by lower-case name; collects what is wrong with them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.values = {name.lower(): str(value) for name, value in options.items()}
        self.problems: dict[str, str] = {}

    def text(self, name: str) -> str | None:
        return self.values.get(name.lower())

    def wrong(self, name: str, why: str) -> None:
        self.problems.setdefault(name, f"{name}: {why}")

    def boolean(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            self.wrong(name, f"is true or false, not {text!r}")
        return text.strip().lower() == "true"

    def number(self, name: str, least: int = 1) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,19}", text.strip()) or not least <= int(text) <= _INT64_MAX:
            self.wrong(name, f"is a whole number of at least {least}, not {text!r}")
            return None
        return int(text)

    def delay_ms(self, name: str, default: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        found = _DELAY.fullmatch(text.strip().lower())
        if found is None:
            self.wrong(name, f"is a time such as 30s, 15m or 500ms, not {text!r}")
            return default
        return int(int(found[1]) * _UNIT_MS[found[2] or "ms"])

    def kafka(self, refused: Mapping[str, str], definition: ConfigDefinition) -> dict[str, str]:
        """The `kafka.*` options without their prefix. Unknown ones are refused when they look like a slip.

        Others go through: Kafka's Java clients know keys that mean nothing here, and a job may have them.
        """
        found: dict[str, str] = {}
        for name, value in self.values.items():
            if not name.startswith("kafka."):
                continue
            plain = name.removeprefix("kafka.")
            if name in refused:
                self.wrong(name, f"is not supported: {refused[name]}")
            elif plain not in definition and not plain.startswith(_JAVAS_OWN):
                nearest = definition.nearest(plain)
                if nearest is not None:
                    self.wrong(name, f"is not a setting of Kafka's; did you mean kafka.{nearest}?")
            found[plain] = value
        try:
            found = in_kafkas_words(found, definition)
        except ConfigError as error:
            for name, problem in error.problems.items():
                self.wrong(f"kafka.{name}", problem)
        if not found.get("bootstrap.servers"):
            self.wrong("kafka.bootstrap.servers", "is missing: host:port of one or more brokers")
        try:
            definition.parse_given(found)
        except ConfigError as error:
            for name, problem in error.problems.items():
                self.wrong(f"kafka.{name}", problem)
        return found

    def check_names(self, known: tuple[str, ...], what: str) -> None:
        spelled = {name.lower(): name for name in known}
        for name in self.values:
            if name in spelled or name.startswith(("kafka.", REGISTRY_PREFIX)) or name in _SPARKS_OWN:
                continue
            close = difflib.get_close_matches(name, spelled, n=1, cutoff=0.7)
            hint = f"did you mean {spelled[close[0]]}?" if close else f"it takes {', '.join(known)} and kafka.*"
            self.wrong(name, f"is not an option of the {what}; {hint}")

    def finish(self) -> None:
        if self.problems:
            raise ConfigError(self.problems)


def read_source_options(options: Mapping[str, str], mode: Mode) -> SourceOptions:
    """A source's options for a batch or a stream; raises `ConfigError` with all that is wrong."""
    given = _Given(options)
    given.check_names(_SOURCE_NAMES, "source")
    if mode is Mode.STREAM:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if given.text(name) is not None:
                given.wrong(name, "is for batches; a stream has no end")
    topics = _topics(given)
    start = _bound(given, "starting", LATEST if mode is Mode.STREAM else EARLIEST)
    end = _bound(given, "ending", LATEST)
    if mode is Mode.BATCH:
        _check_batch(given, start, end)
    strategy = (given.text("startingOffsetsByTimestampStrategy") or "error").strip().lower()
    if strategy not in ("error", "latest"):
        given.wrong("startingOffsetsByTimestampStrategy", f"is error or latest, not {strategy!r}")
    max_offsets, min_offsets = given.number("maxOffsetsPerTrigger"), given.number("minOffsetsPerTrigger")
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        given.wrong("minOffsetsPerTrigger", f"is {min_offsets}, more than maxOffsetsPerTrigger={max_offsets}")
    kafka = given.kafka(_REFUSED_SOURCE, CONSUMER_CONFIGS)
    made = SourceOptions(
        topics=topics,
        start=start,
        end=end,
        no_match=NoMatch.LATEST if strategy == "latest" else NoMatch.ERROR,
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_delay_ms=given.delay_ms("maxTriggerDelay", _MAX_TRIGGER_DELAY_MS),
        min_partitions=given.number("minPartitions"),
        max_records_per_partition=given.number("maxRecordsPerPartition"),
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        include_headers=given.boolean("includeHeaders", False),
        poll_timeout_ms=given.number("kafkaConsumer.pollTimeoutMs") or _POLL_TIMEOUT_MS,
        kafka=kafka,
        value_schema=_value_schema(given, topics),
    )
    given.finish()
    return made


def value_schema_options(options: Mapping[str, str]) -> ValueSchemaOptions | None:
    """Only what the schema depends on, as `includes_headers`."""
    given = _Given(options)
    if given.text("value.schema.registry") is None:
        return None
    found = _value_schema(given, _topics(given))
    given.finish()
    return found


def _value_schema(given: _Given, topics: Topics) -> ValueSchemaOptions | None:
    registry = given.text("value.schema.registry")
    schema, subject = given.text("value.schema"), given.text("value.schema.subject")
    location, message = given.text("value.schema.location"), given.text("value.schema.message")
    if registry is None:
        for name in ("value.schema", *(f"value.schema.{part}" for part in ("subject", "location", "message"))):
            if given.text(name) is not None:
                given.wrong(name, "needs value.schema.registry, the address of a schema registry")
        return None
    if schema is None and subject is None:
        names = {one.topic for one in topics.assigned} | set(topics.names)
        if len(names) != 1:
            given.wrong(
                "value.schema.subject",
                "is needed where several topics are read: the subject whose newest schema they are read as",
            )
        else:
            subject = f"{names.pop()}-value"
    settings = {
        name.removeprefix(REGISTRY_PREFIX): value
        for name, value in given.values.items()
        if name.startswith(REGISTRY_PREFIX)
    }
    return ValueSchemaOptions(registry, subject, schema, location, message, settings)


def read_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """A sink's options; raises `ConfigError` with all that is wrong."""
    given = _Given(options)
    given.check_names(_SINK_NAMES, "sink")
    kafka = given.kafka(_REFUSED_SINK, PRODUCER_CONFIGS)
    topic = given.text("topic")
    made = SinkOptions(topic.strip() if topic else None, given.boolean("includeTimestamp", False), kafka)
    given.finish()
    return made


def read_producer_config(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """A producer's configuration, by Kafka's names, with the checks of the sink's options.

    Values become text, as options are; a function (a callback for tokens) stays one, and travels to the tasks.
    """
    functions = {name: value for name, value in kafka.items() if callable(value)}
    texts = {f"kafka.{name}": text_of(value) for name, value in kafka.items() if name not in functions}
    return {**read_sink_options(texts).kafka, **functions}


def text_of(value: Any) -> str:
    """A setting as an option of Spark's: a secret as it is, a list with commas."""
    if isinstance(value, Password):
        return value.value
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def includes_headers(options: Mapping[str, str]) -> bool:
    """Only what the schema depends on: Spark asks for it before it is known whether this is a batch or a stream."""
    given = _Given(options)
    wanted = given.boolean("includeHeaders", False)
    given.finish()
    return wanted


# --- topics -----------------------------------------------------------------------------------------------------------


def _topics(given: _Given) -> Topics:
    chosen = [name for name in ("assign", "subscribe", "subscribePattern") if given.text(name) is not None]
    if len(chosen) != 1:
        found = " and ".join(chosen) if chosen else "none"
        given.wrong(chosen[0] if chosen else "subscribe", f"give one of assign, subscribe, subscribePattern ({found})")
        return Topics()
    name, text = chosen[0], (given.text(chosen[0]) or "").strip()
    if name == "assign":
        found_partitions = _json_of(given, name, text, _assigned)
        if found_partitions is not None and not found_partitions:
            given.wrong(name, "names no partition")
        return Topics(assigned=tuple(sorted(found_partitions or ())))
    if name == "subscribe":
        names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not names:
            given.wrong(name, "names no topic")
        return Topics(names=names)
    if not text:
        given.wrong(name, "is empty")
    try:
        pattern = python_pattern(text)
    except ValueError as error:
        given.wrong(name, str(error))
        return Topics()
    return Topics(pattern=pattern)


def python_pattern(java: str) -> str:
    """A Java regular expression in Python's words: named groups are spelled otherwise, some classes are not there."""
    if _POSSESSIVE.search(java):
        raise ValueError(f"{java!r} has a character class that only Java knows (\\p{{…}} or &&): spell it out")
    pattern = _JAVA_GROUP.sub("(?P<", java)
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{java!r} is not a regular expression: {error}") from None
    return pattern


def _assigned(parsed: object) -> list[TopicPartition]:
    """`{"topic": [0, 1]}`"""
    if not isinstance(parsed, dict):
        raise ValueError("an object of topics")
    found: list[TopicPartition] = []
    for topic, numbers in parsed.items():
        if not isinstance(numbers, list) or not all(type(one) is int and one >= 0 for one in numbers):
            raise ValueError(f"a list of partition numbers for {topic}")
        found += [TopicPartition(topic, one) for one in dict.fromkeys(numbers)]
    return found


# --- where reading starts and ends ------------------------------------------------------------------------------------


def _bound(given: _Given, which: str, default: int) -> Bound:
    """Spark's order of precedence: one time, times of partitions, offsets."""
    name = f"{which}Timestamp"
    if given.text(name) is not None:
        return Bound(time_ms=given.number(name, least=0))
    name = f"{which}OffsetsByTimestamp"
    text = given.text(name)
    if text is not None:
        times = _json_of(given, name, text, lambda parsed: _by_partition(parsed, 0))
        if times is not None and not times:
            given.wrong(name, "names no partition")
        return Bound(times_ms=times or {})
    name = f"{which}Offsets"
    text = given.text(name)
    if text is None:
        return Bound(everywhere=default)
    word = text.strip().lower()
    if word in ("latest", "earliest"):
        return Bound(everywhere=LATEST if word == "latest" else EARLIEST)
    return Bound(offsets=_json_of(given, name, text, lambda parsed: _by_partition(parsed, EARLIEST)) or {})


def _by_partition(parsed: object, least: int) -> dict[TopicPartition, int]:
    """`{"topic": {"0": 23, "1": -2}}`"""
    if not isinstance(parsed, dict):
        raise ValueError("an object of topics")
    found: dict[TopicPartition, int] = {}
    for topic, numbers in parsed.items():
        if not isinstance(numbers, dict):
            raise ValueError(f"an object of partitions for {topic}")
        for partition, number in numbers.items():
            if not re.fullmatch(r"\d{1,10}", partition) or type(number) is not int or not least <= number <= _INT64_MAX:
                raise ValueError(f"a number of at least {least} for each partition of {topic}")
            found[TopicPartition(topic, int(partition))] = number
    return found


def _json_of(given: _Given, name: str, text: str, read):  # type: ignore[no-untyped-def]  # generic in what `read` gives
    try:
        return read(json.loads(text))
    except json.JSONDecodeError as error:
        given.wrong(name, f"is not JSON ({error}): {text!r}")
    except ValueError as error:
        given.wrong(name, f"has to be {error}: {text!r}")
    return None


def _check_batch(given: _Given, start: Bound, end: Bound) -> None:
    if start.everywhere == LATEST:
        given.wrong("startingOffsets", "is latest, which leaves a batch nothing to read")
    if any(offset == LATEST for offset in start.offsets.values()):
        given.wrong("startingOffsets", "has -1 (latest) for a partition, which leaves a batch nothing to read")
    if end.everywhere == EARLIEST:
        given.wrong("endingOffsets", "is earliest, which leaves a batch nothing to read")
    if any(offset == EARLIEST for offset in end.offsets.values()):
        given.wrong("endingOffsets", "has -2 (earliest) for a partition, which leaves a batch nothing to read")
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
        if given.text(name) is not None:
            # Spark's own connector ignores them in batches with a warning; so a job with them still runs.
            given.values.pop(name.lower())
