"""The metadata log of one broker: durable, fenced by epoch, bounded by snapshots, whole after a crash at any moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cluster.image import Image, InconsistentMetadataError
from headrace.cluster.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    MetadataRecord,
    NoOpRecord,
    RemoveTopicRecord,
)
from headrace.cluster.store import fold
from headrace.cluster.store.metadata_log import DIRECTORY_NAME, MetadataLog
from headrace.errors import StaleControllerEpochError
from headrace.runtime import Runtime, real_runtime
from headrace.runtime.simulated import CrashModel, SimulatedCrash, simulated_host

from .store_homes import topic
from .test_image import state

PARENT = "/data"


def opened(runtime: Runtime, *, snapshot_after_bytes: int = 10**9) -> tuple[MetadataLog, Image]:
    store = MetadataLog.open(runtime, PARENT, snapshot_after_bytes=snapshot_after_bytes)
    image = Image()
    fold(store.read(image.offset), image)
    return store, image


def append(store: MetadataLog, image: Image, epoch: int, records: list[MetadataRecord]) -> None:
    store.append_if_epoch(epoch, records)
    fold(store.read(image.offset), image)
    assert image.offset == store.end_offset
    if store.snapshot_due:
        store.take_snapshot(image)


def test_what_was_appended_is_read_again_with_its_offsets() -> None:
    runtime = simulated_host(1).runtime
    store = MetadataLog.open(runtime, PARENT)
    epoch = store.elect(1)
    end = store.append_if_epoch(epoch, topic(1))
    assert end == 4
    assert [offset for offset, _ in store.read(0).records] == [0, 1, 2, 3]
    assert [record for _, record in store.read(0).records] == [NoOpRecord(), *topic(1)]
    assert store.read(3).records == [(3, topic(1)[2])]
    assert store.read(4).records == []
    assert store.append_if_epoch(epoch, []) == 4


def test_a_transaction_of_apache_kafkas_controller_counts_when_it_has_ended() -> None:
    runtime = simulated_host(1).runtime
    store = MetadataLog.open(runtime, PARENT)
    epoch = store.elect(1)
    ended = [BeginTransactionRecord(name="bootstrap"), *topic(1), EndTransactionRecord()]
    aborted = [BeginTransactionRecord(), *topic(2), AbortTransactionRecord(reason="of no use")]
    store.append_if_epoch(epoch, [*ended, *aborted, NoOpRecord()])
    assert [record for _, record in store.read(0).records] == [NoOpRecord(), *topic(1), NoOpRecord()]
    store.append_if_epoch(epoch, [BeginTransactionRecord(), *topic(3)])
    with pytest.raises(InconsistentMetadataError, match="within a transaction"):
        store.read(0)


def test_an_older_controller_can_append_no_more() -> None:
    runtime = simulated_host(1).runtime
    store = MetadataLog.open(runtime, PARENT)
    old = store.elect(1)
    new = store.elect(2)
    assert new == old + 1
    with pytest.raises(StaleControllerEpochError):
        store.append_if_epoch(old, topic(1))
    assert store.append_if_epoch(new, topic(1)) == store.end_offset


def test_epochs_grow_over_restarts_also_when_only_a_snapshot_is_left() -> None:
    host = simulated_host(1)
    epochs = []
    for number in range(6):
        store, image = opened(host.runtime)
        epochs.append(store.elect(1))
        append(store, image, epochs[-1], topic(number))
        if number % 2:
            store.take_snapshot(image)
        store.close()
    assert epochs == sorted(set(epochs))


def test_a_snapshot_takes_the_place_of_old_records_and_keeps_offsets_going() -> None:
    runtime = simulated_host(2).runtime
    store, image = opened(runtime, snapshot_after_bytes=20_000)
    epoch = store.elect(1)
    for number in range(400):
        append(store, image, epoch, topic(number))
    assert 0 < store.snapshot_end_offset < store.end_offset == 1 + 400 * 3
    files = runtime.disk.listdir(f"{PARENT}/{DIRECTORY_NAME}")
    assert sum(name.endswith(".checkpoint") for name in files) == 1
    assert sum(name.endswith(".log") for name in files) <= 2
    store.close()
    _, again = opened(runtime)
    assert state(again) == state(image)
    assert again.offset == image.offset


def test_a_snapshot_needs_an_image_that_is_up_to_date() -> None:
    store, image = opened(simulated_host(2).runtime)
    store.append_if_epoch(store.elect(1), topic(1))
    with pytest.raises(ValueError, match="fold it first"):
        store.take_snapshot(image)


def test_a_damaged_snapshot_is_told_instead_of_being_taken_for_the_end() -> None:
    runtime = simulated_host(3).runtime
    store, image = opened(runtime)
    append(store, image, store.elect(1), topic(1, 50))
    fold(store.read(image.offset), image)
    store.take_snapshot(image)
    store.close()
    directory = f"{PARENT}/{DIRECTORY_NAME}"
    path = next(f"{directory}/{n}" for n in runtime.disk.listdir(directory) if n.endswith(".checkpoint"))
    good = runtime.disk.read_file(path)
    for bad in (good[:-5], good[:200] + bytes([good[200] ^ 1]) + good[201:]):
        runtime.disk.replace_file(path, bad)
        with pytest.raises(InconsistentMetadataError, match="snapshot"):
            opened(runtime)


def log_path(runtime: Runtime) -> str:
    directory = f"{PARENT}/{DIRECTORY_NAME}"
    return max(f"{directory}/{name}" for name in runtime.disk.listdir(directory) if name.endswith(".log"))


def flip(runtime: Runtime, path: str, needle: bytes) -> bytes:
    data = bytearray(runtime.disk.read_file(path))
    data[data.rindex(needle)] ^= 1
    runtime.disk.replace_file(path, bytes(data))
    return bytes(data)


def test_damage_before_whole_batches_is_refused_and_nothing_is_cut() -> None:
    """Whether the process stopped in order or not: what follows was acknowledged too."""
    for damaged in (b"topic-2", b"topic-1"):
        for stops in (True, False):
            host = simulated_host(4)
            store, image = opened(host.runtime)
            epoch = store.elect(1)
            for number in range(4):
                append(store, image, epoch, topic(number))
            if stops:
                store.close()
            host.kill(power_loss=False)
            runtime = host.restart()
            path = log_path(runtime)
            data = flip(runtime, path, damaged)
            for _ in range(2):
                with pytest.raises(InconsistentMetadataError, match="whole batches follow"):
                    opened(runtime)
                assert runtime.disk.read_file(path) == data


def test_a_length_that_is_damaged_hides_nothing() -> None:
    host = simulated_host(4)
    store, image = opened(host.runtime)
    epoch = store.elect(1)
    for number in range(4):
        append(store, image, epoch, topic(number))
    host.kill(power_loss=False)
    runtime = host.restart()
    path = log_path(runtime)
    data = bytearray(runtime.disk.read_file(path))
    second = 12 + int.from_bytes(data[8:12], "big")
    data[second + 8] = 0x7F  # it seems to reach far beyond the end, as the last batch of a torn file does
    runtime.disk.replace_file(path, bytes(data))
    with pytest.raises(InconsistentMetadataError, match="whole batches follow"):
        opened(runtime)
    assert runtime.disk.read_file(path) == bytes(data)


def test_after_a_stop_in_order_the_last_batch_has_to_be_there_and_whole() -> None:
    for torn in (False, True):
        host = simulated_host(4)
        store, image = opened(host.runtime)
        append(store, image, store.elect(1), topic(1))
        store.close()
        runtime = host.runtime
        path = log_path(runtime)
        if torn:
            runtime.disk.replace_file(path, runtime.disk.read_file(path)[:-10])
        else:
            flip(runtime, path, b"topic-1")
        with pytest.raises(InconsistentMetadataError, match="synced up to"):
            opened(runtime)


def test_a_last_batch_that_a_crash_tore_is_cut_off() -> None:
    host = simulated_host(4)
    store, image = opened(host.runtime)
    epoch = store.elect(1)
    append(store, image, epoch, topic(1))
    append(store, image, epoch, topic(2))
    host.kill(power_loss=False)
    runtime = host.restart()
    path = log_path(runtime)
    runtime.disk.replace_file(path, runtime.disk.read_file(path)[:-60] + bytes(60))
    _, again = opened(runtime)
    assert set(again.topics) == {"topic-1"}


def test_a_damaged_snapshot_leaves_the_records_that_it_would_replace() -> None:
    runtime = simulated_host(3).runtime
    store, image = opened(runtime)
    append(store, image, store.elect(1), topic(1))
    store.close()
    directory = f"{PARENT}/{DIRECTORY_NAME}"
    before = runtime.disk.read_file(log_path(runtime))
    runtime.disk.replace_file(f"{directory}/{100:020d}-{1:010d}.checkpoint", b"not a snapshot")
    with pytest.raises(InconsistentMetadataError, match="snapshot"):
        opened(runtime)
    assert runtime.disk.read_file(log_path(runtime)) == before


def test_folding_tells_which_topics_were_deleted() -> None:
    runtime = simulated_host(3).runtime
    store = MetadataLog.open(runtime, PARENT)
    epoch = store.elect(1)
    gone = (2).to_bytes(16, "big")
    store.append_if_epoch(epoch, topic(1))
    store.append_if_epoch(epoch, [RemoveTopicRecord(topic_id=gone), *topic(2)])
    image = Image()
    assert fold(store.read(image.offset), image) == {gone}
    assert fold(store.read(image.offset), image) == set()
    assert set(image.topics) == {"topic-2"}


def scenario(runtime: Runtime, acknowledged: list[int], rng: random.Random) -> None:
    """Appends and snapshots; notes the number of topics after each append that was acknowledged."""
    store, image = opened(runtime, snapshot_after_bytes=2_000)
    epoch = store.elect(1)
    for _ in range(25):
        number = len(image.topics)
        retention = ConfigRecord(resource_type=2, resource_name=f"topic-{number}", name="retention.ms", value="7")
        store.append_if_epoch(epoch, [*topic(number), retention])
        acknowledged.append(number + 1)
        fold(store.read(image.offset), image)
        if store.snapshot_due or rng.random() < 0.1:
            store.take_snapshot(image)
    store.close()


def check_whole(runtime: Runtime, acknowledged: list[int]) -> None:
    _, image = opened(runtime)
    count = len(image.topics)
    # The append that the crash interrupted may have made it to the disk, but only as a whole.
    least = acknowledged[-1] if acknowledged else 0
    assert least <= count <= least + 1
    assert set(image.topics) == {f"topic-{number}" for number in range(count)}
    assert all(len(found.partitions) == 2 for found in image.topics.values())
    assert len(image.configs) == count


def operations_of(run: Callable[[Runtime], None], seed: int) -> int:
    host = simulated_host(seed)
    seen = 0
    begin = host.runtime.disk.begin  # type: ignore[attr-defined]

    def counted(*args: object) -> None:
        nonlocal seen
        seen += 1
        begin(*args)

    host.runtime.disk.begin = counted  # type: ignore[attr-defined]
    run(host.runtime)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("model", list(CrashModel))
def test_a_crash_at_any_operation_loses_nothing_acknowledged(model: CrashModel) -> None:
    total = operations_of(lambda runtime: scenario(runtime, [], random.Random(5)), 11)
    assert total > 150
    rng = random.Random(model.value)
    for operation in sorted(rng.sample(range(total), 60)):
        host = simulated_host(11)
        acknowledged: list[int] = []
        host.runtime.disk.crash_after(operation)  # type: ignore[attr-defined]
        with pytest.raises(SimulatedCrash):
            scenario(host.runtime, acknowledged, random.Random(5))
        host.kill(model=model)
        runtime = host.restart()
        check_whole(runtime, acknowledged)


def test_the_real_disk_keeps_it_too(tmp_path: Path) -> None:

    runtime = real_runtime()
    store = MetadataLog.open(runtime, str(tmp_path))
    epoch = store.elect(1)
    store.append_if_epoch(epoch, topic(1))
    store.close()
    again = MetadataLog.open(runtime, str(tmp_path))
    assert [record for _, record in again.read(1).records] == topic(1)
    again.close()
