"""Frames, headers, defaults, and what the encoder says of values that do not fit."""

from typing import Any

import pytest

from headrace.protocol import codec
from headrace.protocol.api import is_flexible
from headrace.protocol.codec import decode, encode, encode_parts, encode_request, encode_response
from headrace.protocol.codegen import source
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponsePartition
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from headrace.protocol.wire import Layouts


def joined(parts: list[codec.Buffer]) -> bytes:
    return b"".join(parts)


def test_a_request_frame_has_length_header_and_body() -> None:
    raw = joined(encode_request(HeartbeatRequest(group_id="g", member_id="m"), 0, 7, "me"))
    assert raw == b"\x00\x00\x00\x16\x00\x0c\x00\x00\x00\x00\x00\x07\x00\x02me\x00\x01g\x00\x00\x00\x00\x00\x01m"
    header = codec.decode_request_header(raw[4:], is_flexible)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (12, 0, 7, "me")
    assert decode(HeartbeatRequest, 0, raw, 4 + header.body_position).member_id == "m"


def test_a_flexible_request_has_tagged_fields_in_its_header_but_an_old_client_id() -> None:
    raw = joined(encode_request(HeartbeatRequest(group_id="g"), 4, 7, "me"))
    assert raw[12:17] == b"\x00\x02me\x00"
    assert joined(encode_request(HeartbeatRequest(), 4, 7, None))[12:15] == b"\xff\xff\x00"


def test_a_response_comes_back_with_its_correlation_id() -> None:
    for version in range(5):
        raw = joined(encode_response(HeartbeatResponse(error_code=27), version, 99))
        assert int.from_bytes(raw[:4], "big") == len(raw) - 4
        assert codec.decode_response(HeartbeatResponse, version, raw[4:]) == (99, HeartbeatResponse(error_code=27))


def test_the_header_of_an_api_versions_response_never_has_tagged_fields() -> None:
    raw = joined(encode_response(ApiVersionsResponse(api_keys=[ApiVersion(api_key=1)]), 3, 5))
    assert raw[4:10] == b"\x00\x00\x00\x05\x00\x00"
    assert joined(encode_request(ApiVersionsRequest(), 3, 5, "x"))[15:16] == b"\x00"


def test_record_data_is_a_part_of_its_own() -> None:
    records = bytes(10_000)
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=1, records=records)])
    parts = encode_request(ProduceRequest(acks=1, topic_data=[data]), 9, 1, "c")
    assert any(part is records for part in parts)
    assert int.from_bytes(parts[0][:4], "big") == sum(map(len, parts)) - 4


def test_a_frame_may_begin_with_record_data() -> None:
    big = bytes(5000)
    assert joined(codec.frame([big, b"x"])) == b"\x00\x00\x13\x89" + big + b"x"
    assert joined(codec.frame([])) == bytes(4)


def test_fields_that_a_version_lacks_are_not_sent_and_read_as_their_defaults() -> None:
    message = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id="i")
    assert decode(HeartbeatRequest, 2, encode(message, 2)).group_instance_id is None
    partition = decode(FetchRequest, 4, encode(FetchRequest(topics=[FetchTopic(partitions=[FetchPartition()])]), 4))
    assert partition.topics[0].partitions[0].current_leader_epoch == -1
    assert partition.replica_state == FetchRequest().replica_state
    assert partition.forgotten_topics_data == []


def test_defaults_are_not_shared_between_messages() -> None:
    first, second = FetchRequest(), FetchRequest()
    first.topics.append(FetchTopic())
    first.replica_state.replica_id = 5
    assert second == FetchRequest()
    raw = encode(FetchRequest(), 4)
    read = decode(FetchRequest, 4, raw)
    read.replica_state.replica_id = 5
    assert decode(FetchRequest, 4, raw).replica_state.replica_id == -1


def test_a_nullable_struct_travels_with_a_byte_that_says_whether_it_is_there() -> None:
    without = DescribeTopicPartitionsRequest(response_partition_limit=1)
    assert encode(without, 0) == b"\x01\x00\x00\x00\x01\xff\x00"
    cursor = DescribeTopicPartitionsRequest(
        response_partition_limit=1, cursor=Cursor(topic_name="t", partition_index=2)
    )
    assert encode(cursor, 0) == b"\x01\x00\x00\x00\x01\x01\x02t\x00\x00\x00\x02\x00\x00"
    assert decode(DescribeTopicPartitionsRequest, 0, encode(cursor, 0)) == cursor


@pytest.mark.parametrize("length", [0, 1, 62, 63, 64, 65, 126, 127, 128, 300, 20_000])
def test_arrays_of_numbers_of_any_length_come_back(length: int) -> None:
    nodes = list(range(length))
    partition = MetadataResponsePartition(replica_nodes=nodes, isr_nodes=nodes[:1], offline_replicas=nodes)
    response = codec_metadata(partition)
    for version in (8, 12):
        assert decode(type(response), version, encode(response, version)) == response


def codec_metadata(partition: MetadataResponsePartition) -> Any:
    from headrace.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

    return MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=[partition])])


def test_layouts_are_remembered_up_to_a_bound() -> None:
    layouts = Layouts(["h", ("i", True), "x", ("h", False)])
    assert (
        layouts[2, 1](7, 3, 1, 2, 1, 9) == b"\x00\x07\x03\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x00\x01\x00\x09"
    )
    for first in range(60):
        for second in range(60):
            assert layouts[first, second] is not None
    assert len(layouts) == 1024
    assert layouts[500, 0](0, 501, *range(500), 0)[2:4] == b"\xf5\x03"
    assert (500, 0) not in layouts


def broken(**fields: Any) -> FetchRequest:
    topic = FetchTopic(topic="t", partitions=[FetchPartition(), FetchPartition(**fields)])
    return FetchRequest(topics=[FetchTopic(topic="a"), topic])


@pytest.mark.parametrize(
    ("message", "version", "complaint"),
    [
        (
            broken(fetch_offset=None),
            11,
            r"FetchRequest v11: topics\[1\]\.partitions\[1\]\.fetch_offset may not be null",
        ),
        (broken(fetch_offset="3"), 12, r"topics\[1\]\.partitions\[1\]\.fetch_offset must be an int64, not str"),
        (broken(partition=2**31), 12, r"partitions\[1\]\.partition must be an int32, which 2147483648 does not fit"),
        (broken(replica_directory_id=b"x"), 17, r"replica_directory_id must be a uuid of 16 bytes"),
        (FetchRequest(topics=[FetchTopic(topic_id=b"short")]), 13, r"topics\[0\]\.topic_id must be a uuid of 16 bytes"),
        (FetchRequest(topics=[MetadataRequest()]), 12, r"topics\[0\] must be a FetchTopic, not MetadataRequest"),  # type: ignore[list-item]
        (FetchRequest(topics=None), 12, "topics may not be null"),  # type: ignore[arg-type]
        (FetchRequest(replica_state=None), 15, "replica_state may not be null"),  # type: ignore[arg-type]
        (FetchRequest(cluster_id=5), 12, "cluster_id must be a string, not int"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id=None), 4, "group_id may not be null"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id=b"g"), 0, "group_id must be a string, not bytes"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id="x" * 32768), 3, "group_id is longer than 32767 bytes"),
        (HeartbeatRequest(group_id="\ud800"), 3, "group_id is not valid text"),
        (DeleteGroupsRequest(groups_names="ab"), 2, "groups_names must be a list, not str"),  # type: ignore[arg-type]
        (DeleteGroupsRequest(groups_names=["a", None]), 0, r"groups_names\[1\]"),  # type: ignore[list-item]
        (SaslAuthenticateRequest(auth_bytes="text"), 2, "auth_bytes must be bytes, not str"),  # type: ignore[arg-type]
        (UpdateFeaturesRequest(validate_only=None), 1, "validate_only may not be null"),  # type: ignore[arg-type]
        (
            UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(allow_downgrade="yes")]),  # type: ignore[arg-type]
            0,
            r"feature_updates\[0\]\.allow_downgrade must be a bool, not str",
        ),
        (MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 9, r"topics\[0\]\.name may not be null"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_the_field(message: Any, version: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        encode_parts(message, version)


def test_versions_that_are_not_declared_are_refused() -> None:
    with pytest.raises(ValueError, match="FetchRequest has versions 4-18, not 3"):
        encode(FetchRequest(), 3)
    with pytest.raises(ValueError, match="FetchRequest has versions 4-18, not 19"):
        decode(FetchRequest, 19, b"")


def test_the_generated_source_can_be_read() -> None:
    text = source(HeartbeatRequest, 3, "encode")
    assert text.startswith("def encode(m, put):")
    assert "m.group_instance_id" in text
    assert "m.group_instance_id = None" in source(HeartbeatRequest, 2, "decode")


def test_messages_compare_by_value_and_show_their_fields() -> None:
    assert HeartbeatRequest(group_id="a") == HeartbeatRequest(group_id="a")
    assert HeartbeatRequest(group_id="a") != HeartbeatRequest(group_id="b")
    assert HeartbeatResponse() != HeartbeatRequest()
    assert repr(HeartbeatResponse(error_code=3)) == "HeartbeatResponse(throttle_time_ms=0, error_code=3)"
    assert "<40 bytes>" in repr(SaslAuthenticateRequest(auth_bytes=bytes(40)))
