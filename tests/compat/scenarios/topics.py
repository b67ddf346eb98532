"""What is asked of the cluster: who it is, its topics and partitions, and the directories they are in."""

from __future__ import annotations

import uuid
from typing import Any

from kio.schema.errors import ErrorCode

from ..world import NONE, World
from .told import scenario


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
    asked = {"name": None, "topic_id": topic_id} if by_id else {"name": topic}
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
def describe_quorum(world: World, version: int) -> None:
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = world.ask("describe_quorum", version, topics=asked)
    (found,) = answer.topics[0].partitions
    assert (answer.error_code, found.error_code, found.leader_id) == (NONE, NONE, world.node_id)
    assert [voter.replica_id for voter in found.current_voters] == [world.node_id]
    assert found.high_watermark > 0


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
def unregister_broker(world: World, version: int) -> None:
    answer = world.ask("unregister_broker", version, broker_id=99)
    assert answer.error_code == ErrorCode.broker_id_not_registered
    assert answer.error_message == "Broker ID 99 is not currently registered"


@scenario
def add_raft_voter(world: World, version: int) -> None:
    voter = {"voter_id": 7, "voter_directory_id": uuid.UUID(int=7), "listeners": ()}
    answer = world.ask("add_raft_voter", version, cluster_id="another", timeout=5000, **voter)
    assert answer.error_code == ErrorCode.inconsistent_cluster_id


@scenario
def remove_raft_voter(world: World, version: int) -> None:
    voter = {"voter_id": 7, "voter_directory_id": uuid.UUID(int=7)}
    answer = world.ask("remove_raft_voter", version, cluster_id=None, **voter)
    assert answer.error_code == ErrorCode.unsupported_version


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
