"""`headrace cluster`, `reassign` and `elect` against a broker: which cluster they talk to, and what they ask first."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from tests.cli.conftest import Command

from headrace.cli.exits import Exit
from headrace.client.admin import Admin, ClusterDescription, PartitionReassignment, Results
from headrace.net.node import Node
from headrace.testing import EmbeddedBroker
from headrace.topics import TopicPartition

COMMANDS = ["cluster", "reassign status", "elect"]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_file_names_the_brokers(command: Command, kafka: EmbeddedBroker, tmp_path: Path, words: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={kafka.address}\n")
    result = command(*words.split(), "--command-config", str(file))
    assert (result.code, "headrace:" in result.err) == (Exit.OK, False)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_setting_that_no_client_has_is_refused(headrace: Command, words: str) -> None:
    result = headrace(*words.split(), "-X", "sasl.mechanisme=PLAIN")
    assert result.code == Exit.USAGE
    assert "did you mean sasl.mechanism?" in result.err


def test_a_plan_is_made_run_and_undone(headrace: Command, topic: str, tmp_path: Path) -> None:
    assert json.loads(headrace("reassign", "plan", topic).out)["partitions"] == []
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1]}]}))
    run = headrace("reassign", "run", str(file))
    assert run.code == Exit.OK
    undo = tmp_path / "plan.undo.json"
    assert f"To undo it: headrace reassign run {undo}\n" in run.err
    assert json.loads(undo.read_text())["partitions"] == [{"topic": topic, "partition": 0, "replicas": [1]}]
    assert headrace("reassign", "run", str(undo)).code == Exit.OK
    assert "nothing is being moved" in headrace("reassign", "cancel").err


def test_the_plan_that_undoes_another_is_never_written_over(headrace: Command, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1]}]}))
    assert headrace("reassign", "run", str(file)).code == Exit.OK
    (tmp_path / "plan.undo.json").write_text("precious")
    assert "plan.undo2.json" in headrace("reassign", "run", str(file)).err
    assert (tmp_path / "plan.undo.json").read_text() == "precious"
    for where, why in (("plan.undo.json", "exists already"), ("no/such/place", "No such file")):
        refused = headrace("reassign", "run", str(file), "--undo", str(tmp_path / where))
        assert refused.code == Exit.USAGE
        assert why in refused.err
        assert "nothing was moved" in refused.err


@pytest.mark.slow
def test_a_cluster_is_not_started_where_another_listens(command: Command, tmp_path: Path) -> None:
    """Else that one would be taken for its broker, and be written to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = command("cluster", "start", "-n", "1", "--dir", str(tmp_path / "cluster"), "--port", str(port))
    assert result.code != Exit.OK
    assert f"cannot listen on 127.0.0.1:{port}" in result.err
    assert list(tmp_path.rglob("*.log")) == []


def test_throttles_stay_as_long_as_something_is_moved(
    headrace: Command, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two moves one is cancelled: the other goes on no faster than before."""
    names = [f"{side}.replication.throttled.replicas" for side in ("leader", "follower")]
    assert headrace("config", "set", "topic", topic, *(f"{name}=*" for name in names)).code == Exit.OK
    moving = {TopicPartition(topic, index): PartitionReassignment((1,), (), ()) for index in (0, 1)}

    def alter(admin: Admin, wanted: dict[TopicPartition, None]) -> Results[TopicPartition, None]:
        for partition in wanted:
            del moving[partition]
        return Results(dict.fromkeys(wanted), {})

    monkeypatch.setattr(Admin, "list_partition_reassignments", lambda admin: dict(moving))
    monkeypatch.setattr(Admin, "alter_partition_reassignments", alter)
    assert "taken back" not in headrace("reassign", "cancel", f"{topic}-0").err
    assert "taken back" in headrace("reassign", "cancel").err


def test_an_election_that_loses_records_is_not_held_where_nobody_can_be_asked(headrace: Command, topic: str) -> None:
    refused = headrace("elect", topic, "--unclean")
    assert refused.code == Exit.USAGE
    assert "may be lost" in refused.err
    assert "add --yes" in refused.err
    assert headrace("elect", topic, "--unclean", "--yes").code == Exit.OK


def test_only_a_broker_that_does_not_run_is_forgotten(
    headrace: Command, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "broker 1 runs" in headrace("cluster", "unregister", "1").err
    assert "9 is not currently registered" in headrace("cluster", "unregister", "9").err
    # One that is down and holds something is forgotten when that is meant.
    nodes = (Node(1, "127.0.0.1", 1), Node(2, "127.0.0.1", 2))
    described = ClusterDescription("cluster", nodes[0], nodes, frozenset({1, 2}))
    forgotten: list[int] = []
    monkeypatch.setattr(Admin, "describe_cluster", lambda admin, **_: described)
    monkeypatch.setattr(Admin, "unregister_broker", lambda admin, node_id: forgotten.append(node_id))
    refused = headrace("cluster", "unregister", "1")
    assert refused.code == Exit.USAGE
    assert "Broker 1 holds" in refused.err
    assert headrace("cluster", "unregister", "2").code == Exit.OK
    assert headrace("cluster", "unregister", "1", "--yes").code == Exit.OK
    assert forgotten == [2, 1]
