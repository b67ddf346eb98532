"""What `headrace cluster status --watch` says has changed from one look to the next."""

from __future__ import annotations

from typing import Any

from headrace.cli.cluster_status import _Changes, _screen


def _look(controller: int | None, *, error: str | None = None, dead: int | None = None) -> dict[str, Any]:
    is_known = error is None
    return {
        "controller": controller if is_known else None,
        "error": error,
        "partitions": [{"partition": "t-0", "leader": 2 if dead == 1 else 1}] if is_known else [],
        "under_replicated": int(dead is not None) if is_known else 0,
        "leaderless": 0,
        "brokers": [
            {"id": node, "process": "dead" if node == dead else "running", "registered": is_known and node != dead}
            for node in (1, 2, 3)
        ],
    }


def _said(*looks: dict[str, Any]) -> list[str]:
    changes = _Changes()
    for look in looks:
        changes.look(look)
    return [event.split("  ", 1)[1] for event in changes.events]


def test_a_broker_that_is_killed_and_what_follows_is_told() -> None:
    assert _said(_look(1), _look(2, dead=1), _look(2)) == [
        "broker 1 is dead",
        "broker 1 is out of the cluster",
        "the controller is broker 2",
        "1 partition with another leader",
        "1 partition under-replicated (0 before)",
        "broker 1 is running",
        "broker 1 joined the cluster",
        "1 partition with another leader",
        "0 partitions under-replicated (1 before)",
    ]


def test_a_look_that_nobody_answered_says_nothing_of_the_cluster() -> None:
    assert _said(_look(1), _look(None, error="no answer"), _look(1)) == []
    assert _said(_look(None, error="no answer"), _look(1)) == []
    assert _said(_look(1), _look(None, error="no answer", dead=3), _look(1, dead=3)) == [
        "broker 3 is dead",
        "broker 3 is out of the cluster",
        "1 partition under-replicated (0 before)",
    ]


def test_a_cluster_without_topics_is_said_to_have_none() -> None:
    broker = {"id": 1, "address": "127.0.0.1:9092", "process": "running", "registered": True, "controller": True}
    broker |= {"leads": 0, "in_sync": 0, "replicas": 0, "memory_bytes": None}
    whole = {"leader": 1, "isr": [1], "replicas": [1]}
    assert "no partitions yet" in _screen({"brokers": [broker], "error": None, "partitions": []})[-1]
    shown = _screen({"brokers": [broker], "error": None, "partitions": [whole] * 2})
    assert shown[-1] == "2 partitions, all led and whole"
