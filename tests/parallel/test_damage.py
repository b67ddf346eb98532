"""Batches that cannot be read: one dead letter each, with their offsets and bytes, and reading goes on behind them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.parallel.helpers import commits, config, make_topic, stop
from tests.parallel.test_failing import read_all
from tests.waiting import eventually

from headrace import Producer
from headrace.parallel import Model, ParallelConsumer, Pool, Ranges, RetriesExhaustedError, Retry
from headrace.parallel.deadletters import DeadLetters
from headrace.parallel.retries import ORIGIN_LAST_OFFSET, ORIGIN_OFFSET, RAW_BYTES, REASON, header
from headrace.testing import broker

pytestmark = pytest.mark.slow


def damaged(address: str, directory: Path, name: str) -> bytes:
    """A topic of three batches of ten records; a byte of the second one is flipped. The second batch's bytes."""
    make_topic(address, name, 1)
    with Producer({"bootstrap.servers": address}) as producer:
        for first in range(0, 30, 10):
            producer.send_batch(name, [b"value-%d" % n for n in range(first, first + 10)]).result(60)
    (file,) = directory.glob(f"{name}-0/*.log")
    data = bytearray(file.read_bytes())
    second = int.from_bytes(data[8:12], "big") + 12
    at = data.index(b"value-15")
    data[at] ^= 0xFF
    file.write_bytes(data)
    return bytes(data[second : second + int.from_bytes(data[second + 8 : second + 12], "big") + 12])


@pytest.mark.parametrize("model", [Pool(), Ranges(size=100), Ranges(size=12)], ids=["pool", "ranges", "short-ranges"])
def test_a_damaged_batch_is_a_dead_letter_and_the_rest_is_handled(tmp_path: Path, model: Model) -> None:
    with broker(str(tmp_path)) as kafka:
        raw = damaged(kafka.address, tmp_path, "orders")
        seen: list[Any] = []
        consumer = ParallelConsumer(
            seen.append,
            topics=["orders"],
            group="g",
            config=config(kafka.address),
            model=model,
            order="none" if isinstance(model, Ranges) else "key",
            workers=1,
            retry=Retry(dead_letters="orders.dead"),
        )
        consumer.start()
        # A batch that lies in two ranges is seen by both.
        count = 2 if model == Ranges(size=12) else 1
        eventually(lambda: len(seen) == 20 and consumer.snapshot().counters.dead_letters == count, "the rest")
        stop(consumer)
        assert sorted(record.offset for record in seen) == [*range(10), *range(20, 30)]
        assert commits(kafka.address, "g", "orders", 1)[0] == (30, "")
        found = read_all(kafka.address, "orders.dead", count)
        ranges = [(header(one.headers, ORIGIN_OFFSET), header(one.headers, ORIGIN_LAST_OFFSET)) for one in found]
        assert sorted(ranges) == [("10", "19")] if count == 1 else [("10", "11"), ("12", "19")]
        assert {(one.value, header(one.headers, REASON), header(one.headers, RAW_BYTES)) for one in found} == {
            (raw, "damaged", str(len(raw)))
        }
        with DeadLetters(config(kafka.address), "orders.dead") as letters:
            assert letters.redrive() == 0, "there is no record to put back"


def test_without_dead_letters_a_damaged_batch_stops_consuming_before_it(
    tmp_path: Path, new_topic: Callable[..., str]
) -> None:
    with broker(str(tmp_path)) as kafka:
        damaged(kafka.address, tmp_path, "orders")
        consumer = ParallelConsumer(print, topics=["orders"], group="g", config=config(kafka.address))
        consumer.start()
        with pytest.raises(RetriesExhaustedError, match="orders-0 at offset 10 cannot be read"):
            consumer.wait(30)
        assert commits(kafka.address, "g", "orders", 1)[0][0] == 10
