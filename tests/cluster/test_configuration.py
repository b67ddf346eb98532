"""Where a configuration's values come from, who may see them, and what a wrong one does."""

from __future__ import annotations

import pytest

from headrace.cluster.config_changes import broker_name_error
from headrace.cluster.configs import ConfigSource
from headrace.cluster.records import ConfigRecord, MetadataRecord, ResourceType
from headrace.error_codes import ErrorCode
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest

from .harness import OneBroker, create


def described(cluster: OneBroker, kind: int, name: str, key: str) -> tuple[str | None, int, list[tuple[str, int]]]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[key])
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    entry = cluster.controller.describe_configs(cluster.image, request).results[0].configs[0]
    return entry.value, entry.config_source, [(synonym.name, synonym.source) for synonym in entry.synonyms]


def set_config(cluster: OneBroker, kind: int, name: str, key: str, value: str | None) -> int:
    operation = 1 if value is None else 0
    change = AlterableConfig(name=key, config_operation=operation, value=value)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    answer = cluster.decide(cluster.controller.incremental_alter_configs(cluster.image, request))
    code: int = answer.responses[0].error_code
    return code


def test_a_topics_value_comes_from_the_nearest_place_that_has_one() -> None:
    cluster = OneBroker({"log.segment.bytes": "2000000", "log.retention.hours": "24"})
    create(cluster, "t", [[1]])
    topic, broker = ResourceType.TOPIC, ResourceType.BROKER
    assert described(cluster, topic, "t", "segment.bytes")[:2] == ("2000000", ConfigSource.STATIC_BROKER)
    assert described(cluster, topic, "t", "retention.ms")[:2] == ("86400000", ConfigSource.STATIC_BROKER)
    for kind, name, key, value, source in [
        (broker, "", "log.segment.bytes", "3000000", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (broker, "1", "log.segment.bytes", "4000000", ConfigSource.DYNAMIC_BROKER),
        (topic, "t", "segment.bytes", "5000000", ConfigSource.DYNAMIC_TOPIC),
    ]:
        assert set_config(cluster, kind, name, key, value) == ErrorCode.NONE
        assert described(cluster, topic, "t", "segment.bytes")[:2] == (value, source)
        assert cluster.controller.topic_config(cluster.image, "t")["segment.bytes"] == int(value)
    assert described(cluster, topic, "t", "segment.bytes")[2] == [
        ("segment.bytes", ConfigSource.DYNAMIC_TOPIC),
        ("log.segment.bytes", ConfigSource.DYNAMIC_BROKER),
        ("log.segment.bytes", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.segment.bytes", ConfigSource.STATIC_BROKER),
        ("log.segment.bytes", ConfigSource.DEFAULT),
    ]
    assert set_config(cluster, topic, "t", "segment.bytes", None) == ErrorCode.NONE
    assert described(cluster, topic, "t", "segment.bytes")[:2] == ("4000000", ConfigSource.DYNAMIC_BROKER)


def test_the_brokers_own_configuration_follows_the_dynamic_one() -> None:
    cluster = OneBroker({"log.cleaner.threads": "2"})
    assert set_config(cluster, ResourceType.BROKER, "", "log.cleaner.threads", "4") == ErrorCode.NONE
    assert cluster.controller.broker_config(cluster.image).get_int("log.cleaner.threads") == 4
    assert described(cluster, ResourceType.BROKER, "1", "log.cleaner.threads")[:2] == (
        "4",
        ConfigSource.DYNAMIC_DEFAULT_BROKER,
    )
    for refused in ("-1", "1", "9"):  # a number of threads is at most halved or doubled at once
        error = set_config(cluster, ResourceType.BROKER, "1", "log.cleaner.threads", refused)
        assert error == ErrorCode.INVALID_REQUEST


def test_secrets_are_never_shown() -> None:
    cluster = OneBroker({"ssl.key.password": "hunter2", "plugin.secret": "hunter2"})
    for key in ("ssl.key.password", "plugin.secret"):
        value, source, synonyms = described(cluster, ResourceType.BROKER, "1", key)
        assert value is None
        assert source == ConfigSource.STATIC_BROKER
        assert "hunter2" not in repr(synonyms)
    assert "hunter2" not in repr(
        cluster.controller.describe_configs(
            cluster.image,
            DescribeConfigsRequest(
                resources=[DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)],
                include_synonyms=True,
            ),
        )
    )


def test_every_key_described_has_documentation_when_asked_for() -> None:
    cluster = OneBroker()
    create(cluster, "t", [[1]])
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((2, "t"), (4, "1"), (32, "g"))
    ]
    request = DescribeConfigsRequest(resources=resources, include_documentation=True)
    for result in cluster.controller.describe_configs(cluster.image, request).results:
        assert result.configs
        assert all(entry.documentation for entry in result.configs)


def test_resources_with_configuration_are_listed_by_type() -> None:
    cluster = OneBroker()
    create(cluster, "t", [[1]])
    set_config(cluster, ResourceType.GROUP, "g", "consumer.heartbeat.interval.ms", "6000")
    everything = cluster.controller.list_config_resources(cluster.image, ListConfigResourcesRequest(), 1)
    found = {(entry.resource_type, entry.resource_name) for entry in everything.config_resources}
    assert found == {(2, "t"), (4, "1"), (8, "1"), (32, "g")}
    assert (
        cluster.controller.list_config_resources(cluster.image, ListConfigResourcesRequest(), 0).config_resources == []
    )


def test_a_value_that_an_older_version_let_in_does_not_break_a_topic() -> None:
    cluster = OneBroker()
    create(cluster, "t", [[1]])
    records: list[MetadataRecord] = [
        ConfigRecord(resource_type=2, resource_name="t", name="segment.bytes", value="tiny"),
        ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="soon"),
    ]
    cluster.append(records)
    assert cluster.controller.topic_config(cluster.image, "t")["segment.bytes"] == 1 << 30
    assert cluster.controller.topic_config(cluster.image, "t")["retention.ms"] == 604800000
    assert cluster.controller.broker_config(cluster.image)["log.retention.ms"] is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("1", None),
        ("0" * 5000 + "1", None),
        ("2", "Unexpected broker id"),
        ("9" * 20, "must be an integer"),
        ("9" * 5000, "must be an integer"),
        (" 1", "must be an integer"),
    ],
)
def test_a_broker_is_named_by_a_number_as_java_reads_it(name: str, words: str | None) -> None:
    error = broker_name_error(name, 1)
    assert error.code == (ErrorCode.NONE if words is None else ErrorCode.INVALID_REQUEST)
    assert (words or "") in (error.message or "")
