"""Every API key says what it requires, as Apache Kafka does."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.requests.dispatch import load_handlers
from headrace.broker.requests.handler import Handler
from headrace.broker.requests.rights import CLUSTER_NAME, AnyOf, Operation, Requirement, Resource, Right, at
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.fetch import FetchRequest, FetchTopic, ReplicaState
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.protocol.messages.produce import ProduceRequest, TopicProduceData
from headrace.protocol.schema import Array, Primitive

# Operation and resource: T(opic), G(roup), X (transactional id), C(luster). "|" where one is enough, "?" where it
# depends on what the answer holds.
EXPECTED = {
    ApiKey.PRODUCE: "WRITE X, WRITE T",
    ApiKey.FETCH: "READ T, CLUSTER_ACTION C",
    ApiKey.LIST_OFFSETS: "DESCRIBE T",
    ApiKey.METADATA: "DESCRIBE T, CREATE T?|CREATE C?",
    ApiKey.OFFSET_COMMIT: "READ G, READ T",
    ApiKey.OFFSET_FETCH: "DESCRIBE G, DESCRIBE T",
    ApiKey.FIND_COORDINATOR: "DESCRIBE G, DESCRIBE X, CLUSTER_ACTION C",
    ApiKey.JOIN_GROUP: "READ G",
    ApiKey.HEARTBEAT: "READ G",
    ApiKey.LEAVE_GROUP: "READ G",
    ApiKey.SYNC_GROUP: "READ G",
    ApiKey.DESCRIBE_GROUPS: "DESCRIBE G",
    ApiKey.LIST_GROUPS: "DESCRIBE C?|DESCRIBE G?",
    ApiKey.SASL_HANDSHAKE: "",
    ApiKey.API_VERSIONS: "",
    ApiKey.CREATE_TOPICS: "CREATE C|CREATE T, DESCRIBE_CONFIGS T?",
    ApiKey.DELETE_TOPICS: "DELETE C|DESCRIBE T, DELETE C|DELETE T",
    ApiKey.DELETE_RECORDS: "DELETE T",
    ApiKey.INIT_PRODUCER_ID: "WRITE X, IDEMPOTENT_WRITE C|WRITE T?",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "DESCRIBE T|CLUSTER_ACTION C",
    ApiKey.ADD_PARTITIONS_TO_TXN: "WRITE X, WRITE T, CLUSTER_ACTION C",
    ApiKey.ADD_OFFSETS_TO_TXN: "WRITE X, READ G",
    ApiKey.END_TXN: "WRITE X",
    ApiKey.WRITE_TXN_MARKERS: "CLUSTER_ACTION C|ALTER C",
    ApiKey.TXN_OFFSET_COMMIT: "WRITE X, READ G, READ T",
    ApiKey.DESCRIBE_ACLS: "DESCRIBE C",
    ApiKey.CREATE_ACLS: "ALTER C",
    ApiKey.DELETE_ACLS: "ALTER C",
    ApiKey.DESCRIBE_CONFIGS: "DESCRIBE_CONFIGS T, DESCRIBE_CONFIGS G, DESCRIBE_CONFIGS C",
    ApiKey.ALTER_CONFIGS: "ALTER_CONFIGS T, ALTER_CONFIGS G, ALTER_CONFIGS C",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "ALTER C",
    ApiKey.DESCRIBE_LOG_DIRS: "DESCRIBE C",
    ApiKey.SASL_AUTHENTICATE: "",
    ApiKey.CREATE_PARTITIONS: "ALTER T",
    ApiKey.DELETE_GROUPS: "DELETE G",
    ApiKey.ELECT_LEADERS: "ALTER C",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "ALTER_CONFIGS T, ALTER_CONFIGS G, ALTER_CONFIGS C",
    ApiKey.ALTER_PARTITION: "CLUSTER_ACTION C",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "ALTER C",
    ApiKey.BROKER_REGISTRATION: "CLUSTER_ACTION C",
    ApiKey.BROKER_HEARTBEAT: "CLUSTER_ACTION C",
    ApiKey.ALLOCATE_PRODUCER_IDS: "CLUSTER_ACTION C",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "DESCRIBE C",
    ApiKey.OFFSET_DELETE: "DELETE G, READ T",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "DESCRIBE_CONFIGS C",
    ApiKey.ALTER_CLIENT_QUOTAS: "ALTER_CONFIGS C",
    ApiKey.CREATE_DELEGATION_TOKEN: "",
    ApiKey.RENEW_DELEGATION_TOKEN: "",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "DESCRIBE C",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "ALTER C",
    ApiKey.UPDATE_FEATURES: "ALTER C",
    ApiKey.UNREGISTER_BROKER: "ALTER C",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "",
    ApiKey.PUSH_TELEMETRY: "",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "READ G, DESCRIBE T?, CREATE T?|CREATE C?",
    ApiKey.STREAMS_GROUP_DESCRIBE: "DESCRIBE G",
    ApiKey.ADD_RAFT_VOTER: "ALTER C",
    ApiKey.REMOVE_RAFT_VOTER: "ALTER C",
    ApiKey.DESCRIBE_CLUSTER: "",
    ApiKey.DESCRIBE_PRODUCERS: "READ T",
    ApiKey.DESCRIBE_TRANSACTIONS: "DESCRIBE X, DESCRIBE T?",
    ApiKey.LIST_TRANSACTIONS: "DESCRIBE X?",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "READ G, DESCRIBE T?",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "DESCRIBE G",
    ApiKey.LIST_CONFIG_RESOURCES: "DESCRIBE_CONFIGS C",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "DESCRIBE T",
    ApiKey.DESCRIBE_QUORUM: "DESCRIBE C",
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: "CLUSTER_ACTION C",
    ApiKey.SHARE_GROUP_HEARTBEAT: "READ G, DESCRIBE T?",
    ApiKey.SHARE_GROUP_DESCRIBE: "DESCRIBE G",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "DESCRIBE G, DESCRIBE T?",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "READ G, READ T?",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "DELETE G, READ T?",
    ApiKey.SHARE_FETCH: "READ G, READ T?",
    ApiKey.SHARE_ACKNOWLEDGE: "READ G, READ T?",
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: "CLUSTER_ACTION C",
    ApiKey.READ_SHARE_GROUP_STATE: "CLUSTER_ACTION C",
    ApiKey.WRITE_SHARE_GROUP_STATE: "CLUSTER_ACTION C",
    ApiKey.DELETE_SHARE_GROUP_STATE: "CLUSTER_ACTION C",
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: "CLUSTER_ACTION C",
}
_LETTERS = {Resource.TOPIC: "T", Resource.GROUP: "G", Resource.TRANSACTIONAL_ID: "X", Resource.CLUSTER: "C"}
HANDLERS = list(load_handlers().values())


def rights_of(requirement: Requirement) -> tuple[Right, ...]:
    return requirement.rights if isinstance(requirement, AnyOf) else (requirement,)


def described(handler: Handler) -> str:
    return ", ".join(
        "|".join(
            f"{right.operation.name} {_LETTERS[right.resource]}{'?' if right.conditional else ''}"
            for right in rights_of(requirement)
        )
        for requirement in handler.requires
    )


def test_every_api_key_declares_what_it_requires() -> None:
    assert {handler.api_key: described(handler) for handler in HANDLERS} == EXPECTED


def filled(cls: Any) -> Any:
    """A message with one of everything in it."""
    values: dict[str, Any] = {}
    for field in cls.SCHEMA.fields:
        inner = field.type.element if isinstance(field.type, Array) else field.type
        if isinstance(inner, Primitive):
            names = {"string": field.name, "uuid": b"u" * 16}
            value = names.get(inner.name, field.default_value if not isinstance(field.type, Array) else inner.default)
        else:
            value = filled(inner)
        values[field.name] = [value] if isinstance(field.type, Array) else value
    return cls(**values)


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: handler.api_key.name)
def test_the_names_of_resources_are_found_in_every_version(handler: Handler) -> None:
    request = filled(handler.request_class)
    for version in range(handler.low, handler.high + 1):
        for requirement in handler.requires:
            for right in rights_of(requirement):
                assert isinstance(right.operation, Operation)
                for name in right.names(request, version):
                    assert name
                    assert isinstance(name, str) or right.resource is Resource.TOPIC


def needed(api_key: ApiKey, request: Any, version: int) -> list[tuple[Operation, str | bytes]]:
    return [
        (right.operation, name)
        for requirement in load_handlers()[api_key].requires
        for right in rights_of(requirement)
        if not right.conditional
        for name in right.names(request, version)
    ]


def test_a_right_is_needed_for_what_a_request_names() -> None:
    topics = [TopicProduceData(name="a", topic_id=b"i" * 16), TopicProduceData(name="b", topic_id=b"j" * 16)]
    write = Operation.WRITE
    request = ProduceRequest(transactional_id="x", topic_data=topics)
    assert needed(ApiKey.PRODUCE, request, 12) == [(write, "x"), (write, "a"), (write, "b")]
    assert needed(ApiKey.PRODUCE, request, 13) == [(write, "x"), (write, b"i" * 16), (write, b"j" * 16)]
    assert needed(ApiKey.PRODUCE, ProduceRequest(), 12) == []
    by_name_or_id = [MetadataRequestTopic(name="a"), MetadataRequestTopic(name=None, topic_id=b"i" * 16)]
    describe = Operation.DESCRIBE
    asked = needed(ApiKey.METADATA, MetadataRequest(topics=by_name_or_id), 12)
    assert asked == [(describe, "a"), (describe, b"i" * 16)]
    assert needed(ApiKey.METADATA, MetadataRequest(topics=None), 12) == []


def test_a_group_without_a_name_is_one_all_the_same() -> None:
    assert needed(ApiKey.OFFSET_FETCH, OffsetFetchRequest(group_id=""), 7) == [(Operation.DESCRIBE, "")]
    groups = [OffsetFetchRequestGroup(group_id="g")]
    assert needed(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=groups), 8) == [(Operation.DESCRIBE, "g")]


def test_a_follower_needs_other_rights_than_a_consumer() -> None:
    topics = [FetchTopic(topic="a", topic_id=b"i" * 16)]
    assert needed(ApiKey.FETCH, FetchRequest(topics=topics), 12) == [(Operation.READ, "a")]
    as_broker = [(Operation.CLUSTER_ACTION, CLUSTER_NAME)]
    assert needed(ApiKey.FETCH, FetchRequest(topics=topics, replica_id=1), 12) == as_broker
    state = ReplicaState(replica_id=1)
    assert needed(ApiKey.FETCH, FetchRequest(topics=topics, replica_state=state), 15) == as_broker


def test_what_is_needed_depends_on_what_is_asked_for() -> None:
    describe = Operation.DESCRIBE
    for key_type, resource in ((0, Resource.GROUP), (1, Resource.TRANSACTIONAL_ID)):
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["k"])
        assert needed(ApiKey.FIND_COORDINATOR, request, 4) == [(describe, "k")]
        named = [right for right in load_handlers()[ApiKey.FIND_COORDINATOR].requires if isinstance(right, Right)]
        assert [right.resource for right in named if right.names(request, 4)] == [resource]
    idempotent = needed(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None), 4)
    assert idempotent == [(Operation.IDEMPOTENT_WRITE, CLUSTER_NAME)]
    assert needed(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id="x"), 4) == [(Operation.WRITE, "x")]
    resources = [DescribeConfigsResource(resource_type=kind, resource_name=f"r{kind}") for kind in (2, 4, 32)]
    asked = needed(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=resources), 4)
    assert [name for _, name in asked] == ["r2", "r32", CLUSTER_NAME]


def test_a_place_that_a_request_does_not_have_is_a_mistake_of_the_declaration() -> None:
    with pytest.raises(StopIteration):
        at("topicz.name")(MetadataRequest(), 12)
