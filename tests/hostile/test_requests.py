"""Requests of few bytes that ask for much: elements by the million, the same thing again and again, topics by name."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from tests.broker import raw
from tests.broker.raw import RawClient
from tests.waiting import eventually

from headrace.broker.broker import Broker
from headrace.broker.handlers import metadata as metadata_handler
from headrace.broker.requests import element_bound, pipeline
from headrace.broker.requests.repeated import drop_repeated
from headrace.cluster.config_changes import HINTS_MAX
from headrace.cluster.topics import CONFIGURED_PER_REQUEST_MAX
from headrace.config import ConfigDefinition
from headrace.errors import ErrorCode
from headrace.protocol import codec
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.protocol.wire import REQUEST_ELEMENTS_MAX, MalformedMessageError, uvarint
from headrace.testing import EmbeddedBroker, broker

METADATA_VERSION = 9


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    settings = {"headrace.partitions.max": "400", "offsets.topic.num.partitions": "1"}
    with broker(str(tmp_path_factory.mktemp("kafka") / "data"), settings) as running:
        with RawClient(running.port) as client:
            client.request(raw.create_topics_request({"t": 2}), raw.CREATE_TOPICS_VERSION)
        yield running


def of_names(names: list[str]) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=True)


# --- elements ---------------------------------------------------------------------------------------------------------


def test_a_request_may_have_only_so_many_elements(kafka: EmbeddedBroker) -> None:
    """Nothing is made of the others: the count is looked at before the first of them."""
    count = 3_000_000
    body = struct.pack(">hhih", ApiKey.METADATA, METADATA_VERSION, 7, 3) + b"raw\0"
    body += uvarint(count + 1) + b"\x02a\0" * count + b"\0\0\0\0"
    with RawClient(kafka.port) as client:
        client.request(ApiVersionsRequest(), 0)
        client.socket.sendall(struct.pack(">i", len(body)) + body)
        assert client.is_closed_by_peer()


@pytest.mark.parametrize("nested", [False, True])
def test_elements_of_all_arrays_are_counted_together(nested: bool) -> None:
    def request(count: int) -> bytes:
        one = DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=[""] * count * nested)
        return bytes(codec.encode(DescribeConfigsRequest(resources=[one] if nested else [one] * count), 4))

    codec.decode(DescribeConfigsRequest, 4, request(REQUEST_ELEMENTS_MAX - 1))
    with pytest.raises(MalformedMessageError):
        codec.decode(DescribeConfigsRequest, 4, request(REQUEST_ELEMENTS_MAX + 1))


def test_numbers_and_tagged_fields_are_counted_too() -> None:
    def request(count: int) -> bytes:
        topic = TopicRequest(name="t", partition_indexes=list(range(count)))
        return bytes(codec.encode(DescribeProducersRequest(topics=[topic]), 0))

    codec.decode(DescribeProducersRequest, 0, request(REQUEST_ELEMENTS_MAX - 1))
    with pytest.raises(MalformedMessageError):
        codec.decode(DescribeProducersRequest, 0, request(REQUEST_ELEMENTS_MAX + 1))
    few = request(1)[:-1]  # the last byte says that there are no tagged fields
    codec.decode(DescribeProducersRequest, 0, few + uvarint(1000) + b"\x7f\0" * 1000)
    many = REQUEST_ELEMENTS_MAX + 1
    with pytest.raises(MalformedMessageError):
        codec.decode(DescribeProducersRequest, 0, few + uvarint(many) + b"\x7f\0" * many)


@pytest.mark.parametrize("place", ["header", "body"])
def test_a_request_of_tagged_fields_is_refused(kafka: EmbeddedBroker, place: str) -> None:
    tags = uvarint(1_000_000) + b"\x7f\0" * 1_000_000
    header = struct.pack(">hhih", ApiKey.METADATA, METADATA_VERSION, 7, 3) + b"raw"
    body = header + (tags + b"\0\0\0\0" if place == "header" else b"\0\1\0\0\0" + tags)
    with RawClient(kafka.port) as client:
        client.request(ApiVersionsRequest(), 0)
        client.socket.sendall(struct.pack(">i", len(body)) + body)
        assert client.is_closed_by_peer()


def test_a_request_may_name_as_much_as_there_is(kafka: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many partitions, or few of which many are made up."""
    monkeypatch.setattr(element_bound, "ELEMENTS_ALWAYS", 20)
    monkeypatch.setattr(pipeline, "ELEMENTS_ALWAYS", 20)
    partitions = kafka.call(lambda inside: sum(len(topic.partitions) for topic in inside.image.topics.values()))
    allowed = 20 + partitions * element_bound.ELEMENTS_PER_PARTITION

    def asked(count: int) -> MetadataRequest:
        topics = [MetadataRequestTopic(name=f"no-{number}") for number in range(count)]
        return MetadataRequest(topics=topics, allow_auto_topic_creation=False)

    kafka.call(lambda inside: setattr(inside.pipeline, "_elements", element_bound.ElementBound(inside.image)))
    with RawClient(kafka.port) as client:
        assert len(client.request(asked(allowed), METADATA_VERSION).topics) == allowed
        client.send(asked(allowed + 1), METADATA_VERSION)
        assert client.is_closed_by_peer()


def test_what_is_made_need_not_be_there_to_be_named(kafka: EmbeddedBroker) -> None:
    """A thousand topics with settings of their own, on a broker that has none: more elements than it knows things."""
    configs = [CreatableTopicConfig(name="retention.ms", value=f"{days}") for days in (1, 2, 3, 4)]
    topics = [
        CreatableTopic(name=f"many-{number}", num_partitions=1, replication_factor=1, configs=configs)
        for number in range(1_000)
    ]
    with RawClient(kafka.port) as client:
        answer = client.request(CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=True), 5)
    assert len(answer.topics) == len(topics)


def test_markers_for_what_is_not_there_do_not_fill_the_log(
    kafka: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = WritableTxnMarkerTopic(name="nowhere", partition_indexes=list(range(500)))
    marker = WritableTxnMarker(producer_id=7, producer_epoch=0, transaction_result=True, topics=[topic])
    with caplog.at_level("INFO"), RawClient(kafka.port) as client:
        answer = client.request(WriteTxnMarkersRequest(markers=[marker]), 1)
    codes = {part.error_code for topic in answer.markers[0].topics for part in topic.partitions}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert "nowhere" not in caplog.text


@pytest.mark.slow
def test_answers_may_have_more(kafka: EmbeddedBroker) -> None:
    """They come from brokers, which tell what there is."""
    empty = MetadataResponse()
    empty.topics = [metadata_topic() for _ in range(REQUEST_ELEMENTS_MAX // 50)]
    encoded = bytes(codec.encode(empty, METADATA_VERSION))
    assert len(codec.decode(MetadataResponse, METADATA_VERSION, encoded).topics) == REQUEST_ELEMENTS_MAX // 50


def metadata_topic() -> object:
    from headrace.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic

    return MetadataResponseTopic(name="t", partitions=[MetadataResponsePartition()] * 60)


# --- the same again ---------------------------------------------------------------------------------------------------


def test_what_is_asked_for_again_and_again_is_answered_once(kafka: EmbeddedBroker) -> None:
    with RawClient(kafka.port) as client:
        resource = DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)
        found = client.request(DescribeConfigsRequest(resources=[resource] * 500), 4)
        assert [result.resource_name for result in found.results] == ["t"]
        topics = [TopicRequest(name="t", partition_indexes=[0, 1] * (1 + many) + [many]) for many in range(10)]
        found = client.request(DescribeProducersRequest(topics=topics), 0)
        assert [(topic.name, [part.partition_index for part in topic.partitions]) for topic in found.topics] == [
            ("t", list(range(10)))
        ]


def test_each_item_keeps_its_first_place() -> None:
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in "abacababc"]
    request = OffsetFetchRequest(groups=groups)
    drop_repeated(request)
    assert [group.group_id for group in request.groups] == ["a", "b", "c"]


def test_a_few_repetitions_are_answered_as_kafka_does() -> None:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in "abacab"])
    drop_repeated(request)
    assert [group.group_id for group in request.groups] == list("abacab")


# --- topics that come with being asked for ----------------------------------------------------------------------------


def test_one_request_makes_only_so_many_topics(kafka: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_handler, "CREATED_PER_REQUEST_MAX", 5)
    names = [f"auto-{number:02}" for number in range(12)]
    with RawClient(kafka.port) as client:
        there = []
        for _ in range(3):
            client.request(of_names(names), METADATA_VERSION)
            there.append(kafka.call(lambda inside: sum(name in inside.image.topics for name in names)))
    assert there == [5, 10, 12]


def test_no_topics_are_made_for_a_client_that_is_gone(kafka: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"gone-{number:02}" for number in range(50)]
    made: list[str] = []
    with RawClient(kafka.port) as client:
        client.request(ApiVersionsRequest(), 0)
        create = kafka.broker.metadata.create

        async def noting(topic: object) -> object:
            made.append(topic.name)  # type: ignore[attr-defined]  # a topic
            for connection in list(kafka.broker.acceptor.connections):
                connection.abort("its client was reset")
            return await create(topic)  # type: ignore[arg-type]  # as above

        monkeypatch.setattr(kafka.broker.metadata, "create", noting)
        client.send(of_names(names), METADATA_VERSION)
        assert client.is_closed_by_peer()
    eventually(lambda: not kafka.call(lambda inside: inside.acceptor._tasks))
    assert made == names[:1]


def test_all_partitions_together_have_a_bound(kafka: EmbeddedBroker) -> None:
    with RawClient(kafka.port) as client:
        answer = client.request(raw.create_topics_request({"large": 401}), raw.CREATE_TOPICS_VERSION)
        assert answer.topics[0].error_code == ErrorCode.POLICY_VIOLATION
        assert "headrace.partitions.max=400" in answer.topics[0].error_message
        more = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t", count=500, assignments=None)], timeout_ms=60_000
        )
        assert client.request(more, 3).results[0].error_code == ErrorCode.POLICY_VIOLATION
        answer = client.request(raw.create_topics_request({"small": 3}), raw.CREATE_TOPICS_VERSION)
        assert answer.topics[0].error_code == ErrorCode.NONE


# --- smaller ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_a_topic_without_a_name_is_refused(kafka: EmbeddedBroker, failures: list[str], version: int) -> None:
    with RawClient(kafka.port) as client:
        answer = client.request(MetadataRequest(topics=[MetadataRequestTopic(name=None)]), version)
        assert all(topic.error_code for topic in answer.topics)
    assert failures == []


def test_requests_behind_one_whose_client_is_reset_are_not_handled(
    kafka: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one under way is finished, as in Kafka; that its client is gone shows when its answer is sent."""
    made: list[str] = []
    decide = kafka.broker.metadata.decide
    client = RawClient(kafka.port)
    client.request(ApiVersionsRequest(), 0)

    async def noting(verb: object, request: CreateTopicsRequest, **rest: object) -> object:
        made.extend(topic.name for topic in request.topics)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.close()
        return await decide(verb, request, **rest)  # type: ignore[arg-type]  # as it was given

    monkeypatch.setattr(kafka.broker.metadata, "decide", noting)
    frames = b"".join(
        raw.frame(raw.create_topics_request({f"reset-{number}": 1}), raw.CREATE_TOPICS_VERSION, number)
        for number in range(40)
    )
    client.socket.sendall(frames)
    eventually(lambda: bool(made))
    eventually(lambda: not kafka.call(lambda inside: inside.acceptor._tasks or inside.acceptor.connections))
    assert made == ["reset-0"]


@pytest.mark.parametrize("client_id", ["someone", "__admin_client"])
def test_no_name_lets_a_client_write_internal_topics(kafka: EmbeddedBroker, client_id: str) -> None:
    """Kafka lets whoever calls itself `__admin_client`; a name that everyone may use is no right."""
    request = raw.produce_request("__consumer_offsets", 0, raw.batch([b"poison"]))
    with RawClient(kafka.port) as client:
        client.request(FindCoordinatorRequest(key="g"), 0)
        eventually(lambda: kafka.call(lambda inside: "__consumer_offsets" in inside.image.topics))
        parts = codec.encode_request(request, raw.PRODUCE_VERSION, correlation_id=1, client_id=client_id)
        client.socket.sendall(b"".join(bytes(part) for part in parts))
        answer = client.receive(request, raw.PRODUCE_VERSION)[1]
    assert raw.produced(answer).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_configurations_of_many_groups_are_made_and_encoded_once(kafka: EmbeddedBroker) -> None:
    """A second of the event loop for 30 KB of names, when each was made for itself."""
    resources = [
        *(DescribeConfigsResource(resource_type=32, resource_name=f"g{number}") for number in range(1000)),
        *(DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=[f"k{n}"]) for n in range(9)),
        DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=["log.dirs", "broker.id"]),
        DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=["broker.id"]),
    ]
    request = DescribeConfigsRequest(resources=resources, include_documentation=True)

    def described(inside: Broker) -> tuple[Any, Any]:
        all_at_once = inside.controller.describe_configs(inside.image, request)
        alone = []
        for one in resources[-30:]:
            asked = DescribeConfigsRequest(resources=[one], include_documentation=True)
            alone += inside.controller.describe_configs(inside.image, asked).results
        return all_at_once, alone

    found, alone = kafka.call(described)
    assert found.results[-30:] == alone
    assert len({id(result.configs) for result in found.results[:1000]}) == 1
    with RawClient(kafka.port) as client:
        for version in (1, 4):
            told = client.request(request, version).results
            assert [result.error_code for result in told] == [0] * 1011
            assert told[0].configs == told[999].configs != []
            assert [config.name for config in told[-2].configs] == ["broker.id", "log.dirs"]


def test_names_of_configurations_that_nobody_knows_are_compared_with_known_ones_a_few_times_only(
    kafka: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes up to milliseconds, and a request may have thousands of them."""
    compared: list[str] = []
    nearest = ConfigDefinition.nearest

    def noted(self: ConfigDefinition, name: str) -> str | None:
        compared.append(name)
        return nearest(self, name)

    monkeypatch.setattr(ConfigDefinition, "nearest", noted)
    names = ["retention.mss", *(f"sm.noitneter{number}" for number in range(50))]
    entries = [CreatableTopicConfig(name=name, value="1") for name in names]
    topics = [CreatableTopic(name=f"u{n}", num_partitions=1, replication_factor=1, configs=entries) for n in range(5)]
    with RawClient(kafka.port) as client:
        answer = client.request(CreateTopicsRequest(topics=topics, timeout_ms=60_000), raw.CREATE_TOPICS_VERSION)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_CONFIG] * 5
    assert "did you mean retention.ms?" in answer.topics[0].error_message
    assert len(compared) <= HINTS_MAX


def test_topics_with_configurations_of_their_own_are_told_as_they_are_described(kafka: EmbeddedBroker) -> None:
    entries = [CreatableTopicConfig(name="retention.ms", value="7"), CreatableTopicConfig(name="segment.ms", value="9")]
    topics = [
        CreatableTopic(name="own", num_partitions=1, replication_factor=1, configs=entries),
        CreatableTopic(name="plain", num_partitions=1, replication_factor=1),
    ]
    with RawClient(kafka.port) as client:
        made = client.request(CreateTopicsRequest(topics=topics, timeout_ms=60_000), raw.CREATE_TOPICS_VERSION)
        resources = [DescribeConfigsResource(resource_type=2, resource_name=topic.name) for topic in topics]
        described = client.request(DescribeConfigsRequest(resources=resources), 4)
    for told, found in zip(made.topics, described.results, strict=True):
        assert [(one.name, one.value, one.config_source, one.read_only) for one in told.configs] == [
            (one.name, one.value, one.config_source, one.read_only) for one in found.configs
        ]


def test_only_so_many_topics_with_configurations_are_made_at_once(kafka: EmbeddedBroker) -> None:
    """To check and tell each takes a twentieth of a millisecond, whether or not it is only validated."""
    entries = [CreatableTopicConfig(name="retention.ms", value="7")]
    count = CONFIGURED_PER_REQUEST_MAX + 1
    topics = [
        CreatableTopic(name=f"c{n}", num_partitions=1, replication_factor=1, configs=entries) for n in range(count)
    ]
    with RawClient(kafka.port) as client:
        request = CreateTopicsRequest(topics=topics, validate_only=True, timeout_ms=60_000)
        answer = client.request(request, raw.CREATE_TOPICS_VERSION)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.POLICY_VIOLATION}
