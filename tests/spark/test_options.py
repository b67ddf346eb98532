"""Options of the source and the sink: Spark's names and meaning, everything wrong said at once."""

from __future__ import annotations

import pytest

from headrace.config import ConfigError, Password
from headrace.spark.options import (
    EARLIEST,
    LATEST,
    Mode,
    NoMatch,
    includes_headers,
    read_producer_config,
    read_sink_options,
    read_source_options,
)
from headrace.topics import TopicPartition

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a"}


def problems(options: dict[str, str], mode: Mode = Mode.BATCH) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        read_source_options(options, mode)
    return caught.value.problems


def test_a_batch_reads_everything_and_a_stream_what_comes() -> None:
    assert read_source_options(BASE, Mode.BATCH).start.everywhere == EARLIEST
    assert read_source_options(BASE, Mode.BATCH).end.everywhere == LATEST
    assert read_source_options(BASE, Mode.STREAM).start.everywhere == LATEST


def test_names_are_compared_without_regard_to_case() -> None:
    made = read_source_options({**BASE, "FAILONDATALOSS": "false", "startingoffsets": "EARLIEST"}, Mode.STREAM)
    assert not made.fail_on_data_loss
    assert made.start.everywhere == EARLIEST


def test_topics_by_name_pattern_and_partition() -> None:
    named = read_source_options({**BASE, "subscribe": " a , b,a"}, Mode.BATCH)
    assert named.topics.names == ("a", "b")
    servers = {"kafka.bootstrap.servers": "h:1"}
    matched = read_source_options({**servers, "subscribePattern": "a.*"}, Mode.BATCH)
    assert matched.topics.pattern == "a.*"
    assigned = read_source_options({**servers, "assign": '{"a": [1, 0], "b": [2]}'}, Mode.BATCH)
    assert assigned.topics.assigned == (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 2))


def test_a_java_pattern_is_spelled_in_python() -> None:
    servers = {"kafka.bootstrap.servers": "h:1"}
    made = read_source_options({**servers, "subscribePattern": "(?<kind>a|b)-.*"}, Mode.BATCH)
    assert made.topics.pattern == "(?P<kind>a|b)-.*"
    assert "spell it out" in problems({**servers, "subscribePattern": r"\p{L}+"})["subscribePattern"]
    assert "not a regular expression" in problems({**servers, "subscribePattern": "(a"})["subscribePattern"]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"subscribe": "a", "assign": '{"a":[0]}'},
        {"subscribe": " , "},
        {"assign": "{}"},
        {"assign": "{"},
        {"assign": '{"a":["0"]}'},
        {"assign": '{"a":[-1]}'},
        {"subscribePattern": ""},
    ],
)
def test_topics_that_make_no_sense_are_refused(given: dict[str, str]) -> None:
    assert problems({"kafka.bootstrap.servers": "h:1", **given})


def test_offsets_times_and_their_precedence() -> None:
    by_offset = read_source_options({**BASE, "startingOffsets": '{"a":{"0":23,"1":-2}}'}, Mode.BATCH)
    assert by_offset.start.offsets == {TopicPartition("a", 0): 23, TopicPartition("a", 1): -2}
    timed = {**BASE, "startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"a":{"0":1000}}'}
    assert read_source_options(timed, Mode.BATCH).start.times_ms == {TopicPartition("a", 0): 1000}
    one_time = read_source_options({**timed, "startingTimestamp": "5"}, Mode.BATCH)
    assert one_time.start.time_ms == 5
    assert not one_time.start.times_ms
    assert one_time.start.is_timed


@pytest.mark.parametrize(
    ("name", "value", "mode"),
    [
        ("startingOffsets", "latest", Mode.BATCH),
        ("endingOffsets", "earliest", Mode.BATCH),
        ("startingOffsets", '{"a":{"0":-1}}', Mode.BATCH),
        ("endingOffsets", '{"a":{"0":-2}}', Mode.BATCH),
        ("startingOffsets", '{"a":{"0":-3}}', Mode.STREAM),
        ("startingOffsets", "ealiest", Mode.STREAM),
        ("endingOffsets", "latest", Mode.STREAM),
        ("endingTimestamp", "1", Mode.STREAM),
        ("startingTimestamp", "-1", Mode.STREAM),
        ("startingOffsetsByTimestampStrategy", "earliest", Mode.STREAM),
        ("maxOffsetsPerTrigger", "0", Mode.STREAM),
        ("maxTriggerDelay", "soon", Mode.STREAM),
        ("minPartitions", "-1", Mode.BATCH),
        ("failOnDataLoss", "yes", Mode.BATCH),
        ("kafka.isolation.level", "serializable", Mode.BATCH),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str, mode: Mode) -> None:
    assert name in problems({**BASE, name: value}, mode)


def test_everything_wrong_is_said_at_once() -> None:
    found = problems({"subscribe": "a", "minPartitions": "x", "failOnDataLoss": "1"})
    assert set(found) == {"kafka.bootstrap.servers", "minPartitions", "failOnDataLoss"}


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    assert "did you mean startingOffsets?" in problems({**BASE, "startingOffset": "earliest"})["startingoffset"]
    assert "it takes" in problems({**BASE, "colour": "blue"})["colour"]


@pytest.mark.parametrize(
    "name",
    ["kafka.auto.offset.reset", "kafka.key.deserializer", "kafka.enable.auto.commit", "kafka.interceptor.classes"],
)
def test_what_cannot_be_had_is_refused_with_the_reason(name: str) -> None:
    assert "is not supported" in problems({**BASE, name: "x"})[name]


def test_delays_have_units() -> None:
    for text, expected in (("15m", 900_000), ("30s", 30_000), ("250ms", 250), ("1h", 3_600_000), ("7", 7)):
        assert read_source_options({**BASE, "maxTriggerDelay": text}, Mode.STREAM).max_delay_ms == expected


def test_limits_of_streams_do_not_stop_a_batch() -> None:
    assert read_source_options({**BASE, "maxOffsetsPerTrigger": "5"}, Mode.BATCH).topics.names == ("a",)
    assert "minOffsetsPerTrigger" in problems(
        {**BASE, "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, Mode.STREAM
    )


def test_kafkas_own_keys_go_through() -> None:
    made = read_source_options(
        {**BASE, "kafka.isolation.level": "read_committed", "kafka.group.id": "g", "kafka.fetch.min.bytes": "10"},
        Mode.STREAM,
    )
    assert made.read_committed
    assert made.group_id == "g"
    assert made.kafka["fetch.min.bytes"] == "10"
    assert made.no_match is NoMatch.ERROR


def test_headers_are_part_of_the_schema_when_wanted() -> None:
    assert includes_headers({"INCLUDEHEADERS": "true"})
    assert not includes_headers({})


def test_the_sink_takes_a_topic_and_refuses_transactions() -> None:
    made = read_sink_options({"kafka.bootstrap.servers": "h:1", "topic": " t ", "checkpointLocation": "/tmp/x"})
    assert made.topic == "t"
    assert not made.include_timestamp
    with pytest.raises(ConfigError, match="exactly_once"):
        read_sink_options({"kafka.bootstrap.servers": "h:1", "kafka.transactional.id": "t"})
    with pytest.raises(ConfigError, match="did you mean topic"):
        read_sink_options({"kafka.bootstrap.servers": "h:1", "topics": "t"})


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_librdkafkas_names_are_understood() -> None:
    given = {"kafka.metadata.broker.list": "b:1", "subscribe": "a", "kafka.sasl.mechanisms": "PLAIN"}
    made = read_source_options({**given, "kafka.ssl.ca.location": "/ca.pem"}, Mode.BATCH)
    assert made.kafka == {"bootstrap.servers": "b:1", "sasl.mechanism": "PLAIN", "ssl.truststore.location": "/ca.pem"}
    assert "kafka.sasl.mechanism" in problems({**BASE, **given, "kafka.sasl.mechanism": "PLAIN"})


def test_a_configuration_in_python_keeps_its_functions_and_secrets() -> None:
    def callback() -> str:
        return "token"

    given = {"bootstrap.servers": ["a:1", "b:2"], "sasl.password": Password("hush"), "linger.ms": 5}
    made = read_producer_config({**given, "sasl.oauthbearer.token.callback": callback})
    assert made == {
        "bootstrap.servers": "a:1,b:2",
        "sasl.password": "hush",
        "linger.ms": "5",
        "sasl.oauthbearer.token.callback": callback,
    }


def test_options_do_not_show_secrets() -> None:
    secret = {"kafka.sasl.password": "hush", "kafka.sasl.jaas.config": "hush", "kafka.ssl.keystore.key": "hush"}
    assert "hush" not in repr(read_source_options({**BASE, **secret}, Mode.STREAM))
    assert "hush" not in repr(read_sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t", **secret}))
    found = problems({**BASE, **secret, "kafka.fetch.min.bytes": "many", "kafka.sasl.pasword": "hush"})
    assert "hush" not in str(found)
