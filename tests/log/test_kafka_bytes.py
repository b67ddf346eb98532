"""The files that we write for the batches in Kafka's golden logs are, byte for byte, the files that Kafka wrote."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.log.making import append_copies

from headrace.log import Log, LogConfig, snapshots
from headrace.records import Batch, split
from headrace.runtime import Runtime
from headrace.topics import TopicPartition

from .golden import GOLDEN

# The configs of these topics: an index entry per batch but the first, and tiny indexes, so that segments are short.
CONFIG = LogConfig(index_interval_bytes=0, segment_index_bytes=96)
PARTITIONS = ["g-idem-0", "g-idem-1", "g-mixed-0", "g-mixed-1", "g-txn-0", "g-txn-1"]


def golden_batches(directory: Path) -> list[Batch]:
    return [batch for path in sorted(directory.glob("*.log")) for batch in split(path.read_bytes())]


def rewrite(runtime: Runtime, golden: Path, target: Path) -> None:
    """Append every batch as a follower would, with a clean restart wherever Kafka was restarted: at each new epoch."""

    def open_it() -> Log:
        partition = TopicPartition("t", 0)
        return Log.open(runtime, str(target), partition, CONFIG, clean=True)

    log = open_it()
    epoch = 0
    for batch in golden_batches(golden):
        if batch.leader_epoch != epoch:
            epoch = batch.leader_epoch
            log.close()
            log = open_it()
        append_copies(log, batch.buffer)
    log.close()


class _Clock:
    """Kafka's clock when it wrote these: producers of older records had expired at its restarts."""

    def now_ms(self) -> int:
        return 1_794_775_300_000

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture
def then(runtime: Runtime) -> Runtime:
    return dataclasses.replace(runtime, clock=_Clock())


@pytest.mark.parametrize("name", PARTITIONS)
def test_logs_and_indexes_are_kafkas_bytes(name: str, tmp_path: Path, then: Runtime) -> None:
    golden = GOLDEN / "clean" / "data" / name
    rewrite(then, golden, tmp_path / "t-0")
    for suffix in ("log", "index", "timeindex", "txnindex"):
        theirs = {path.name: path.read_bytes() for path in golden.glob(f"*.{suffix}")}
        ours = {path.name: path.read_bytes() for path in (tmp_path / "t-0").glob(f"*.{suffix}")}
        if suffix == "txnindex":  # an empty one may be missing
            theirs = {path: data for path, data in theirs.items() if data}
            ours = {path: data for path, data in ours.items() if data}
        assert ours == theirs
    epochs = "leader-epoch-checkpoint"
    assert (tmp_path / "t-0" / epochs).read_bytes() == (golden / epochs).read_bytes()


@pytest.mark.parametrize("name", PARTITIONS)
def test_snapshots_hold_what_kafkas_hold(name: str, tmp_path: Path, then: Runtime) -> None:
    golden = GOLDEN / "clean" / "data" / name
    rewrite(then, golden, tmp_path / "t-0")
    theirs = {path.name: path.read_bytes() for path in golden.glob("*.snapshot")}
    assert theirs
    assert {path.name for path in (tmp_path / "t-0").glob("*.snapshot")} == set(theirs)
    for file_name, data in theirs.items():
        ours = (tmp_path / "t-0" / file_name).read_bytes()
        assert len(ours) == len(data)
        by_id = {producer.producer_id: producer for producer in snapshots.decode(ours)}
        assert by_id == {producer.producer_id: producer for producer in snapshots.decode(data)}
        if len(by_id) < 2:  # Kafka writes several in the order of a hash map
            assert ours == data


@pytest.mark.parametrize("kind", ["clean", "unclean"])
def test_every_golden_snapshot_decodes_and_encodes_to_the_same_bytes(kind: str) -> None:
    paths = sorted((GOLDEN / kind / "data").glob("*/*.snapshot"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        assert snapshots.encode(snapshots.decode(data)) == data
