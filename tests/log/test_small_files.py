"""Checkpoints, leader epochs, partition.metadata and meta.properties: Kafka's text, read and written."""

from __future__ import annotations

import pytest

from headrace.errors import InconsistentTopicIdError
from headrace.log import DirectoryMismatchError, meta_properties, partition_metadata
from headrace.log.checkpoints import DamagedCheckpointError, decode_offsets, encode_offsets
from headrace.log.leader_epochs import EpochStart, LeaderEpochs
from headrace.log.meta_properties import MetaProperties
from headrace.topics import TopicPartition

from .golden import GOLDEN, KINDS
from .making import make_host

CHECKPOINTS = [path for kind in KINDS for path in sorted((GOLDEN / kind / "data").glob("*-checkpoint"))]
ID_TEXT = "AAECAwQFBgcICQoLDA0ODw"


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: f"{path.parent.parent.name}-{path.name}")
def test_kafkas_checkpoints_are_read_and_written_back_in_order(path: object) -> None:
    data = path.read_bytes()  # type: ignore[attr-defined]  # a Path
    offsets = decode_offsets(data)
    lines = data.decode().splitlines()
    assert len(offsets) == int(lines[1])
    assert encode_offsets(offsets).decode().splitlines() == lines[:2] + sorted(lines[2:], key=_by_partition)


def _by_partition(line: str) -> tuple[str, int]:
    topic, partition, _ = line.rsplit(" ", 2)
    return topic, int(partition)


@pytest.mark.parametrize(
    "data", [b"", b"0\n", b"1\n0\n", b"0\n2\nt 0 5\n", b"0\n1\nt 0\n", b"0\n1\nt zero 5\n", b"\xff\xfe", b"0\nx\n"]
)
def test_a_damaged_checkpoint_is_told_from_a_whole_one(data: bytes) -> None:
    with pytest.raises(DamagedCheckpointError):
        decode_offsets(data)


def test_offsets_of_several_topics_round_trip() -> None:
    offsets = {TopicPartition("b", 10): 5, TopicPartition("b", 9): 0, TopicPartition("a.b-c", 0): 2**62}
    assert decode_offsets(encode_offsets(offsets)) == offsets


def test_epochs_that_contradict_a_new_one_go() -> None:
    epochs = LeaderEpochs()
    assert epochs.assign(0, 0)
    assert epochs.assign(2, 10)
    assert not epochs.assign(2, 15)
    assert epochs.assign(3, 10)  # nothing was written in epoch 2
    assert epochs.entries == [EpochStart(0, 0), EpochStart(3, 10)]
    assert epochs.assign(4, 5)
    assert epochs.entries == [EpochStart(0, 0), EpochStart(4, 5)]


def test_epochs_are_cut_from_both_sides() -> None:
    epochs = LeaderEpochs([EpochStart(0, 0), EpochStart(2, 10), EpochStart(5, 20)])
    assert epochs.end_offset_for(3, 30) == (2, 20)
    assert epochs.truncate_start(15)
    assert epochs.entries == [EpochStart(2, 15), EpochStart(5, 20)]
    assert epochs.end_offset_for(0, 30) == (0, 15)
    assert not epochs.truncate_start(15)
    assert epochs.truncate_end(20)
    assert epochs.entries == [EpochStart(2, 15)]
    assert epochs.epoch_for(14) == -1
    assert LeaderEpochs.from_bytes(epochs.to_bytes()).entries == epochs.entries


@pytest.mark.parametrize("data", [b"0\n1\n3\n", b"0\n1\nx 1\n", b"0\n2\n3 5\n2 9\n", b"0\n2\n3 5\n4 1\n"])
def test_damaged_epochs_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedCheckpointError):
        LeaderEpochs.from_bytes(data)


def test_partition_metadata_is_kafkas_text() -> None:
    topic_id = bytes(range(16))
    assert partition_metadata.encode(topic_id) == b"version: 0\ntopic_id: " + ID_TEXT.encode()
    assert partition_metadata.decode(partition_metadata.encode(topic_id)) == topic_id
    for data in (b"", b"version: 1\ntopic_id: " + ID_TEXT.encode(), b"version: 0\ntopic_id: short", b"version: 0\n"):
        with pytest.raises(DamagedCheckpointError):
            partition_metadata.decode(data)


def test_a_directory_of_another_topic_is_refused() -> None:
    disk = make_host().disk
    disk.makedirs("/data/t-0")
    first, second = bytes(range(16)), bytes(range(1, 17))
    assert partition_metadata.ensure(disk, "/data/t-0", None) is None
    assert partition_metadata.ensure(disk, "/data/t-0", first) == first
    assert partition_metadata.ensure(disk, "/data/t-0", None) == first
    with pytest.raises(InconsistentTopicIdError):
        partition_metadata.ensure(disk, "/data/t-0", second)


@pytest.mark.parametrize("kind", KINDS)
def test_kafkas_meta_properties_are_read_and_ours_say_the_same(kind: str) -> None:
    path = GOLDEN / kind / "data" / "meta.properties"
    properties = meta_properties.decode(path.read_bytes(), str(path))
    assert properties.node_id == 1
    assert properties.directory_id
    assert meta_properties.decode(properties.to_bytes(), "ours") == properties


def test_meta_properties_without_identity_are_refused() -> None:
    for data in (b"", b"version=1\ncluster.id=x\n", b"version=1\nnode.id=1\n", b"\xff"):
        with pytest.raises(DirectoryMismatchError, match=r"meta\.properties"):
            meta_properties.decode(data, "/d/meta.properties")
    assert meta_properties.decode(b"version=0\nbroker.id=4\ncluster.id=c\n", "p") == MetaProperties("c", 4, None)
