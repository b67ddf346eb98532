"""A few mutated bytes into every decoder; `python -m tests.hostile.fuzz` tries many more. And what that has found."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from tests.broker import raw
from tests.broker.raw import RawClient
from tests.log import golden
from tests.waiting import eventually

from headrace.broker.requests.dispatch import load_handlers
from headrace.broker.requests.element_bound import ELEMENTS_ALWAYS
from headrace.cluster.image import InconsistentMetadataError
from headrace.cluster.store import node_formats
from headrace.cluster.store.directory_session import _frame
from headrace.errors import ErrorCode
from headrace.log import meta_properties
from headrace.log.checkpoints import DamagedCheckpointError, decode_offsets
from headrace.log.leader_epochs import LeaderEpochs
from headrace.log.meta_properties import DirectoryMismatchError
from headrace.parallel.letters import PART, part_of
from headrace.protocol import codec
from headrace.protocol.codegen import decoder
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.runtime import real_runtime
from headrace.testing import broker

from . import elements, fuzz, pipeline_fuzz, targets
from .mutating import mutated


@pytest.mark.slow
def test_every_request_and_file_survives_a_few_mutations() -> None:
    found = targets.all_targets(None, 7)
    served = sum(handler.high - handler.low + 1 for handler in load_handlers().values())
    assert sum(target.kind == "request" for target in found) == served + 1  # and the header
    fuzzing = fuzz.Fuzzing(found, seed=7)
    for place in range(len(found)):
        fuzzing.block(place, 0, 64)
    assert fuzzing.findings == {}
    tally = fuzzing.tally
    assert min(tally.inputs.values()) > 10
    assert tally.taken.total() > tally.inputs.total() / 5  # many get through to the end
    assert tally.at_once.total() < tally.sampled.total() / 20  # and few are refused at once


@pytest.mark.slow
def test_what_messages_are_mutated_from_is_read_to_the_end() -> None:
    for target in [*targets.requests(random.Random(3)), *targets.responses(random.Random(3))][:-1]:
        for shape in target.shapes:
            if target.errors is targets.MESSAGE_ERRORS:
                assert target.decode(shape.data)[1] == len(shape.data), target.title  # type: ignore[index]


def _bad(data: bytes) -> object:
    if data.startswith(b"hang"):
        while True:
            pass
    if data.startswith(b"much"):
        return bytearray(1 << 30)
    return {}[data] if data.startswith(b"other") else None


@pytest.mark.slow
@pytest.mark.parametrize(("data", "what"), [(b"hang", "CPU"), (b"other", "KeyError"), (b"much", "MemoryError")])
def test_what_is_wrong_is_found(data: bytes, what: str) -> None:
    """In a process of its own, which may take no more memory afterwards."""
    program = (
        "import signal; from tests.hostile import fuzz, targets, test_fuzz\n"
        "target = targets.Target('file', 'bad', [], test_fuzz._bad)\n"
        "fuzzing = fuzz.Fuzzing([target], 1); signal.signal(signal.SIGPROF, fuzz._interrupt); fuzz.confine()\n"
        f"fuzzing._inputs = lambda *_: [b'good', {data!r}, b'good', b'good too']\n"
        "fuzzing.block(0, 0, 4)\n"
        "print(fuzzing.tally.inputs.total(), fuzzing.tally.again.total(), fuzzing.findings)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    if data != b"hang":  # after which the others of the block are not counted
        assert done.stdout.startswith("3 1 {"), done.stdout  # the second of the same is neither tried nor counted
    assert what in done.stdout
    assert repr(data) in done.stdout


@pytest.mark.slow
def test_a_crash_is_told_with_the_input_that_made_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.hostile.fuzz", "--kind", "store", "--seconds", "1"]
    environment = {**os.environ, "HEADRACE_FUZZ_CRASH": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 1
    assert "died of SIGABRT" in done.stdout


@pytest.mark.slow
def test_a_whole_broker_survives_mutated_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_fuzz, "TAKING_AWAY_EVERY", 2)
    monkeypatch.setattr(pipeline_fuzz, "INPUTS_PER_BROKER", 200)
    fuzzing, findings = pipeline_fuzz.fuzz(seed=7, inputs=400)
    assert list(findings.found.values()) == []
    assert fuzzing.answered > 100
    served = {(key, version) for key, one in load_handlers().items() for version in range(one.low, one.high + 1)}
    assert set(pipeline_fuzz.seeds()) == served
    assert len(fuzzing.counts) > 60


def test_an_offset_kept_for_longer_than_time_goes_is_kept() -> None:
    """Older clients say for how long an offset is to be kept; the sum of that and now need not fit."""
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    for retention_ms in (2**63 - 1, -(2**63)):
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            retention_time_ms=retention_ms,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[part])],
        )
        with broker(None, {}) as kafka, RawClient(kafka.port) as client:
            client.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
            client.request(FindCoordinatorRequest(key="g"), 0)
            eventually(lambda: client.request(request, 2).topics[0].partitions[0].error_code == 0)  # noqa: B023


@pytest.mark.parametrize(
    ("producer_id", "epoch", "error"),
    [(7, -1, ErrorCode.INVALID_PRODUCER_EPOCH), (-1, 0, ErrorCode.INVALID_PRODUCER_ID_MAPPING)],
)
def test_the_end_of_nobodys_transaction_is_refused(
    producer_id: int, epoch: int, error: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
    )
    with broker(None, {}) as kafka, RawClient(kafka.port) as client:
        client.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        answer = client.request(WriteTxnMarkersRequest(markers=[marker]), 1)
    assert answer.markers[0].topics[0].partitions[0].error_code == error
    assert "please report" not in caplog.text


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert [mutated(b"some bytes", random.Random(seed)) for seed in range(50)] == [
        mutated(b"some bytes", random.Random(seed)) for seed in range(50)
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"[1]",
        b"null",
        b"\xff\0\0\0",
        b'{"epoch":"x","node":1,"nonce":""}',
        b'{"epoch":1e999,"node":1,"nonce":""}',
    ]
    + [b'{"node":1,"incarnation":"0","host":"h","port":1,"epoch":1,"nonce":7}', b"[" * 100_000],
)
def test_nodes_of_a_store_that_others_wrote_are_said_to_be_so(data: bytes) -> None:
    """ZooKeeper's nodes may be anybody's: what they lack is no KeyError of ours."""
    for decode in (
        node_formats.decode_election,
        node_formats.decode_seat,
        node_formats.SnapshotPointer.decode,
        lambda data: node_formats.decode_member("/brokers/1", data),
        lambda data: node_formats.decode_log_node("/log/1", data),
    ):
        with pytest.raises(InconsistentMetadataError):
            decode(data)


_MADE = ["create", "/a", 3, False, None]


@pytest.mark.parametrize(
    "meta",
    [
        {"operations": [["create"]]},
        {"operations": [1]},
        {"tree": [[1, "x", 2, 3]]},
        [1],
        {"operations": [_MADE]},  # of no session
        {"session": "s", "operations": [_MADE, _MADE]},  # there is one already
        {"session": "s", "operations": [["delete", 7, 0, -1, None]]},
        {"operations": [_MADE], "tree": [["/", 0, 0, None]] * 2},  # data of the one, nodes of the other
        {"expired": []},
        {"tree": [["/a/b", 0, 0, None]]},
    ],
)
def test_a_journal_with_other_entries_is_said_to_be_so(meta: object) -> None:
    data = _frame(meta, [b"abc"] * 2)  # type: ignore[arg-type]  # which others may have written
    with pytest.raises(InconsistentMetadataError):
        targets.journal(data)


def test_a_journal_of_brackets_is_said_to_be_no_journal() -> None:
    body = struct.pack(">I", 100_000) + b"[" * 100_000
    with pytest.raises(InconsistentMetadataError):
        targets.journal(struct.pack(">II", len(body), zlib.crc32(body)) + body)


@pytest.mark.parametrize("data", [b"", b"x", b"1 2", b"9" * 5000])
def test_a_directory_whose_current_journal_is_no_number_is_said_to_be_so(data: bytes) -> None:
    with pytest.raises(InconsistentMetadataError):
        targets.current(data)


@pytest.mark.parametrize("number", ["²", "--5", "9" * 19, "9" * 5000, "1_0", "٣", "", "+1"])
def test_a_number_in_a_checkpoint_that_is_none_or_does_not_fit_is_said_to_be_so(number: str) -> None:
    """Python takes some of these for digits and then for no number; others fit no offset."""
    for data in (f"0\n{number}\n", f"0\n1\nt {number} 3\n", f"0\n1\nt 0 {number}\n"):
        with pytest.raises(DamagedCheckpointError):
            decode_offsets(data.encode())
    for data in (f"0\n{number}\n", f"0\n1\n{number} 3\n", f"0\n1\n3 {number}\n"):
        with pytest.raises(DamagedCheckpointError):
            LeaderEpochs.from_bytes(data.encode())
    with pytest.raises(DirectoryMismatchError):
        meta_properties.decode(f"cluster.id=c\nnode.id={number}\n".encode(), "meta.properties")


@pytest.mark.parametrize("kind", golden.KINDS)
def test_an_offset_too_far_for_an_index_keeps_no_log_from_being_opened(kind: str, tmp_path: Path) -> None:
    """A batch's offset is not under its checksum: one flipped bit may make it anything."""
    directory = golden.copy_partition(kind, "__consumer_offsets-0", tmp_path)
    file = max(path for path in directory.glob("*.log") if path.stat().st_size)
    data = bytearray(file.read_bytes())
    at = last = 0
    while at < len(data):
        last, at = at, at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    struct.pack_into(">q", data, last, 2**33)
    file.write_bytes(data)
    for index in (*directory.glob("*.index"), *directory.glob("*.timeindex")):
        index.unlink()
    log = golden.open_log(real_runtime(), directory, kind)
    assert log.end_offset > 2**33
    targets.read_through(log)
    log.close()


@pytest.mark.parametrize("name", ["0000000000000000000².log", "0000000000000000000².snapshot"])
def test_a_file_whose_name_only_looks_like_an_offset_is_left_alone(name: str, tmp_path: Path) -> None:
    directory = golden.copy_partition("clean", "g-none-0", tmp_path)
    (directory / name).write_bytes(b"")
    log = golden.open_log(real_runtime(), directory, "clean")
    targets.read_through(log)
    log.close()
    assert (directory / name).exists()


@pytest.mark.parametrize("part", ["²/3", "1/²", "1/" + "9" * 5000, "1_0/20", "-1/3"])
def test_a_letter_that_says_to_be_no_part_is_a_whole_one(part: str) -> None:
    """Anybody may write to the topic of letters."""
    assert part_of([(PART, part.encode())]) is None


@pytest.mark.slow
def test_the_scan_has_a_request_for_every_array_and_all_of_them_are_taken() -> None:
    """`python -m tests.hostile.elements`: as many elements as are taken, and none too many."""
    scanned = set()
    for key, handler in load_handlers().items():
        for what, message in elements.of_names(handler.request_class):
            encoded = codec.encode(message, handler.high)
            decoder(handler.request_class, handler.high)(encoded, 0, ELEMENTS_ALWAYS)
            scanned.add((key, what))
    assert len({key for key, _ in scanned}) > 40


@pytest.mark.slow
def test_inputs_that_coverage_chooses_reach_every_decoder(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    command = [sys.executable, "-m", "tests.hostile.guided", "--seconds", "1", "--corpus", str(tmp_path / "corpus")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    assert "features found" in done.stdout
