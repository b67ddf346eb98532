"""Plays recorded conversations with a real broker on a transaction coordinator and model partitions.

Requests to the coordinator are answered by it and compared. Produce is done as a leader does it (ask the coordinator,
then append), of which errors are compared. Of Fetch only the end and the last stable offset are; what consumers and
groups see of transactions is the log's and the group coordinator's matter, and tested there.
"""

from __future__ import annotations

from typing import Any

from groups.recordings import build, differences, expand, message_classes, show
from headrace.errors import ErrorCode
from headrace.protocol.codec import decode, encode
from headrace.topics import TopicPartition, partition_for_group
from headrace.transactions import (
    ADD_VERSION,
    OFFSETS_ADD_VERSION,
    PRODUCE_ADDS_VERSION,
    MarkerRequest,
    between_brokers,
    errors_of,
    offset_commit_error,
    produce_error,
)

from .driver import Driver
from .model import Partition

APIS = {
    "init_producer_id",
    "add_partitions_to_txn",
    "add_offsets_to_txn",
    "end_txn",
    "describe_transactions",
    "list_transactions",
}
OTHERS = {
    "list_offsets": "the log's matter",
    "describe_producers": "the log's matter",
    "offset_fetch": "the group coordinator's matter",
    "offset_commit": "the group coordinator's matter",
    "offset_delete": "the group coordinator's matter",
    "delete_groups": "the group coordinator's matter",
    "join_group": "the group coordinator's matter",
    "sync_group": "the group coordinator's matter",
}
# Errors that a group coordinator finds once the transaction coordinator has nothing against a commit of offsets.
GROUP_ERRORS = {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "OFFSET_METADATA_TOO_LARGE"}


class ModelDriver(Driver):
    """Markers go to model partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions: dict[TopicPartition, Partition] = {}

    def partition(self, name: TopicPartition) -> Partition:
        return self.partitions.setdefault(name, Partition())

    def mark(self, request: MarkerRequest) -> None:
        errors = {name: self.partition(name).mark(request) for name in request.partitions}
        self.absorb(self.coordinator.markers_written(request, errors, self.now))

    def append(
        self, who: tuple[str, int, int], name: TopicPartition, value: str, adds: bool, count: int = 1
    ) -> ErrorCode:
        """As a leader does: the coordinator is asked before a transaction's first batch."""
        partition = self.partition(name)
        guard, error = partition.ask_first(who[1], who[2]), ErrorCode.NONE
        if guard is not None and adds:
            request = between_brokers(*who, [name], verify_only=False)
            error = errors_of(self.ask("add_partitions_to_txn", request, ADD_VERSION), who[0])[name]
        elif guard is not None:
            error = self.coordinator.verify(*who, [name])[name]
        return partition.append(who[1], who[2], value, guard, count) if error == ErrorCode.NONE else error


class Conversation:
    def __init__(self) -> None:
        self.driver = ModelDriver()
        names = {"u": "0123456789", "t": "t-0123456789", "t2": "u-0123456789", "g": "g-0123456789", "x": "x-0123456789"}
        self.variables: dict[str, Any] = {**names, "now": self.driver.now_ms, "m1": "member"}

    def play(self, case: dict[str, Any]) -> list[str]:
        problems = []
        for number, step in enumerate(case["steps"]):
            problems += [f"step {number} {step.get('api', '')} {problem}" for problem in self.step(step)]
        return problems

    def step(self, step: dict[str, Any]) -> list[str]:
        if "setup_topic" in step:
            spec = expand(step["setup_topic"], self.variables)
            self.driver.topics.known[spec["name"]] = spec.get("partitions", 1)
            self.variables[step.get("var", "tid")] = spec["name"]
            return []
        if step["api"] in APIS:
            return self.request(step)
        if step["api"] == "produce":
            return self.produce(step)
        if step["api"] == "fetch":
            return self.fetch(step)
        if step["api"] == "txn_offset_commit":
            return self.commit_offsets(step)
        if step["api"] == "write_txn_markers":
            return self.write_markers(step)
        assert step["api"] in OTHERS
        return []

    def request(self, step: dict[str, Any]) -> list[str]:
        api, version = step["api"], step["v"]
        request_class, response_class = message_classes(api)
        request = build(request_class, expand(step.get("req", {}), self.variables))
        request = decode(request_class, version, encode(request, version))
        for _ in range(5):
            response = self.driver.ask(api, request, version)
            got = show(decode(response_class, version, encode(response, version)), version)
            if got.get("error_code") not in step.get("retry", ()):
                break
            self.driver.advance(100)
        for variable, path in step.get("capture", {}).items():
            self.variables[variable] = got[path]
        return differences(expand(step["expect"], self.variables), got)

    def produce(self, step: dict[str, Any]) -> list[str]:
        asked, wanted = (expand(step[part], self.variables) for part in ("req", "expect"))
        topic, answer = asked["topic_data"][0], wanted["responses"][0]["partition_responses"][0]
        part = topic["partition_data"][0]
        (batch,) = part["records"]["batches"]
        name = TopicPartition(topic.get("name") or topic["topic_id"], part["index"])
        partition = self.driver.partition(name)
        if asked["transactional_id"] is None:
            partition.append_plain()
            return []
        who = (asked["transactional_id"], batch["pid"], batch["epoch"])
        if answer["error_code"] == "OUT_OF_ORDER_SEQUENCE_NUMBER":
            return []  # the log's matter
        values = [record["v"] for record in batch["records"]]
        text = f"{values} at {partition.end_offset}"
        error = self.driver.append(who, name, text, step["v"] >= PRODUCE_ADDS_VERSION, len(values))
        return differences(answer["error_code"], produce_error(error, step["v"]).name)

    def write_markers(self, step: dict[str, Any]) -> list[str]:
        """By hand, past the coordinator: it must not mind."""
        (marker,) = expand(step["req"]["markers"], self.variables)
        name = TopicPartition(marker["topics"][0]["name"], marker["topics"][0]["partition_indexes"][0])
        if name.partition < self.driver.topics.known[name.topic]:
            who = ("", marker["producer_id"], marker["producer_epoch"], marker["coordinator_epoch"])
            request = MarkerRequest(*who, marker["transaction_result"], 0, (name,), 1, 0)
            self.driver.partition(name).mark(request)
        return []

    def fetch(self, step: dict[str, Any]) -> list[str]:
        expected = step["expect"]["responses"][0]
        name = TopicPartition(expand(expected.get("topic", "${t}"), self.variables), 0)
        if "topic_id" in expected:
            name = TopicPartition(self.variables["t"], 0)
        partition, wanted = self.driver.partition(name), expected["partitions"][0]
        if "until" in step:
            path, value = step["until"]["path"].rpartition(".")[2], step["until"]["is"]
            attribute = {"high_watermark": "end_offset"}.get(path, path)
            self.driver.run_until(
                self.driver.now_ms + 20_000, stop=lambda: bool(getattr(partition, attribute) == value)
            )
        problems = differences(wanted["high_watermark"], partition.end_offset, "high_watermark")
        return problems + differences(wanted["last_stable_offset"], partition.last_stable_offset, "last_stable_offset")

    def commit_offsets(self, step: dict[str, Any]) -> list[str]:
        asked, wanted = (expand(step[part], self.variables) for part in ("req", "expect"))
        index = partition_for_group(asked["group_id"], 50)
        name = TopicPartition("__consumer_offsets", index)
        who = (asked["transactional_id"], asked["producer_id"], asked["producer_epoch"])
        error = self.driver.append(who, name, str(step), step["v"] >= OFFSETS_ADD_VERSION)
        expected = wanted["topics"][0]["partitions"][0]["error_code"]
        if expected in GROUP_ERRORS:
            expected = "NONE"
        return differences(expected, offset_commit_error(error, step["v"]).name)
