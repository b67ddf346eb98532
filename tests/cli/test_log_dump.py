"""`headrace log dump`: offline, on what a broker left."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.client.admin import Admin, NewTopic
from headrace.client.producer.blocking import Producer
from headrace.testing import broker
from headrace.topics import TopicPartition

from .conftest import Command

SEGMENT = "00000000000000000000.log"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which a broker was: a topic of two partitions, a group, a clean stop."""
    directory = tmp_path_factory.mktemp("data")
    with broker(str(directory)) as kafka, Admin(bootstrap_servers=kafka.address) as admin:
        admin.create_topics([NewTopic("events", 2, configs={"index.interval.bytes": "100"})]).all()
        with Producer(bootstrap_servers=kafka.address, linger_ms=0) as producer:
            for number in range(50):
                sent = producer.send("events", b"v%d" % number, b"k%d" % number, partition=0, timestamp=1000 + number)
                sent.result(30)
        admin.alter_group_offsets("readers", {TopicPartition("events", 0): 20}).all()
    return directory


def test_a_log_directory_shows_its_partitions(command: Command, data: Path) -> None:
    result = command("log", "dump", str(data))
    assert result.code == 0, result.err
    assert result.lines[0] == f"{data}  partitions"
    (row,) = [line.split() for line in result.lines if line.startswith("events-0")]
    assert row[:7] == ["events-0", "events", "0", "1", "0", "50", "50"]


def test_a_partition_shows_its_segments(command: Command, data: Path) -> None:
    (document,) = command("log", "dump", str(data / "events-0"), "--json").json()
    (row,) = document["rows"]
    assert (row["segment"], row["batches"], row["records"], row["next_offset"]) == (SEGMENT, 50, 50, 50)
    assert (row["first_timestamp"], row["max_timestamp"]) == (1000, 1049)


def test_a_segment_shows_its_batches(command: Command, data: Path) -> None:
    result = command("log", "dump", str(data / "events-0" / SEGMENT), "-n", "2")
    assert result.lines[1].split()[:4] == ["POSITION", "BASE", "OFFSET", "LAST"]
    assert len(result.lines) == 4
    (document,) = command("log", "dump", str(data / "events-0" / SEGMENT), "--json").json()
    assert [row["base_offset"] for row in document["rows"]] == list(range(50))
    assert [row["base_sequence"] for row in document["rows"]] == list(range(50))


def test_records(command: Command, data: Path) -> None:
    result = command("log", "dump", "-r", "-n", "2", str(data / "events-0" / SEGMENT))
    assert result.lines[1:] == [
        "         0  1970-01-01 00:00:01.000  key=k0 value=v0",
        "         1  1970-01-01 00:00:01.001  key=k1 value=v1",
    ]


def test_indexes_snapshots_and_the_rest(command: Command, data: Path) -> None:
    directory = data / "events-0"
    names = {path.suffix or path.name: path for path in directory.iterdir()}
    documents = {
        document["path"]: document["rows"]
        for document in command("log", "dump", "--json", *map(str, sorted(names.values()))).json()
    }
    positions = [row["position"] for row in documents[str(names[".index"])]]
    assert len(positions) > 10
    assert positions == sorted(positions)
    times = [(row["timestamp"], row["offset"]) for row in documents[str(names[".timeindex"])]]
    assert times[-1] == (1049, 49)
    (producer,) = documents[str(names[".snapshot"])]
    assert (producer["last_sequence"], producer["last_offset"]) == (49, 49)
    assert command("log", "dump", str(data / "meta.properties")).lines[1:3][0].split() == ["KEY", "VALUE"]
    checkpoint = command("log", "dump", str(data / "recovery-point-offset-checkpoint"), "--json").json()
    assert {"topic": "events", "partition": 0, "offset": 50} in checkpoint[0]["rows"]


def test_internal_topics_are_decoded(command: Command, data: Path) -> None:
    metadata = command("log", "dump", "-r", str(data / "__cluster_metadata-0" / SEGMENT), "--json").json()
    types = [row.get("type") for row in metadata[0]["rows"]]
    assert "TopicRecord" in types
    assert "RegisterBrokerRecord" in types
    segments = [str(path) for path in sorted(data.glob(f"__consumer_offsets-*/{SEGMENT}")) if path.stat().st_size]
    offsets = [row for document in command("log", "dump", "-r", *segments, "--json").json() for row in document["rows"]]
    (commit,) = [row for row in offsets if row["type"] == "OffsetCommitKey"]
    assert commit["key"] == {"group": "readers", "topic": "events", "partition": 0}
    assert commit["value"]["offset"] == 20


def test_damage_is_shown_and_is_the_exit_code(command: Command, data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "events-0" / SEGMENT
    copy.parent.mkdir()
    whole = (data / "events-0" / SEGMENT).read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) - 2] ^= 0xFF
    copy.write_bytes(bytes(flipped))
    result = command("log", "dump", str(copy))
    assert result.code == 1
    assert "1 of the rows above have a problem" in result.err
    assert "PROBLEM" in result.out
    copy.write_bytes(whole[:-10])
    torn = command("log", "dump", "-r", str(copy))
    assert torn.code == 1
    assert "after the last whole batch" in torn.out
    copy.write_bytes(whole + bytes(4096))
    assert command("log", "dump", str(copy)).code == 0, "room that was preallocated is no damage"
    index = tmp_path / "events-0" / "00000000000000000000.index"
    index.write_bytes(b"123")
    assert command("log", "dump", str(index)).code == 1


def test_a_file_of_another_kind_is_refused(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    result = command("log", "dump", str(path))
    assert result.code == 1
    assert "no file of a log" in result.err
    assert command("log", "dump", str(tmp_path / "missing.log")).code == 2
