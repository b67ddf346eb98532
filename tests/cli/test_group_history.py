"""`headrace group history` and `what-if`, on a broker."""

from __future__ import annotations

import json
import uuid

import pytest

from headrace import Consumer
from headrace.cli.app import run
from headrace.client.admin import Admin, NewTopic
from headrace.testing.embedded import broker


def test_history_and_what_if_are_printed_and_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    group = f"group-{uuid.uuid4().hex[:8]}"
    with broker() as kafka:
        address = kafka.address
        with Admin(bootstrap_servers=address) as admin:
            admin.create_topics([NewTopic("orders", 4, 1)]).all()
        assert run(["group", "history", group, "-b", address]) == 1
        with Consumer({"bootstrap.servers": address, "group.id": group, "client.id": "till"}) as consumer:
            consumer.subscribe(["orders"])
            while not consumer.assignment():
                consumer.poll(timeout=0.1)
            capsys.readouterr()
            assert run(["group", "history", group, "-b", address]) == 0
            told = capsys.readouterr().out
            assert "generation 1" in told
            assert "joined: member till-" in told
            assert run(["group", "history", group, "-b", address, "--json"]) == 0
            document = json.loads(capsys.readouterr().out)
            assert document["causes_are_exact"]
            assert document["rebalances"][0]["moves"] == []

            assert run(["group", "what-if", group, "-b", address, "--members", "2"]) == 0
            told = capsys.readouterr().out
            assert "range: 2 to 2 partitions each, 2 partitions would move" in told
            assert "new-1 (new)" in told
            options = ["--strategy", "weighted", "--members", "2", "--weight", "till=3", "--json"]
            assert run(["group", "what-if", group, "-b", address, *options]) == 0
            plan = json.loads(capsys.readouterr().out)
            assert [len(member["partitions"]) for member in plan["members"]] == [3, 1]
            assert run(["group", "what-if", group, "-b", address, "--without", "nobody"]) == 2
        capsys.readouterr()
        assert run(["group", "what-if", group, "-b", address]) == 1
        assert "no members now" in capsys.readouterr().err
