"""Logs over a simulated disk, and batches to append to them."""

from __future__ import annotations

from typing import Any

from headrace.log import Caches, Log, LogConfig
from headrace.records import Codec, ControlType, build_batch, control_batch
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
