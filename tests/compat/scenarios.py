"""One short conversation per API key, told once for all its versions and held against what each version can say."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch
from kio.schema.errors import ErrorCode

from .waiting import eventually
from .wire import Wire, batch

NONE = ErrorCode.none
NODE_ID_UNKNOWN = -1
TOPIC, BROKER = 2, 4
_numbers = itertools.count()

Scenario = Callable[["World", int], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


class World:
    """A broker, a connection to it, and what most conversations need to be there."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        cluster = wire.ask("describe_cluster", 0)
        self.cluster_id: str = cluster.cluster_id
        self.node_id: int = cluster.brokers[0].broker_id
        self.host, self.port = cluster.brokers[0].host, cluster.brokers[0].port

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        return self.wire.ask(api, version, **fields)

    def name(self, kind: str = "wire") -> str:
        return f"{kind}-{next(_numbers)}-{uuid.uuid4().hex[:6]}"

    def topic(self, partitions: int = 1, **configs: str) -> tuple[str, uuid.UUID]:
        """A new topic and its id."""
        name = self.name("topic")
        entries = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        entries.append({"name": "retention.ms", "value": "-1"})
        new = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": entries}
        created = self.ask("create_topics", 7, topics=[new], timeout=10_000).topics[0]
        assert created.error_code == NONE, created
        return name, created.topic_id

    def filled(self, *values: bytes) -> tuple[str, uuid.UUID]:
        """A new topic with a batch of these values in its one partition."""
        name, topic_id = self.topic()
        self.append(name, batch(*(values or (b"a", b"b", b"c"))))
        return name, topic_id

    def append(self, topic: str, records: bytes, transactional_id: str | None = None) -> Any:
        data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
        answer = self.ask("produce", 9, acks=-1, timeout=5000, topic_data=data, transactional_id=transactional_id)
        result = answer.responses[0].partition_responses[0]
        assert result.error_code == NONE, result
        return result

    def read(self, topic: str) -> list[bytes | None]:
        fetched = self.ask("fetch", 11, **fetch_of(topic, None))
        return values_of(fetched.responses[0].partitions[0].records)

    def member(self, group: str, version: int = 5) -> tuple[str, int]:
        """The only member of a group, joined and synced: its id and generation."""
        joined = self.join(group, version)
        synced = self.ask(
            "sync_group",
            3,
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[{"member_id": joined.member_id, "assignment": b"mine"}],
        )
        assert synced.error_code == NONE
        return joined.member_id, joined.generation_id

    def join(self, group: str, version: int) -> Any:
        self.coordinator(group)
        fields = {
            "group_id": group,
            "session_timeout": 6000,
            "rebalance_timeout": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"subscription"}],
            "reason": "a test",
        }
        joined = self.ask("join_group", version, member_id="", **fields)
        if joined.error_code == ErrorCode.member_id_required:
            assert version >= 4
            joined = self.ask("join_group", version, member_id=joined.member_id, **fields)
        assert joined.error_code == NONE, joined
        return joined

    def coordinator(self, group: str) -> None:
        """Wait until the group's partition of the offsets topic is there and loaded."""
        eventually(lambda: self.ask("find_coordinator", 1, key=group).error_code == NONE, what="a coordinator")
        eventually(
            lambda: (
                self.ask("offset_fetch", 5, group_id=group, topics=None).error_code
                not in (ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator)
            ),
            what="a loaded coordinator",
        )

    def commit(self, group: str, topic: str, offset: int, metadata: str = "note") -> None:
        self.coordinator(group)
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": metadata}
        topics = [{"name": topic, "partitions": [part]}]
        answer = self.ask("offset_commit", 7, group_id=group, topics=topics, generation_id_or_member_epoch=-1)
        assert answer.topics[0].partitions[0].error_code == NONE

    def committed(self, group: str, topic: str) -> tuple[int, str | None]:
        answer = self.ask("offset_fetch", 5, group_id=group, topics=[{"name": topic, "partition_indexes": [0]}])
        found = answer.topics[0].partitions[0]
        return found.committed_offset, found.metadata

    def producer(self, transactional_id: str) -> tuple[int, int]:
        eventually(
            lambda: self.ask("find_coordinator", 1, key=transactional_id, key_type=1).error_code == NONE,
            what="a transaction coordinator",
        )
        retriable = (
            ErrorCode.coordinator_load_in_progress,
            ErrorCode.not_coordinator,
            ErrorCode.concurrent_transactions,
        )

        def asked() -> Any:
            answer = self.ask("init_producer_id", 4, transactional_id=transactional_id, transaction_timeout=60_000)
            return None if answer.error_code in retriable else answer

        answer = eventually(asked, what="a transactional producer")
        assert answer.error_code == NONE, answer
        return answer.producer_id, answer.producer_epoch


def fetch_of(topic: str | None, topic_id: uuid.UUID | None, offset: int = 0, isolation: int = 0) -> dict[str, Any]:
    part = {
        "partition": 0,
        "fetch_offset": offset,
        "partition_max_bytes": 2**20,
        "current_leader_epoch": -1,
        "log_start_offset": -1,
        "last_fetched_epoch": -1,
    }
    return {
        "replica_id": -1,
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 2**20,
        "isolation_level": isolation,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic or "", "topic_id": topic_id, "partitions": [part]}],
        "forgotten_topics_data": [],
    }


def values_of(records: bytes | None) -> list[bytes | None]:
    assert records is not None
    found: list[bytes | None] = []
    at = 0
    while at < len(records):
        size = int.from_bytes(records[at + 8 : at + 12], "big") + 12
        parsed = DefaultRecordBatch(bytearray(records[at : at + size]))
        assert parsed.validate_crc()
        if not parsed.is_control_batch:
            found += [record.value for record in parsed]
        at += size
    return found


# --- records


@scenario
def produce(world: World, version: int) -> None:
    topic, topic_id = world.topic()
    for number in range(2):
        answer = world.ask(
            "produce",
            version,
            acks=-1,
            timeout=5000,
            topic_data=[
                {
                    "name": topic,
                    "topic_id": topic_id,
                    "partition_data": [{"index": 0, "records": batch(b"%d" % number, codec=4 if version >= 7 else 0)}],
                }
            ],
        )
        result = answer.responses[0].partition_responses[0]
        assert (result.error_code, result.index, result.base_offset) == (NONE, 0, number)
        assert result.log_append_time is None
        if version >= 5:
            assert result.log_start_offset == 0
        if version >= 8:
            assert result.record_errors == ()
            assert result.error_message is None
        if version >= 13:
            assert answer.responses[0].topic_id == topic_id
        else:
            assert answer.responses[0].name == topic
    assert world.read(topic) == [b"0", b"1"]


@scenario
def fetch(world: World, version: int) -> None:
    topic, topic_id = world.filled(b"a", b"b", b"c")
    for isolation in (0, 1):
        answer = world.ask("fetch", version, **fetch_of(topic, topic_id, isolation=isolation))
        found = answer.responses[0].partitions[0]
        assert (found.error_code, found.high_watermark, found.last_stable_offset) == (NONE, 3, 3)
        assert values_of(found.records) == [b"a", b"b", b"c"]
        if version >= 5:
            assert found.log_start_offset == 0
        if version >= 7:
            assert (answer.error_code, answer.session_id) == (NONE, 0)
        if version >= 11:
            assert found.preferred_read_replica == -1
        if version >= 13:
            assert answer.responses[0].topic_id == topic_id
        else:
            assert answer.responses[0].topic == topic
    beyond = world.ask("fetch", version, **fetch_of(topic, topic_id, offset=99)).responses[0].partitions[0]
    assert beyond.error_code == ErrorCode.offset_out_of_range
    if version >= 7:
        _fetch_in_session(world, version, topic, topic_id)


def _fetch_in_session(world: World, version: int, topic: str, topic_id: uuid.UUID) -> None:
    opened = world.ask("fetch", version, **{**fetch_of(topic, topic_id, offset=3), "session_epoch": 0, "max_wait": 0})
    assert opened.session_id > 0
    world.append(topic, batch(b"d"))
    again = {**fetch_of(topic, topic_id), "session_id": opened.session_id, "session_epoch": 1, "topics": []}
    found = world.ask("fetch", version, **again)
    assert found.session_id == opened.session_id
    assert values_of(found.responses[0].partitions[0].records) == [b"d"]


@scenario
def list_offsets(world: World, version: int) -> None:
    topic, _ = world.filled(b"a", b"b", b"c")
    wanted = {-1: (3, -1), -2: (0, -1), 1_700_000_000_001: (1, 1_700_000_000_001), 1_800_000_000_000: (-1, -1)}
    if version >= 7:
        wanted[-3] = (2, 1_700_000_000_002)
    if version >= 8:
        wanted[-4] = (0, -1)
    if version >= 9:
        wanted[-5] = (-1, -1)
    for timestamp, expected in wanted.items():
        part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        answer = world.ask(
            "list_offsets", version, replica_id=-1, topics=[{"name": topic, "partitions": [part]}], timeout=5000
        )
        found = answer.topics[0].partitions[0]
        assert (found.error_code, found.offset, found.timestamp) == (NONE, *expected), timestamp
        if version >= 4:
            assert found.leader_epoch == (-1 if expected[0] < 0 else 0)


@scenario
def offset_for_leader_epoch(world: World, version: int) -> None:
    topic, _ = world.filled(b"a", b"b")
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    answer = world.ask(
        "offset_for_leader_epoch", version, replica_id=-1, topics=[{"topic": topic, "partitions": [part]}]
    )
    found = answer.topics[0].partitions[0]
    assert (found.error_code, found.leader_epoch, found.end_offset) == (NONE, 0, 2)


@scenario
def delete_records(world: World, version: int) -> None:
    topic, _ = world.filled(b"a", b"b", b"c")
    part = {"partition_index": 0, "offset": 2}
    answer = world.ask("delete_records", version, topics=[{"name": topic, "partitions": [part]}], timeout=5000)
    found = answer.topics[0].partitions[0]
    assert (found.error_code, found.low_watermark) == (NONE, 2)


@scenario
def describe_producers(world: World, version: int) -> None:
    topic, _ = world.topic()
    producer_id = world.ask("init_producer_id", 4, transactional_id=None).producer_id
    world.append(topic, batch(b"a", b"b", producer=(producer_id, 0, 0)))
    answer = world.ask("describe_producers", version, topics=[{"name": topic, "partition_indexes": [0]}])
    found = answer.topics[0].partitions[0].active_producers
    assert [(one.producer_id, one.producer_epoch, one.last_sequence) for one in found] == [(producer_id, 0, 1)]


# --- cluster and topics


@scenario
def api_versions(world: World, version: int) -> None:
    answer = world.ask("api_versions", version, client_software_name="kio", client_software_version="0.6")
    assert answer.error_code == NONE
    keys = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    assert keys[18] == (0, 4)
    assert keys[0] == (0, 13)
    if version >= 3:
        assert {feature.name for feature in answer.finalized_features} >= {"metadata.version"}


@scenario
def metadata(world: World, version: int) -> None:
    topic, topic_id = world.topic(2)
    by_id = version >= 12
    asked = {"name": None if by_id else topic, "topic_id": topic_id}
    answer = world.ask("metadata", version, topics=[asked], allow_auto_topic_creation=False)
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(world.node_id, world.host, world.port)]
    found = answer.topics[0]
    assert (found.error_code, found.name) == (NONE, topic)
    assert {(p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in found.partitions} == {
        (index, world.node_id, (world.node_id,), (world.node_id,)) for index in (0, 1)
    }
    if version >= 1:
        assert answer.controller_id == world.node_id
        assert found.is_internal is False
    if version >= 2:
        assert answer.cluster_id == world.cluster_id
    if version >= 10:
        assert found.topic_id == topic_id
    everything = world.ask("metadata", version, topics=None if version >= 1 else [])
    assert topic in {entry.name for entry in everything.topics}


@scenario
def describe_cluster(world: World, version: int) -> None:
    answer = world.ask("describe_cluster", version, endpoint_type=1)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (NONE, world.cluster_id, world.node_id)
    assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [(world.node_id, world.host, world.port)]


@scenario
def describe_topic_partitions(world: World, version: int) -> None:
    topic, topic_id = world.topic(2)
    answer = world.ask("describe_topic_partitions", version, topics=[{"name": topic}], response_partition_limit=2000)
    found = answer.topics[0]
    assert (found.error_code, found.name, found.topic_id) == (NONE, topic, topic_id)
    assert [p.partition_index for p in found.partitions] == [0, 1]


@scenario
def create_topics(world: World, version: int) -> None:
    name = world.name("topic")
    new = {
        "name": name,
        "num_partitions": 2,
        "replication_factor": 1,
        "configs": [{"name": "cleanup.policy", "value": "compact"}],
    }
    checked = world.ask("create_topics", version, topics=[new], timeout=5000, validate_only=True).topics[0]
    assert checked.error_code == NONE
    created = world.ask("create_topics", version, topics=[new], timeout=5000).topics[0]
    assert (created.error_code, created.name) == (NONE, name)
    if version >= 5:
        assert (created.num_partitions, created.replication_factor) == (2, 1)
        assert {c.name: c.value for c in created.configs}["cleanup.policy"] == "compact"
    twice = world.ask("create_topics", version, topics=[new], timeout=5000).topics[0]
    assert twice.error_code == ErrorCode.topic_already_exists


@scenario
def delete_topics(world: World, version: int) -> None:
    name, topic_id = world.topic()
    fields: dict[str, Any] = (
        {"topics": [{"name": None, "topic_id": topic_id}]} if version >= 6 else {"topic_names": [name]}
    )
    answer = world.ask("delete_topics", version, timeout=5000, **fields).responses[0]
    assert (answer.error_code, answer.name) == (NONE, name)
    again = world.ask("delete_topics", version, timeout=5000, **fields).responses[0]
    assert again.error_code == (ErrorCode.unknown_topic_id if version >= 6 else ErrorCode.unknown_topic_or_partition)


@scenario
def create_partitions(world: World, version: int) -> None:
    name, _ = world.topic()
    answer = world.ask(
        "create_partitions", version, topics=[{"name": name, "count": 3, "assignments": None}], timeout=5000
    ).results[0]
    assert (answer.error_code, answer.name) == (NONE, name)
    described = world.ask("metadata", 9, topics=[{"name": name}]).topics[0]
    assert len(described.partitions) == 3


@scenario
def elect_leaders(world: World, version: int) -> None:
    name, _ = world.topic()
    asked = [{"topic": name, "partitions": [0]}]
    answer = world.ask("elect_leaders", version, election_type=0, topic_partitions=asked, timeout=5000)
    result = answer.replica_election_results[0].partition_result[0]
    assert result.error_code == ErrorCode.election_not_needed
    if version >= 1:
        assert answer.error_code == NONE


@scenario
def alter_partition_reassignments(world: World, version: int) -> None:
    name, _ = world.topic()
    for replicas, expected in (([world.node_id], NONE), ([4711], ErrorCode.invalid_replica_assignment)):
        asked = [{"name": name, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
        answer = world.ask("alter_partition_reassignments", version, topics=asked, timeout=5000)
        assert answer.error_code == NONE
        assert answer.responses[0].partitions[0].error_code == expected


@scenario
def list_partition_reassignments(world: World, version: int) -> None:
    answer = world.ask("list_partition_reassignments", version, topics=None, timeout=5000)
    assert (answer.error_code, answer.topics) == (NONE, ())


@scenario
def update_features(world: World, version: int) -> None:
    asked = {"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}
    answer = world.ask("update_features", version, feature_updates=[asked], timeout=5000)
    assert answer.error_code == ErrorCode.invalid_update_version or (
        answer.results[0].error_code == ErrorCode.invalid_update_version
    )


@scenario
def describe_log_dirs(world: World, version: int) -> None:
    topic, _ = world.filled()
    answer = world.ask("describe_log_dirs", version, topics=[{"topic": topic, "partitions": [0]}])
    found = answer.results[0]
    assert found.error_code == NONE
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in found.topics] == [(topic, [0])]
    assert found.topics[0].partitions[0].partition_size > 0
    if version >= 3:
        assert answer.error_code == NONE
    if version >= 4:
        assert found.total_bytes > found.usable_bytes > 0


@scenario
def alter_replica_log_dirs(world: World, version: int) -> None:
    topic, _ = world.filled()
    home = world.ask("describe_log_dirs", 4, topics=None).results[0].log_dir
    for path, expected in ((home, NONE), ("/nowhere", ErrorCode.log_dir_not_found)):
        asked = [{"path": path, "topics": [{"name": topic, "partitions": [0]}]}]
        answer = world.ask("alter_replica_log_dirs", version, dirs=asked)
        assert answer.results[0].partitions[0].error_code == expected


# --- configs


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


# --- groups


@scenario
def find_coordinator(world: World, version: int) -> None:
    group = world.name("group")
    world.coordinator(group)
    answer = world.ask("find_coordinator", version, key=group, key_type=0, coordinator_keys=[group])
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id, found.host, found.port) == (NONE, world.node_id, world.host, world.port)


@scenario
def join_group(world: World, version: int) -> None:
    joined = world.join(world.name("group"), version)
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id
    assert joined.protocol_name == "range"
    assert [(m.member_id, m.metadata) for m in joined.members] == [(joined.member_id, b"subscription")]
    if version >= 7:
        assert joined.protocol_type == "consumer"


@scenario
def sync_group(world: World, version: int) -> None:
    group = world.name("group")
    joined = world.join(group, 5)
    answer = world.ask(
        "sync_group",
        version,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": joined.member_id, "assignment": b"mine"}],
    )
    assert (answer.error_code, answer.assignment) == (NONE, b"mine")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@scenario
def heartbeat(world: World, version: int) -> None:
    group = world.name("group")
    member_id, generation = world.member(group)
    for number, expected in ((generation, NONE), (generation + 1, ErrorCode.illegal_generation)):
        answer = world.ask("heartbeat", version, group_id=group, generation_id=number, member_id=member_id)
        assert answer.error_code == expected


@scenario
def leave_group(world: World, version: int) -> None:
    group = world.name("group")
    member_id, _ = world.member(group)
    leaving = {"member_id": member_id, "group_instance_id": None, "reason": "a test"}
    answer = world.ask("leave_group", version, group_id=group, member_id=member_id, members=[leaving])
    assert answer.error_code == NONE
    if version >= 3:
        assert [(m.member_id, m.error_code) for m in answer.members] == [(member_id, NONE)]
    assert world.ask("describe_groups", 0, groups=[group]).groups[0].group_state == "Empty"


@scenario
def offset_commit(world: World, version: int) -> None:
    topic, topic_id = world.filled()
    group = world.name("group")
    member_id, generation = world.member(group)
    part = {"partition_index": 0, "committed_offset": 2, "committed_leader_epoch": 0, "committed_metadata": "note"}
    answer = world.ask(
        "offset_commit",
        version,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        retention_time=-1,
        topics=[{"name": topic, "topic_id": topic_id, "partitions": [part]}],
    )
    assert answer.topics[0].partitions[0].error_code == NONE
    if version >= 10:
        assert answer.topics[0].topic_id == topic_id
    assert world.committed(group, topic) == (2, "note")


@scenario
def offset_fetch(world: World, version: int) -> None:
    topic, topic_id = world.filled()
    group = world.name("group")
    world.commit(group, topic, 2)
    named = [{"name": topic, "topic_id": topic_id, "partition_indexes": [0]}]
    for topics in (named, None) if version >= 2 else (named,):
        if version >= 8:
            asked = [{"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}]
            answer = world.ask("offset_fetch", version, groups=asked).groups[0]
        else:
            answer = world.ask("offset_fetch", version, group_id=group, topics=topics)
        found = answer.topics[0].partitions[0]
        assert (found.error_code, found.committed_offset, found.metadata) == (NONE, 2, "note")
        if version >= 2:
            assert answer.error_code == NONE
        if version >= 10:
            assert answer.topics[0].topic_id == topic_id


@scenario
def list_groups(world: World, version: int) -> None:
    group = world.name("group")
    world.member(group)
    answer = world.ask("list_groups", version, states_filter=["Stable"], types_filter=["classic"])
    assert answer.error_code == NONE
    found = next(entry for entry in answer.groups if entry.group_id == group)
    assert found.protocol_type == "consumer"
    if version >= 4:
        assert found.group_state == "Stable"
    if version >= 5:
        assert found.group_type == "classic"


@scenario
def describe_groups(world: World, version: int) -> None:
    group = world.name("group")
    member_id, _ = world.member(group)
    found = world.ask("describe_groups", version, groups=[group]).groups[0]
    assert (found.error_code, found.group_state, found.protocol_data) == (NONE, "Stable", "range")
    only = found.members[0]
    assert (only.member_id, only.client_id, only.member_assignment) == (member_id, "kio", b"mine")
    gone = world.ask("describe_groups", version, groups=[world.name("none")]).groups[0]
    assert (gone.error_code, gone.group_state) == (NONE if version < 6 else ErrorCode.group_id_not_found, "Dead")


@scenario
def delete_groups(world: World, version: int) -> None:
    topic, _ = world.filled()
    group = world.name("group")
    world.commit(group, topic, 1)
    for expected in (NONE, ErrorCode.group_id_not_found):
        answer = world.ask("delete_groups", version, groups_names=[group])
        assert [(r.group_id, r.error_code) for r in answer.results] == [(group, expected)]


@scenario
def offset_delete(world: World, version: int) -> None:
    topic, _ = world.filled()
    group = world.name("group")
    world.commit(group, topic, 1)
    asked = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    answer = world.ask("offset_delete", version, group_id=group, topics=asked)
    assert answer.error_code == NONE
    assert answer.topics[0].partitions[0].error_code == NONE
    assert world.committed(group, topic)[0] == -1


# --- producers and transactions


@scenario
def init_producer_id(world: World, version: int) -> None:
    seen = {
        world.ask("init_producer_id", version, transactional_id=None, transaction_timeout=60_000).producer_id
        for _ in range(3)
    }
    assert len(seen) == 3
    assert min(seen) >= 0


@scenario
def add_partitions_to_txn(world: World, version: int) -> None:
    topic, _ = world.topic()
    transactional_id = world.name("txn")
    producer_id, epoch = world.producer(transactional_id)
    topics = [{"name": topic, "partitions": [0]}]
    one = {
        "transactional_id": transactional_id,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "verify_only": False,
        "topics": topics,
    }
    old = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer_id,
        "v3_and_below_producer_epoch": epoch,
        "v3_and_below_topics": topics,
    }
    answer = world.ask("add_partitions_to_txn", version, transactions=[one], **old)
    if version >= 4:
        assert answer.error_code == NONE
        results = answer.results_by_transaction[0].topic_results
    else:
        results = answer.results_by_topic_v3_and_below
    assert results[0].results_by_partition[0].partition_error_code == NONE
    world.append(topic, batch(b"a", producer=(producer_id, epoch, 0), transactional=True), transactional_id)
    _end(world, 3, transactional_id, producer_id, epoch)
    _wait_for_stable(world, topic, 2)


def _end(world: World, version: int, transactional_id: str, producer_id: int, epoch: int) -> Any:
    answer = world.ask(
        "end_txn",
        version,
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        committed=True,
    )
    assert answer.error_code == NONE, answer
    return answer


def _wait_for_stable(world: World, topic: str, offset: int) -> None:
    def stable() -> bool:
        found = world.ask("fetch", 11, **{**fetch_of(topic, None, offset=0), "max_wait": 0}).responses[0].partitions[0]
        return bool(found.last_stable_offset == offset)

    eventually(stable, what="the end of the transaction")


def _begin(world: World, topic: str) -> tuple[str, int, int]:
    transactional_id = world.name("txn")
    producer_id, epoch = world.producer(transactional_id)
    answer = world.ask(
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[{"name": topic, "partitions": [0]}],
    )
    assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == NONE
    world.append(topic, batch(b"a", producer=(producer_id, epoch, 0), transactional=True), transactional_id)
    return transactional_id, producer_id, epoch


@scenario
def end_txn(world: World, version: int) -> None:
    topic, _ = world.topic()
    transactional_id, producer_id, epoch = _begin(world, topic)
    answer = _end(world, version, transactional_id, producer_id, epoch)
    if version >= 5:
        assert (answer.producer_id, answer.producer_epoch) == (producer_id, epoch + 1)
    _wait_for_stable(world, topic, 2)


@scenario
def add_offsets_to_txn(world: World, version: int) -> None:
    transactional_id = world.name("txn")
    producer_id, epoch = world.producer(transactional_id)
    group = world.name("group")
    world.coordinator(group)
    answer = world.ask(
        "add_offsets_to_txn",
        version,
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        group_id=group,
    )
    assert answer.error_code == NONE
    _end(world, 3, transactional_id, producer_id, epoch)


@scenario
def txn_offset_commit(world: World, version: int) -> None:
    topic, _ = world.filled()
    transactional_id = world.name("txn")
    producer_id, epoch = world.producer(transactional_id)
    group = world.name("group")
    world.coordinator(group)
    common = {
        "transactional_id": transactional_id,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "group_id": group,
    }
    assert world.ask("add_offsets_to_txn", 3, **common).error_code == NONE
    part = {"partition_index": 0, "committed_offset": 2, "committed_leader_epoch": -1, "committed_metadata": "note"}
    answer = world.ask(
        "txn_offset_commit",
        version,
        **common,
        generation_id=-1,
        member_id="",
        topics=[{"name": topic, "partitions": [part]}],
    )
    assert answer.topics[0].partitions[0].error_code == NONE
    assert world.committed(group, topic)[0] == -1
    _end(world, 3, transactional_id, producer_id, epoch)
    eventually(lambda: world.committed(group, topic) == (2, "note"), what="the offsets of the transaction")


@scenario
def write_txn_markers(world: World, version: int) -> None:
    topic, _ = world.topic()
    _, producer_id, epoch = _begin(world, topic)
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    answer = world.ask("write_txn_markers", version, markers=[marker])
    assert answer.markers[0].topics[0].partitions[0].error_code == NONE
    _wait_for_stable(world, topic, 2)


@scenario
def describe_transactions(world: World, version: int) -> None:
    topic, _ = world.topic()
    transactional_id, producer_id, epoch = _begin(world, topic)
    found = world.ask("describe_transactions", version, transactional_ids=[transactional_id]).transaction_states[0]
    assert (found.error_code, found.transaction_state, found.producer_id) == (NONE, "Ongoing", producer_id)
    assert [(t.topic, t.partitions) for t in found.topics] == [(topic, (0,))]
    _end(world, 3, transactional_id, producer_id, epoch)


@scenario
def list_transactions(world: World, version: int) -> None:
    topic, _ = world.topic()
    transactional_id, producer_id, epoch = _begin(world, topic)
    found = world.ask("list_transactions", version, state_filters=["Ongoing"], duration_filter=-1)
    assert found.error_code == NONE
    assert (transactional_id, producer_id) in {(s.transactional_id, s.producer_id) for s in found.transaction_states}
    _end(world, 3, transactional_id, producer_id, epoch)


# --- what is off: security and quotas

ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


@scenario
def describe_acls(world: World, version: int) -> None:
    assert world.ask("describe_acls", version, **ANY_ACL).error_code == ErrorCode.security_disabled


@scenario
def create_acls(world: World, version: int) -> None:
    new = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    assert world.ask("create_acls", version, creations=[new]).results[0].error_code == ErrorCode.security_disabled


@scenario
def delete_acls(world: World, version: int) -> None:
    answer = world.ask("delete_acls", version, filters=[ANY_ACL])
    assert answer.filter_results[0].error_code == ErrorCode.security_disabled


@scenario
def describe_client_quotas(world: World, version: int) -> None:
    answer = world.ask("describe_client_quotas", version, components=[], strict=False)
    assert answer.error_code == NONE


@scenario
def alter_client_quotas(world: World, version: int) -> None:
    entry = {
        "entity": [{"entity_type": "client-id", "entity_name": "nobody"}],
        "ops": [{"key": "no_such_quota", "value": 1.0, "remove": False}],
    }
    answer = world.ask("alter_client_quotas", version, entries=[entry])
    assert answer.entries[0].error_code != NONE


@scenario
def describe_user_scram_credentials(world: World, version: int) -> None:
    answer = world.ask("describe_user_scram_credentials", version, users=[{"name": "nobody"}])
    assert answer.results[0].error_code == ErrorCode.resource_not_found


@scenario
def alter_user_scram_credentials(world: World, version: int) -> None:
    answer = world.ask("alter_user_scram_credentials", version, deletions=[{"name": "nobody", "mechanism": 1}])
    assert answer.results[0].error_code == ErrorCode.resource_not_found


@scenario
def sasl_handshake(world: World, version: int) -> None:
    answer = world.ask("sasl_handshake", version, mechanism="PLAIN")
    assert answer.error_code == ErrorCode.illegal_sasl_state


@scenario
def sasl_authenticate(world: World, version: int) -> None:
    answer = world.ask("sasl_authenticate", version, auth_bytes=b"\0user\0password")
    assert answer.error_code == ErrorCode.illegal_sasl_state
