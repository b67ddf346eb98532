"""Writes that fail, partitions that move, and what is read back from the log: our own, and a real broker's."""

from __future__ import annotations

import gzip
import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.stored.transaction_state import decode_record
from headrace.records import read_records, split
from headrace.transactions import StoredRecord, TransactionConfig, TransactionState
from headrace.transactions.records import snapshot_of, snapshot_record, tombstone

from .clients import A0, A1, B0, ID, Clients

REFERENCE = Path(__file__).parent.parent / "reference"

FAILURES = [
    (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
    (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
]


@pytest.mark.parametrize(("error", "told"), FAILURES)
def test_whatever_is_not_written_has_not_happened(error: ErrorCode, told: ErrorCode) -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0)
    before = clients.snapshots()
    clients.hold = True
    token = clients.send("end_txn", clients.end_request(me, True), 5)
    clients.fail(error)
    answer = clients.answers[token]
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (told, -1, -1)
    assert clients.snapshots() == before
    clients.hold = False
    assert clients.end(me, version=5) == (ErrorCode.NONE, 1_000, 1)


def test_an_id_that_was_never_written_is_forgotten() -> None:
    clients = Clients()
    clients.hold = True
    with pytest.raises(AssertionError, match="waits"):
        clients.init()
    assert clients.state() == "TRANSACTIONAL_ID_NOT_FOUND"
    assert clients.listed() == []
    clients.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert list(clients.answers.values())[-1].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    clients.hold = False
    assert clients.init() == (ErrorCode.NONE, 1_001, 0)


def test_a_failed_init_does_not_bump_the_epoch() -> None:
    clients = Clients()
    me = clients.started()
    clients.hold = True
    with pytest.raises(AssertionError, match="waits"):
        clients.init()
    clients.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    clients.hold = False
    assert clients.add(me, A0) == {A0: ErrorCode.NONE}


def test_an_abort_by_time_that_is_not_written_is_tried_again() -> None:
    clients = Clients()
    clients.add(clients.started(timeout_ms=1_000), A0)
    clients.hold = True
    clients.advance(10_000)
    clients.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    clients.hold = False
    clients.advance(10_000)
    assert clients.state() == "CompleteAbort"


def test_the_record_after_the_markers_is_tried_until_it_is_written() -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0)
    clients.hold_markers = True
    clients.end(me)
    clients.hold = True
    clients.release_markers()
    clients.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert clients.state() == "PrepareCommit"
    clients.advance(100)
    clients.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    clients.hold = False
    clients.advance(100)
    assert clients.state() == "PrepareCommit", "what fails again is tried less often"
    clients.advance(100)
    assert clients.state() == "CompleteCommit"
    assert clients.markers == [(A0, 1_000, 0, True)]  # not once more


# --- partitions that move ---------------------------------------------------------------------------------------------


def test_a_partition_that_is_not_led_here_is_not_spoken_for() -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0)
    partition = clients.coordinator.partition_of(ID)
    clients.absorb(clients.coordinator.unload(partition))
    for error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
        assert clients.init()[0] == error
        assert clients.add(me, A0) == {A0: error}
        assert clients.coordinator.verify(ID, *me, [A0]) == {A0: error}
        assert clients.end(me) == error
        assert clients.state() == error.name
        assert not any(timer.partition == partition for timer in clients.timers)
        clients.absorb(clients.coordinator.begin_load(partition, 1))


def test_a_write_that_is_heard_of_after_the_partition_moved_leads_to_nothing() -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0)
    clients.hold = True
    token = clients.send("end_txn", clients.end_request(me, True), 3)
    (outcome,) = clients.held
    partition = clients.coordinator.partition_of(ID)
    clients.absorb(clients.coordinator.begin_load(partition, 1))
    clients.replay(partition)
    clients.absorb(clients.coordinator.loaded(partition, clients.now))
    clients.absorb(clients.coordinator.written(outcome, clients.now))
    assert clients.answers[token].error_code == ErrorCode.NOT_COORDINATOR
    assert clients.state() == "Ongoing"
    assert clients.markers == []


def test_records_are_loaded_only_after_that_was_announced() -> None:
    clients = Clients()
    with pytest.raises(ValueError, match="begin_load"):
        clients.coordinator.load(0, StoredRecord(b"\x00\x00", b""))


# --- what is read back ------------------------------------------------------------------------------------------------


def test_a_restart_changes_nothing() -> None:
    clients = Clients()
    for number in range(30):
        me = clients.started(name=f"id-{number}")
        clients.produce(me, A0, B0, name=f"id-{number}")
        if number % 3:
            clients.end(me, commit=number % 2 == 0, name=f"id-{number}", version=5)
    before = clients.snapshots()
    clients.restart()
    assert clients.snapshots() == before
    reports = [clients.coordinator.load_report(n) for n in range(50)]
    assert sum(report.transactional_ids for report in reports if report is not None) == 30


def test_what_cannot_be_read_is_left_out_and_said() -> None:
    clients = Clients()
    clients.started()
    partition = clients.coordinator.partition_of(ID)
    key, value, *_ = clients.log[partition][0]
    assert value is not None
    other, third = tombstone(0, "damaged").key, tombstone(0, "strange").key
    strange = bytearray(value)
    strange[2 + 8 + 2 + 4] = 6  # Dead: a state that is never recorded
    clients.log[partition] += [
        StoredRecord(b"\x00\x09newer", b"what"),
        StoredRecord(key[:2] + b"\x00\x03new", b"\x00\x63"),
        StoredRecord(other, value[:10]),
        StoredRecord(third, bytes(strange)),
    ]
    clients.restart()
    report = clients.coordinator.load_report(partition)
    assert report is not None
    assert (report.records, report.transactional_ids, report.skipped, report.unreadable) == (5, 1, 2, 2)
    assert len(report.problems) == 2
    assert clients.listed() == [ID]


def vectors() -> list[dict[str, Any]]:
    with gzip.open(REFERENCE / "vectors" / "offsets-topic.jsonl.gz", "rt") as lines:
        return [case for case in map(json.loads, lines) if case.get("topic") == "__transaction_state"]


def in_order(value: Any) -> Any:
    """The same value with its partitions in order: Java's order is that of a hash table."""
    topics = [topic for topic in value.transaction_partitions or [] if topic.partition_ids]
    for topic in topics:
        topic.partition_ids = sorted(set(topic.partition_ids))
    topics.sort(key=lambda topic: topic.topic)
    value.transaction_partitions = None if value.transaction_status == 0 else topics
    return value


def test_records_are_written_as_a_real_broker_writes_them() -> None:
    """Read and written again they say the same, as far as a coordinator can have them at all."""
    seen = 0
    for case in vectors():
        if case["error"] is not None or case["value"] is None or "op" in case:
            continue
        record = decode_record(b64decode(case["key"]), b64decode(case["value"]))
        assert record.value is not None
        fields = case["value_fields"]
        if fields["transactionStatus"] > 5 or fields.get("nextProducerEpoch", -1) != -1:
            continue  # states that no broker records, and two-phase commit by the client
        name = record.key.transactional_id
        written = snapshot_record(0, name, snapshot_of(record.value), case["value_version"])
        again = decode_record(written.key, written.value)
        assert again.key == record.key
        assert again.value == in_order(record.value)
        seen += 1
    assert seen > 100


@pytest.mark.parametrize("shutdown", ["clean", "unclean"])
def test_the_log_of_a_real_broker_is_read_as_it_described_it(shutdown: str) -> None:
    folder = REFERENCE / "golden" / shutdown
    clients = Clients()
    clients.hold = clients.hold_markers = True
    snapshots: dict[str, Any] = {}
    for index in range(3):
        records = []
        data = (folder / "data" / f"__transaction_state-{index}" / f"{0:020}.log").read_bytes()
        for batch in split(data):
            for record in read_records(batch):
                assert record.key is not None
                records.append((bytes(record.key), None if record.value is None else bytes(record.value)))
        clients.coordinator.begin_load(index, 3)
        for key, value in records:
            clients.coordinator.load(index, StoredRecord(key, value))
            if value is not None:
                found = decode_record(key, value)
                assert found.value is not None
                written = snapshot_record(index, found.key.transactional_id, snapshot_of(found.value), 2)
                if len(found.value.transaction_partitions or ()) <= 1:
                    assert written.value == value
                else:
                    assert decode_record(written.key, written.value).value == in_order(found.value)
        clients.coordinator.loaded(index, clients.now)
        snapshots |= clients.coordinator.snapshots(index)
    expected = json.loads((folder / "expected.json").read_text())["transactions"]
    assert len(expected) == 3
    for described in expected:
        snapshot = snapshots[described["transactional_id"]]
        assert snapshot.state.title == described["transaction_state"]
        assert (snapshot.producer_id, snapshot.producer_epoch) == (
            described["producer_id"],
            described["producer_epoch"],
        )
        assert snapshot.timeout_ms == described["transaction_timeout"]
        assert snapshot.start_ms == described["transaction_start_time"]
        partitions = {(p.topic, p.partition) for p in snapshot.partitions}
        assert partitions == {(t["topic"], p) for t in described["topics"] for p in t["partitions"]}


def test_the_records_of_a_transaction_are_those_of_a_real_broker() -> None:
    """Producer and transaction as recorded, step by step: only times and ids differ."""
    clients = Clients()
    me = clients.started()
    clients.add(me, A0, A1)
    clients.end(me)
    (log,) = clients.log.values()
    found = [snapshot_of(decode_record(key, value).value) for key, value, *_ in log if value is not None]  # type: ignore[union-attr, arg-type]
    assert [s.state for s in found] == [
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.COMPLETE_COMMIT,
    ]
    assert {(s.producer_id, s.previous_producer_id, s.next_producer_id, s.client_version) for s in found} == {
        (1_000, 1_000, -1, 0)
    }
    assert [len(s.partitions) for s in found] == [0, 2, 2, 0]


def test_a_transaction_that_is_open_when_the_topic_gets_more_partitions_is_ended_all_the_same() -> None:
    """It is in another partition than its id belongs to by then. Else its readers would wait for good."""
    clients = Clients(TransactionConfig(state_topic_partitions=1))
    clients.add(clients.started(), A0, A1)
    clients.config = replace(clients.config, state_topic_partitions=8)
    assert clients.new_coordinator().partition_of(ID) != 0
    clients.refusals[A1] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    clients.restart()
    clients.advance(80_000)
    assert {(partition, commit) for partition, _, _, commit in clients.markers} == {(A0, False), (A1, False)}
    assert clients.coordinator.snapshots(0)[ID].state is TransactionState.COMPLETE_ABORT
