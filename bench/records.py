"""Nanoseconds per record to build and read batches: plain kernels, compiled kernels, and two peers in the same run.

Run: python bench/records.py [--records 1000] [--value-bytes 100] [--rounds 30]
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable

from headrace.records import (
    Batch,
    build_batch,
    build_batch_from_columns,
    build_batch_of,
    decode_columns,
    kernels,
    read_records,
)

PEER = "kafka-python"


def nanoseconds(work: Callable[[], object], records: int, rounds: int) -> float:
    """The best round: others share the machine."""
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time_ns()
        work()
        best = min(best, time.process_time_ns() - started)
    return best / records


def headrace_figures(rows: list[tuple[int, bytes, bytes, tuple[()]]], rounds: int) -> dict[str, tuple[float, float]]:
    count = len(rows)
    timestamps, keys, values, _ = zip(*rows)
    figures: dict[str, tuple[float, float]] = {}
    for name in ("plain", "fast"):
        if name == "fast" and not kernels.use_fast():
            print("numba is missing: no figures for the compiled kernels")
            continue
        batch = Batch(build_batch(list(rows)))
        columns = decode_columns(batch)
        figures[f"{name}: records"] = (
            nanoseconds(lambda: build_batch_of(timestamps, keys, values), count, rounds),
            nanoseconds(lambda batch=batch: read_records(batch), count, rounds),
        )
        figures[f"{name}: columns"] = (
            nanoseconds(lambda columns=columns: build_batch_from_columns(columns), count, rounds),
            nanoseconds(lambda batch=batch: decode_columns(batch), count, rounds),
        )
        if importlib.util.find_spec("pyarrow") is not None:
            from headrace.records.arrow import arrow_to_batch, columns_to_arrow

            table = columns_to_arrow(columns)
            figures[f"{name}: Arrow"] = (
                nanoseconds(lambda table=table: arrow_to_batch(table, default_timestamp_ms=0), count, rounds),
                nanoseconds(lambda batch=batch: columns_to_arrow(decode_columns(batch)), count, rounds),
            )
    return figures


def kafka_python_figures(rows: list[tuple[int, bytes, bytes, tuple[()]]], rounds: int) -> tuple[float, float]:
    from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

    def build() -> bytes:
        builder = MemoryRecordsBuilder(2, 0, 1 << 30)
        for timestamp, key, value, _ in rows:
            builder.append(timestamp=timestamp, key=key, value=value, headers=[])
        builder.close()
        return bytes(builder.buffer())

    built = build()

    def read() -> object:
        return [(r.offset, r.timestamp, r.key, r.value) for r in MemoryRecords(built).next_batch()]

    return nanoseconds(build, len(rows), rounds), nanoseconds(read, len(rows), rounds)


def aiokafka_figures(rows: list[tuple[int, bytes, bytes, tuple[()]]], rounds: int) -> tuple[float, float]:
    from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

    def build() -> bytes:
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
        for offset, (timestamp, key, value, _) in enumerate(rows):
            builder.append(offset, timestamp, key, value, [])
        return bytes(builder.build())

    built = build()

    def read() -> object:
        return [(r.offset, r.timestamp, r.key, r.value) for r in DefaultRecordBatch(built)]

    return nanoseconds(build, len(rows), rounds), nanoseconds(read, len(rows), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    value = bytes(arguments.value_bytes)
    rows: list[tuple[int, bytes, bytes, tuple[()]]] = [
        (1_700_000_000_000 + row // 10, b"key-%06d" % row, value, ()) for row in range(arguments.records)
    ]
    figures = headrace_figures(rows, arguments.rounds)
    figures["aiokafka (Cython): records"] = aiokafka_figures(rows, arguments.rounds)
    figures["kafka-python: records"] = kafka_python_figures(rows, arguments.rounds)
    peer_build, peer_read = figures["kafka-python: records"]
    print(f"{arguments.records} records of {arguments.value_bytes} bytes, ns per record (× as fast as {PEER})")
    for name, (build, read) in figures.items():
        print(
            f"{name:28} build {build:8.0f} ({peer_build / build:6.1f}×)   read {read:8.0f} ({peer_read / read:6.1f}×)"
        )


if __name__ == "__main__":
    main()
