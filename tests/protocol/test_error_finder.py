"""Whether a response tells an error is found wherever in it an error code can be."""

from __future__ import annotations

from headrace.protocol.api import api, declared_keys
from headrace.protocol.error_finder import error_finder
from headrace.protocol.messages.describe_cluster import DescribeClusterResponse
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic


def test_an_error_at_the_top_is_found() -> None:
    tells_error = error_finder(DescribeClusterResponse)
    assert not tells_error(DescribeClusterResponse())
    assert tells_error(DescribeClusterResponse(error_code=1))


def test_an_error_deep_inside_is_found() -> None:
    for code in (0, 3):
        parts = [PartitionData(), PartitionData(error_code=code)]
        response = FetchResponse(responses=[FetchableTopicResponse(), FetchableTopicResponse(partitions=parts)])
        assert error_finder(FetchResponse)(response) is bool(code)


def test_an_error_of_a_topic_or_of_its_partitions_is_found() -> None:
    tells_error = error_finder(MetadataResponse)
    partition = MetadataResponsePartition(error_code=5)
    assert tells_error(MetadataResponse(topics=[MetadataResponseTopic(partitions=[partition])]))
    assert tells_error(MetadataResponse(topics=[MetadataResponseTopic(error_code=3)]))
    assert not tells_error(MetadataResponse(topics=[MetadataResponseTopic()]))


def test_every_response_can_be_asked() -> None:
    for api_key in declared_keys():
        response = api(api_key).response
        assert not error_finder(response)(response())
