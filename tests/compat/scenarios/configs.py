"""What is asked of configs: of topics and brokers, described and altered."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from ..world import NONE, World
from .told import scenario

TOPIC, BROKER = 2, 4


@scenario
def describe_configs(world: World, version: int) -> None:
    topic, _ = world.topic(cleanup_policy="compact")
    asked = [
        {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["cleanup.policy"]},
        {"resource_type": BROKER, "resource_name": str(world.node_id), "configuration_keys": ["log.retention.hours"]},
    ]
    answer = world.ask("describe_configs", version, resources=asked, include_synonyms=True, include_documentation=True)
    of_topic, of_broker = answer.results
    assert (of_topic.error_code, of_broker.error_code) == (NONE, NONE)
    policy = of_topic.configs[0]
    assert (policy.name, policy.value, policy.read_only, policy.is_sensitive) == (
        "cleanup.policy",
        "compact",
        False,
        False,
    )
    assert policy.config_source == 1
    first = policy.synonyms[0]
    assert (first.name, first.value, first.source) == ("cleanup.policy", "compact", 1)
    assert of_broker.configs[0].value == "168"
    if version >= 3:
        assert policy.config_type == 7  # a list
        assert policy.documentation


@scenario
def alter_configs(world: World, version: int) -> None:
    topic, _ = world.topic()
    asked = {"resource_type": TOPIC, "resource_name": topic, "configs": [{"name": "segment.bytes", "value": "2000000"}]}
    answer = world.ask("alter_configs", version, resources=[asked]).responses[0]
    assert (answer.error_code, answer.resource_name) == (NONE, topic)
    wrong = {**asked, "configs": [{"name": "segment.bytes", "value": "many"}]}
    refused = world.ask("alter_configs", version, resources=[wrong]).responses[0]
    assert refused.error_code == ErrorCode.invalid_config
    assert config_of(world, topic, "segment.bytes") == "2000000"


@scenario
def incremental_alter_configs(world: World, version: int) -> None:
    topic, _ = world.topic()
    for operation, value, expected in ((0, "2000000", "2000000"), (1, None, "1073741824")):
        changes = [{"name": "segment.bytes", "config_operation": operation, "value": value}]
        asked = {"resource_type": TOPIC, "resource_name": topic, "configs": changes}
        answer = world.ask("incremental_alter_configs", version, resources=[asked]).responses[0]
        assert (answer.error_code, answer.resource_name) == (NONE, topic)
        assert config_of(world, topic, "segment.bytes") == expected


def config_of(world: World, topic: str, name: str) -> str:
    asked = [{"resource_type": TOPIC, "resource_name": topic, "configuration_keys": [name]}]
    value = world.ask("describe_configs", 1, resources=asked).results[0].configs[0].value
    assert isinstance(value, str)
    return value


@scenario
def list_config_resources(world: World, version: int) -> None:
    topic, _ = world.topic()
    answer = world.ask("list_config_resources", version, resource_types=[TOPIC, BROKER])
    assert answer.error_code == NONE
    if version >= 1:
        found = {(entry.resource_type, entry.resource_name) for entry in answer.config_resources}
        assert {(TOPIC, topic), (BROKER, str(world.node_id))} <= found
