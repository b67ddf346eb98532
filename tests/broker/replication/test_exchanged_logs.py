"""A partition whose log is exchanged, moved or begun anew, and roles that come while that is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.broker import raw
from tests.broker.replication.partition_worlds import (
    SECOND,
    THIRD,
    Neighbours,
    append,
    copy,
    follows,
    from_leader,
    leads,
    simulated,
)
from tests.waiting import becomes

from headrace.broker.broker import Broker
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.replication import copying
from headrace.broker.replication.follower import Answer
from headrace.errors import (
    NotLeaderOrFollowerError,
)
from headrace.log import Log, checkpoints
from headrace.runtime import OverloadedError


def test_what_a_leader_sent_waits_while_the_log_is_exchanged() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(follows(2))
        may_end = asyncio.Event()

        async def work() -> None:
            await may_end.wait()

        exchange = asyncio.ensure_future(partition.turns.exchange(work))
        await becomes(lambda: partition.turns.held is not None)
        assert partition.is_following  # it goes on being fetched when that is over
        asked, answer = partition.position(), Answer(high_watermark=1, log_start_offset=0)
        waiting = asyncio.ensure_future(copy(partition, asked, answer, from_leader(b"one", 0, 1)))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert partition.log.end_offset == 0
        may_end.set()
        await exchange
        await waiting
        assert partition.log.end_offset == 1

    simulated(test)


def test_a_role_that_finds_no_room_at_the_writer_takes_effect_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        syncing = partition.writer.sync((partition.log,))

        def is_full(*arguments: object) -> None:
            raise OverloadedError("too much waits")

        with monkeypatch.context() as patch:
            patch.setattr(partition.writer, "submit", is_full)
            partition.lead(leads(1))
        assert partition.state is None
        await syncing
        assert not partition.writer.busy
        with pytest.raises(NotLeaderOrFollowerError):
            partition.append(raw.batch([b"nobody would wait for the others"]))
        await asyncio.sleep(1)
        assert partition.state is not None
        assert partition.log.end_offset == 0

    simulated(test)


def test_what_waits_for_an_exchange_is_not_acknowledged_before_the_role_that_waits_behind_it() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(1))
        may_end = asyncio.Event()
        exchange = asyncio.ensure_future(partition.turns.exchange(may_end.wait))  # type: ignore[arg-type]
        await becomes(lambda: partition.turns.held is not None)
        waiting = append(partition, b"one")
        partition.lead(leads(2, partition_epoch=11))
        may_end.set()
        await exchange
        with pytest.raises(NotLeaderOrFollowerError):
            await waiting
        assert partition.log.end_offset == 0
        assert partition.state is not None
        committed = append(partition, b"two")
        for node_id in (SECOND, THIRD):
            partition.fetched(node_id, 7, 1, 0)
        assert (await committed).base_offset == 0

    simulated(test)


def test_what_is_committed_while_the_log_is_moved_stays_so_in_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers fetch on meanwhile: what they say counts, also when the copy has taken over the watermark before."""

    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(1))
        waiting = append(partition, b"one")
        change = Replicas.change_directories

        async def change_then_fetch(replicas: Replicas, what: Callable[..., object], *arguments: object) -> object:
            result = await change(replicas, what, *arguments)
            if what.__name__ == "_swap":
                for node_id in (SECOND, THIRD):
                    partition.fetched(node_id, 7, 1, 0)
            return result

        monkeypatch.setattr(Replicas, "change_directories", change_then_fetch)
        await broker.replicas.move("t", 0, "/data/two")
        assert (await waiting).base_offset == 0
        await asyncio.gather(*broker.replicas._moving.values())
        assert partition.log.directory.startswith("/data/two")
        assert partition.high_watermark == 1

    simulated(test, {"log.dirs": "/data/one,/data/two"})


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_move_does_not_wait_until_other_replicas_have_what_is_in_the_log(is_synced: bool) -> None:
    """Nobody can write meanwhile, and a follower that hangs is waited for until it counts as out of sync."""

    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        if is_synced:
            partition.log.config = replace(partition.log.config, flush_messages=1)
        partition.lead(leads(1))
        busy = partition.writer.sync((partition.log,))  # so that the writer's thread writes it
        waiting = append(partition, b"one", timeout_ms=20_000)
        await busy
        await asyncio.sleep(1.0)
        assert (partition.log.end_offset, waiting.done()) == (1, False)
        await broker.replicas.move("t", 0, "/data/two")
        await becomes(lambda: partition.log.directory.startswith("/data/two"), timeout_s=5.0)
        partition.append(raw.batch([b"two"]), acks=1)
        await becomes(lambda: partition.log.end_offset == 2)
        for node_id in (SECOND, THIRD):
            partition.fetched(node_id, 7, 2, 0)
        assert (await waiting).base_offset == 0

    simulated(test, {"log.dirs": "/data/one,/data/two"})


def test_the_first_batch_of_a_transaction_waits_for_a_move_and_is_written_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the coordinator said of it counts for the copy as well: nothing has begun or ended there since."""

    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        guard = partition.log.start_verification(7, 0, 0)
        change, waiting = Replicas.change_directories, []

        def change_beside(replicas: Replicas, what: Callable[..., object], *arguments: object) -> object:
            if what.__name__ == "_swap":
                first = raw.batch([b"one"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
                waiting.append(partition.append(first, verification=guard))
            return change(replicas, what, *arguments)

        monkeypatch.setattr(Replicas, "change_directories", change_beside)
        await broker.replicas.move("t", 0, "/data/two")
        await asyncio.gather(*broker.replicas._moving.values())
        assert partition.log.directory.startswith("/data/two")
        (appended,) = await asyncio.gather(*waiting)
        assert appended.base_offset == 0
        assert guard is not None
        assert not partition.log.is_verifying(guard)

    simulated(test, {"log.dirs": "/data/one,/data/two"})


def test_while_a_log_is_begun_anew_nothing_of_it_counts_as_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its segments go in any order: after a crash, what follows a gap would be damage to what was durable."""

    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition._surroundings = broker.replication
        partition.append(raw.batch([b"one"]))
        await partition.sync()
        await broker.replicas.change_directories(broker.directories.checkpoint)
        partition.lead(follows(2))
        written, start_at = [], Log.start_at

        def begin_anew(log: Log, offset: int) -> None:
            path = f"/data/one/{checkpoints.RECOVERY_POINT}"
            written.append(checkpoints.read_offsets(broker.runtime.disk, path)[partition.key])
            start_at(log, offset)

        monkeypatch.setattr(Log, "start_at", begin_anew)
        await copying.start_at(partition, partition.position(), 5)
        assert written == [0]
        assert partition.log.end_offset == 5

    simulated(test)


def test_a_cut_within_a_batch_is_written_down_where_the_log_ends_after_it() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(follows(2))
        records = raw.batch([b"one", b"two", b"three"])
        await copy(partition, partition.position(), Answer(high_watermark=0, log_start_offset=0), bytes(records))
        assert partition.log.end_offset == 3
        await copying.truncate(partition, partition.position(), 2)
        assert (neighbours.cuts, partition.log.end_offset) == ([0], 0)

    simulated(test)
