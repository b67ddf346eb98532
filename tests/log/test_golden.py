"""Apache Kafka's own log directories, stopped in order and killed: every partition opens and answers as Kafka did."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.log import Log
from headrace.log.partition_metadata import decode_id
from headrace.records import Batch, Codec, read_control, read_records, split
from headrace.runtime import Runtime

from .golden import ALL, copy_partition, expected, open_log


@pytest.fixture(params=ALL, ids=[f"{kind}-{name}" for kind, name in ALL])
def opened(request: pytest.FixtureRequest, tmp_path: Path, runtime: Runtime) -> Iterator[tuple[Log, dict[str, Any]]]:
    kind, name = request.param
    log = open_log(runtime, copy_partition(kind, name, tmp_path), kind)
    yield log, expected(kind)["partitions"][name]
    log.close()


def read_all(log: Log, max_bytes: int = 10_000_000) -> list[Batch]:
    """Fetch from the log's start to its end, as a consumer does."""
    batches: list[Batch] = []
    offset = log.start_offset
    while offset < log.end_offset:
        found = log.locate(offset, max_bytes, limit=log.high_watermark, at_least_one=True)
        data = found.file.read(found.position, found.length)
        assert len(data) == found.length
        whole = list(split(data))
        if not whole:
            break
        batches.extend(whole)
        offset = whole[-1].next_offset
    return batches


def test_a_log_that_kafka_wrote_has_kafkas_offsets(opened: tuple[Log, dict[str, Any]]) -> None:
    log, answer = opened
    assert log.start_offset == answer["log_start_offset"]
    assert log.end_offset == answer["log_end_offset"]
    assert log.high_watermark == answer["high_watermark"]
    assert log.last_stable_offset == answer["last_stable_offset"]
    assert log.topic_id == decode_id(answer["topic_id"])
    assert not log.recovery.cut_bytes


def test_leader_epochs_are_answered_as_kafka_does(opened: tuple[Log, dict[str, Any]]) -> None:
    log, answer = opened
    log.begin_epoch(answer["leader_epoch"])
    for epoch, (error, found_epoch, end_offset) in answer["offset_for_leader_epoch"].items():
        assert error == "NONE"
        got = log.end_offset_for(int(epoch))
        assert got == (found_epoch, end_offset), epoch


def test_timestamps_are_found_where_kafka_finds_them(opened: tuple[Log, dict[str, Any]]) -> None:
    log, answer = opened
    for timestamp, (offset, found_timestamp, epoch) in answer.get("offsets_for_times", {}).items():
        found = log.find_by_time(int(timestamp))
        got = (found.offset, found.timestamp_ms, found.leader_epoch) if found else (-1, -1, -1)
        assert got == (offset, found_timestamp, epoch), timestamp
    newest = log.max_timestamp()
    assert {"offset": newest.offset, "timestamp": newest.timestamp_ms} == {
        "offset": answer["max_timestamp"]["offset"],
        "timestamp": answer["max_timestamp"]["timestamp"],
    }


def test_aborted_transactions_are_those_of_kafkas_indexes(opened: tuple[Log, dict[str, Any]]) -> None:
    log, answer = opened
    found = [
        {
            "segment": f"{segment.base_offset:020d}",
            "producer_id": entry.producer_id,
            "first_offset": entry.first_offset,
            "last_offset": entry.last_offset,
            "last_stable_offset": entry.last_stable_offset,
        }
        for segment in log.segments
        for entry in segment.aborted()
    ]
    assert found == answer["aborted_transactions"]
    first = log.locate(log.start_offset, 1 << 30, limit=log.last_stable_offset, at_least_one=True)
    listed = log.aborted_transactions(log.start_offset, first)
    assert [{"producer_id": a.producer_id, "first_offset": a.first_offset} for a in listed] == answer[
        "aborted_transactions_of_first_fetch"
    ]


@pytest.mark.parametrize("max_bytes", [1, 200, 10_000_000])
def test_every_batch_and_record_is_read_back(opened: tuple[Log, dict[str, Any]], max_bytes: int) -> None:
    log, answer = opened
    batches = read_all(log, max_bytes)
    assert [_described(batch, log.start_offset) for batch in batches] == answer["batches"]


def _described(batch: Batch, log_start: int) -> dict[str, Any]:
    header = batch.header()
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "size": header.size,
        "leader_epoch": header.leader_epoch,
        "codec": Codec(header.codec_id).kafka_name,
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon": header.has_delete_horizon,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "count": header.count,
        "records": [_record(record, header.is_control) for record in read_records(batch) if record.offset >= log_start],
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _record(record: Any, control: bool) -> dict[str, Any]:
    described = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
        "sequence": record.sequence,
    }
    if control:
        described["control"] = "COMMIT" if read_control(record).control_type == 1 else "ABORT"
    return described
