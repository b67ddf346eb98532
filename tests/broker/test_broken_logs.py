"""A log that goes out of service alone, its disk being well: others lead it, and its broker again when it is back."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.errors import ErrorCode
from headrace.log import Log, reading
from headrace.log.invariants import BrokenInvariantError
from headrace.log.segment import Segment
from headrace.runtime import Buffer, DiskError

from . import raw
from .several import SeveralBrokers, create, run_several

TOPIC = "t"
Break = Callable[[pytest.MonkeyPatch, Log], None]


def found_by_a_reader(patch: pytest.MonkeyPatch, log: Log) -> None:
    plain = reading.locate

    def locate(view: Any, *arguments: Any, **options: Any) -> Any:
        if view is log.view:
            raise BrokenInvariantError("read", log.directory, "a reader found it")
        return plain(view, *arguments, **options)

    patch.setattr(reading, "locate", locate)


def found_by_the_writer(patch: pytest.MonkeyPatch, log: Log) -> None:
    log.active.size += 1


def batch_not_taken_in(patch: pytest.MonkeyPatch, log: Log) -> None:
    plain = Segment.note

    def note(segment: Segment, *arguments: Any) -> None:
        if segment is log.active:
            raise RuntimeError("a defect")
        plain(segment, *arguments)

    patch.setattr(Segment, "note", note)


def shortage_in_the_middle(patch: pytest.MonkeyPatch, log: Log) -> None:
    plain = Segment.write

    def write(segment: Segment, parts: Sequence[Buffer]) -> None:
        if segment is log.active:
            raise DiskError("append", log.directory, errno.ENOMEM, rolled_back=False)
        plain(segment, parts)

    patch.setattr(Segment, "write", write)


@pytest.mark.parametrize(
    "break_it", [found_by_a_reader, found_by_the_writer, batch_not_taken_in, shortage_in_the_middle]
)
def test_a_log_that_is_out_of_service_is_led_by_others_until_its_broker_is_restarted(
    break_it: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, TOPIC, partitions=2, replicas=3) == ErrorCode.NONE
        state = cluster.running(1).image.topics[TOPIC].partitions
        broken = state[0].leader
        watcher = cluster.running(cluster.other_than(broken))
        state = watcher.image.topics[TOPIC].partitions

        async def write(value: bytes, node_id: int) -> int:
            request = raw.produce_request(TOPIC, 0, raw.batch([value]))
            return raw.produced(await cluster.client(node_id).request(request, raw.PRODUCE_VERSION)).error_code

        while await write(b"kept", broken) != ErrorCode.NONE:
            await cluster.until(lambda: len(state[0].isr) == 3)
        with monkeypatch.context() as patch:
            break_it(patch, cluster.running(broken).partition(TOPIC, 0).log)
            read = raw.fetch_request(TOPIC, 0, 0)
            answer = raw.fetched(await cluster.client(broken).request(read, raw.FETCH_VERSION))
            assert answer.error_code == (ErrorCode.KAFKA_STORAGE_ERROR if break_it is found_by_a_reader else 0)
            assert await write(b"refused", broken) == ErrorCode.KAFKA_STORAGE_ERROR
            await cluster.until(lambda: state[0].leader not in (-1, broken))
        assert broken not in state[0].isr
        assert broken in state[1].isr  # nothing is wrong with its directory
        while await write(b"later", state[0].leader) != ErrorCode.NONE:
            await cluster.until(lambda: len(state[0].isr) == 2)
        await cluster.brokers[broken].stop()
        await cluster.brokers[broken].start()
        await cluster.until(lambda: broken in state[0].isr)
        values = [value for _, value in await cluster.client(state[0].leader).read_all(TOPIC, 0)]
        assert [value for value in values if value != b"refused"] == [b"kept", b"later"]

    run_several(main)
