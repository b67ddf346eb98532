"""Logs over a simulated disk, and batches to append to them."""

from __future__ import annotations

from typing import Any

from headrace.log import Appended, Caches, Checked, Log, LogConfig, Origin, Verification, as_far_as, only
from headrace.records import Codec, ControlType, build_batch, control_batch
from headrace.runtime import Buffer
from headrace.runtime.simulated import Host, simulated_host
from headrace.topics import TopicPartition

PARTITION = TopicPartition("t", 0)
DIRECTORY = "/data/t-0"
NOW_MS = 1_700_000_000_000


def make_host(seed: int = 1) -> Host:
    return simulated_host(seed)


def open_log(host: Host, config: LogConfig | None = None, *, clean: bool = False, **options: Any) -> Log:
    options.setdefault("producer_expiration_ms", 2**62)
    options.setdefault("caches", Caches(host.disk, open_files_max=4))
    return Log.open(host.runtime, DIRECTORY, PARTITION, config or LogConfig(), clean=clean, **options)


def batch(
    *values: bytes | None,
    key: bytes | None = b"k",
    timestamp: int = NOW_MS,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
) -> bytearray:
    """A producer's batch; `producer` is (id, epoch, first sequence)."""
    options: dict[str, Any] = {"codec": codec, "transactional": transactional}
    if producer is not None:
        options.update(producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2])
    return build_batch([(timestamp, key, value, []) for value in values or (b"v",)], **options)


def marker(producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0) -> bytearray:
    return control_batch(
        ControlType.COMMIT if commit else ControlType.ABORT,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=NOW_MS,
    )


def append_one(
    log: Log,
    records: Buffer,
    leader_epoch: int,
    origin: Origin = Origin.CLIENT,
    now_ms: int | None = None,
    verification: Verification | None = None,
    transaction_version: int = 0,
    checked: Checked | None = None,
) -> Appended:
    """Append a leader's one batch; raises what is wrong."""
    if checked is None:
        checked = log.check(
            records, origin, verification=verification, transaction_version=transaction_version, now_ms=now_ms
        )
    return only(log.append([checked], leader_epoch, now_ms))


def append_copies(log: Log, records: Buffer) -> Appended:
    """Append what a leader has sent; raises what is wrong."""
    appended = as_far_as(log.append(log.copies(records)))
    return appended or Appended(log.end_offset, log.end_offset - 1, -1, log.start_offset)
