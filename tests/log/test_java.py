"""Apache Kafka's own DumpLogSegments reads the files that we write, and finds nothing to complain of."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from bench.peers import kafka_libs, why_no_kafka
from tests.log.making import append_one

from headrace.log import Log, LogConfig, Origin
from headrace.records import Codec, build_batch
from headrace.runtime import Runtime
from headrace.topics import TopicPartition

from .making import NOW_MS, batch, marker

COMPLAINTS = re.compile(
    r"mismatch|exception|not valid|invalid|corrupt|Non-consecutive|isvalid: false|out of order|fail", re.IGNORECASE
)

needs_kafkas_tools = pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka())
pytestmark = [pytest.mark.java, pytest.mark.slow, needs_kafkas_tools]


def dump(*paths: Path, options: tuple[str, ...] = ()) -> str:
    command = ["java", "-cp", f"{kafka_libs()}/*", "org.apache.kafka.tools.DumpLogSegments", *options]
    command += ["--files", ",".join(map(str, paths))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout + "\n".join(line for line in done.stderr.splitlines() if "SLF4J" not in line)
    # It takes the first offset of every file but the first for a gap.
    return re.sub(r"Non-consecutive offsets in .*\n  -1 is followed by \d+", "", said)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, runtime: Runtime) -> Path:
    """A log with every codec, producers, transactions committed and aborted, several segments and epochs."""
    directory = tmp_path_factory.mktemp("logs") / "t-0"
    config = LogConfig(segment_bytes=12_000, index_interval_bytes=500)
    log = Log.open(runtime, str(directory), TopicPartition("t", 0), config, topic_id=bytes(range(16)))
    for number in range(120):
        codec = list(Codec)[number % 5]
        rows = [(NOW_MS + number * 10 + at, b"key-%d" % at, b"value %d " % number * 20, []) for at in range(4)]
        epoch = number // 40
        append_one(log, build_batch(rows, codec=codec), leader_epoch=epoch, now_ms=NOW_MS)
        append_one(log, batch(b"idempotent", producer=(9, 0, number)), leader_epoch=epoch, now_ms=NOW_MS)
        transactional = batch(b"transactional", producer=(10, 0, number), transactional=True)
        append_one(log, transactional, leader_epoch=epoch, now_ms=NOW_MS)
        if number % 7 == 6:
            append_one(
                log, marker(10, commit=number % 2 == 0), leader_epoch=epoch, origin=Origin.COORDINATOR, now_ms=NOW_MS
            )
    log.close()
    assert len(log.segments) > 3
    return directory


def test_every_record_is_printed_and_valid(written: Path) -> None:
    text = dump(*sorted(written.glob("*.log")), options=("--deep-iteration", "--print-data-log"))
    assert not COMPLAINTS.search(text), COMPLAINTS.search(text)
    assert text.count("payload: idempotent") == 120
    assert text.count("payload: transactional") == 120
    assert text.count("endTxnMarker: ABORT") + text.count("endTxnMarker: COMMIT") == 120 // 7
    assert text.count("isvalid: true") == text.count("baseOffset:")


def test_indexes_pass_kafkas_sanity_check(written: Path) -> None:
    indexes = sorted(written.glob("*.index")) + sorted(written.glob("*.timeindex"))
    text = dump(*indexes, options=("--index-sanity-check",))
    assert not COMPLAINTS.search(text), COMPLAINTS.search(text)
    assert text.count("passed sanity check") == len(indexes)


def test_indexes_agree_with_the_log(written: Path) -> None:
    indexes = sorted(written.glob("*.index")) + sorted(written.glob("*.timeindex"))
    text = dump(*indexes, options=("--verify-index-only",))
    assert not COMPLAINTS.search(text), COMPLAINTS.search(text)


def test_snapshots_and_transaction_indexes_are_read(written: Path) -> None:
    text = dump(*sorted(written.glob("*.snapshot")), *sorted(written.glob("*.txnindex")))
    assert not COMPLAINTS.search(text), COMPLAINTS.search(text)
    assert "producerId: 9" in text
    assert "producerId: 10" in text
    assert "firstOffset" in text
