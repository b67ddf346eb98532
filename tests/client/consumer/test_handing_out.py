"""A record counts as handed out when the application has it, and not before: whatever ends a call on its way."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
import threading
from typing import Any

import pytest
from tests.client.consumer.fake_driver import blocking_consumer
from tests.client.consumer.fake_group import FakeGroupCluster
from tests.client.consumer.interrupts import Interruption, InterruptionError
from tests.client.fake import VirtualClock

import headrace
import headrace.aio
from headrace.client.consumer.errors import (
    ConcurrentAccessError,
    RebalanceListenerError,
    RecordDeserializationError,
    WakeupError,
)
from headrace.topics import TopicPartition

T0 = TopicPartition("t", 0)

# An interruption while a generator is being closed is reported there, and goes no further.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def cluster_with(count: int, batches: int = 1, partitions: int = 1) -> FakeGroupCluster:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": partitions})
    for partition in range(partitions):
        for _ in range(batches):
            cluster.write("t", partition, count // batches)
    return cluster


def rest_of(consumer: Any, count: int) -> list[int]:
    found: list[int] = []
    for _ in range(200):
        found += [record.offset for record in consumer.poll(1)]
        if len(found) >= count:
            break
    return found


# --- interrupted ------------------------------------------------------------------------------------------------------


def polled_and_interrupted(at: int, error: BaseException, way: str, group: bool = False) -> int:
    """Interrupt a poll at one place; everything comes once all the same. Gives how many places there were."""
    cluster = cluster_with(60, batches=3)
    config: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False} if group else {}
    with blocking_consumer(cluster, max_poll_records=8, **config) as consumer:
        if group:
            consumer.subscribe(["t"])
        else:
            consumer.assign([("t", 0)])
        given: list[Any] = []
        interruption = Interruption(at, error)
        try:
            with interruption:
                if way == "iterate":
                    for record in consumer:
                        given.append(record)
                        if len(given) == 30:
                            break
                else:
                    poll = {"columns": consumer.poll_columns, "arrow": consumer.poll_arrow}.get(way, consumer.poll)
                    for _ in range(5):
                        given.append(poll(1))
        except type(error):
            assert interruption.raised
        seen = offsets_of(given, way)
        if T0 in consumer.assignment():
            assert consumer.position(T0) == (seen[-1] + 1 if seen else 0)
            if group and consumer._core.membership.is_settled:
                consumer.commit_sync()
                assert cluster.committed[T0] == (seen[-1] + 1 if seen else 0)
        seen += rest_of(consumer, 60 - len(seen))
        assert seen == list(range(60))
        # Nobody is inside: another thread may close it.
        closer = threading.Thread(target=consumer.close)
        closer.start()
        closer.join(30)
        assert consumer._closed
    return interruption.places


def offsets_of(given: list[Any], way: str) -> list[int]:
    if way == "iterate":
        return [record.offset for record in given]
    if way == "columns":
        return [offset for pieces in given for piece in pieces for offset in piece.columns.offsets.tolist()]
    if way == "arrow":
        return [offset for batch in given for offset in batch.column("offset").to_pylist()]
    return [record.offset for records in given for record in records]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["records", "columns", "iterate"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, InterruptionError])
def test_a_poll_interrupted_at_any_of_some_places_loses_and_repeats_nothing(
    way: str, error: type[BaseException]
) -> None:
    polled_and_interrupted(1 << 40, error("never"), way)
    places = polled_and_interrupted(1 << 40, error("never"), way)
    for at in range(3, places, max(1, places // 30)):
        polled_and_interrupted(at, error(f"at place {at} of {places}"), way)


@pytest.mark.long
@pytest.mark.parametrize(("way", "group"), [("records", True), ("arrow", False), ("iterate", True)])
def test_a_member_interrupted_at_any_of_many_places_loses_and_repeats_nothing(way: str, group: bool) -> None:
    if way == "arrow":
        pytest.importorskip("pyarrow")
    polled_and_interrupted(1 << 40, InterruptionError("never"), way, group)
    # Counted again: what is made on first use is there now.
    places = polled_and_interrupted(1 << 40, InterruptionError("never"), way, group)
    for at in range(1, places, max(1, places // 200)):
        polled_and_interrupted(at, InterruptionError(f"at place {at} of {places}"), way, group)


def every_place(way: str = "records", group: bool = False) -> int:
    """What the tests sample, whole: `python -m tests.client.consumer.test_handing_out`. Minutes."""
    polled_and_interrupted(1 << 40, InterruptionError("never"), way, group)
    places = polled_and_interrupted(1 << 40, InterruptionError("never"), way, group)
    for at in range(1, places):
        polled_and_interrupted(at, InterruptionError(f"at place {at} of {places}"), way, group)
    return places


@pytest.mark.parametrize("raising", ["on_consume", "deserializer"])
def test_ctrl_c_in_a_callback_leaves_the_records_for_the_next_poll(raising: str) -> None:
    cluster = cluster_with(20)
    pressed: list[int] = []

    def press(*_: Any) -> Any:
        if not pressed:
            pressed.append(1)
            raise KeyboardInterrupt
        return _[-1]

    class Interceptor:
        on_consume = staticmethod(press if raising == "on_consume" else lambda records: records)

        def on_commit(self, offsets: Any) -> None:
            pass

    config: dict[str, Any] = {"interceptor_classes": [Interceptor()]}
    if raising == "deserializer":
        config["value_deserializer"] = press
    with blocking_consumer(cluster, **config) as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(KeyboardInterrupt):
            rest_of(consumer, 1)
        assert consumer.position(T0) == 0
        assert rest_of(consumer, 20) == list(range(20))


def test_arrow_that_cannot_be_made_leaves_the_records_for_the_next_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with(20)

    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError

    with blocking_consumer(cluster) as consumer:
        consumer.assign([("t", 0)])
        monkeypatch.setattr("headrace.client.consumer.blocking.to_arrow", fail)
        with pytest.raises(MemoryError):
            consumer.poll_arrow(5)
        assert rest_of(consumer, 20) == list(range(20))


def test_a_callback_that_asks_for_the_position_does_not_undo_the_poll_it_is_in() -> None:
    cluster = cluster_with(20)
    asked: list[int] = []

    class Interceptor:
        def on_consume(self, records: Any) -> Any:
            asked.append(consumer.position(T0))
            return records

        def on_commit(self, offsets: Any) -> None:
            pass

    with blocking_consumer(cluster, max_poll_records=10, interceptor_classes=[Interceptor()]) as consumer:
        consumer.assign([("t", 0)])
        assert rest_of(consumer, 20) == list(range(20))
    assert asked == [10, 20]


# --- cancelled --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_poll_cancelled_at_any_of_its_awaits_loses_nothing(headrace_broker: str) -> None:
    async def main() -> None:
        topic = f"cancelled-{id(main)}"
        async with headrace.aio.Producer(bootstrap_servers=headrace_broker) as producer:
            for number in range(200):
                await producer.send(topic, b"%d" % number, partition=0)
        config = {"bootstrap.servers": headrace_broker, "auto.offset.reset": "earliest", "max.poll.records": 10}
        async with headrace.aio.Consumer(config) as consumer:
            consumer.assign([(topic, 0)])
            seen: list[int] = []
            turns = 0
            while len(seen) < 200:
                # Cancelled after so many turns of the loop, from none to more than a poll of what is there takes.
                task = asyncio.ensure_future(consumer.poll(5))
                for _ in range(turns % 7):
                    await asyncio.sleep(0)
                turns += 1
                if turns % 3 and not task.done():
                    task.cancel()
                try:
                    seen += [record.offset for record in await task]
                except asyncio.CancelledError:
                    assert await consumer.position((topic, 0)) == len(seen)
            assert seen == list(range(200))

    asyncio.run(main())


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_listener_that_is_cancelled_is_not_called_again_and_the_rebalance_goes_on(
    headrace_broker: str, is_cancelled: bool
) -> None:
    async def main() -> None:
        calls: list[str] = []
        entered = asyncio.Event()

        class Listener:
            async def on_partitions_assigned(self, partitions: Any) -> None:
                calls.append("assigned")
                entered.set()
                if is_cancelled:
                    await asyncio.sleep(1000)

            def on_partitions_revoked(self, partitions: Any) -> None:
                calls.append("revoked")

        topic = f"listened-{is_cancelled}-{id(main)}"
        async with headrace.aio.Producer(bootstrap_servers=headrace_broker) as producer:
            await producer.send(topic, b"x")
        config = {"bootstrap.servers": headrace_broker, "group.id": topic, "auto.offset.reset": "earliest"}
        async with headrace.aio.Consumer(config) as consumer:
            consumer.subscribe([topic], Listener())
            task = asyncio.ensure_future(consumer.poll(30))
            await asyncio.wait_for(entered.wait(), 30)
            if is_cancelled:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                with pytest.raises(RebalanceListenerError, match="interrupted"):
                    await consumer.poll(30)
                records = await consumer.poll(30)
            else:
                records = await task
            assert [record.value for record in records] == [b"x"]
            assert calls == ["assigned"]

    asyncio.run(main())


# --- one at a time ----------------------------------------------------------------------------------------------------


def test_a_second_thread_is_refused_and_the_first_goes_on() -> None:
    cluster = cluster_with(10)
    refused: list[BaseException] = []

    class Interceptor:
        def on_consume(self, records: Any) -> Any:
            def meddle() -> None:
                try:
                    consumer.poll(0)
                except ConcurrentAccessError as error:
                    refused.append(error)

            thread = threading.Thread(target=meddle)
            thread.start()
            thread.join()
            return records

        def on_commit(self, offsets: Any) -> None:
            pass

    with blocking_consumer(cluster, interceptor_classes=[Interceptor()]) as consumer:
        consumer.assign([("t", 0)])
        assert rest_of(consumer, 10) == list(range(10))
    assert len(refused) == 1


def test_threads_that_meddle_are_refused_and_records_come_once_each() -> None:
    cluster = cluster_with(600, batches=6)
    given: list[list[int]] = [[] for _ in range(4)]
    before = sys.getswitchinterval()
    with blocking_consumer(cluster, max_poll_records=3) as consumer:
        consumer.assign([("t", 0)])

        def poll(mine: list[int]) -> None:
            while sum(map(len, given)) < 600:
                with contextlib.suppress(ConcurrentAccessError):
                    records = consumer.poll(0.01)
                    mine += [record.offset for record in records]

        threads = [threading.Thread(target=poll, args=(mine,)) for mine in given]
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        finally:
            sys.setswitchinterval(before)
        assert not any(thread.is_alive() for thread in threads)
        assert all(mine == sorted(mine) for mine in given)
        assert sorted(offset for mine in given for offset in mine) == list(range(600))
        assert consumer.position(T0) == 600


# --- one by one -------------------------------------------------------------------------------------------------------


class Filter:
    """An interceptor that lets some through."""

    def __init__(self, keep: Any) -> None:
        self.keep, self.calls = keep, 0

    def on_consume(self, records: Any) -> Any:
        self.calls += 1
        return [record for record in records if self.keep(record.offset)]

    def on_commit(self, offsets: Any) -> None:
        pass


@pytest.mark.parametrize("keep", [lambda o: o % 2 == 0, lambda o: o % 2, lambda o: o > 6, lambda o: o < 3])
def test_iterating_behind_an_interceptor_that_filters_gives_each_record_once(keep: Any) -> None:
    cluster = cluster_with(10)
    interceptor = Filter(keep)
    with blocking_consumer(cluster, interceptor_classes=[interceptor]) as consumer:
        consumer.assign([("t", 0)])
        seen: list[int] = []
        wanted = [offset for offset in range(10) if keep(offset)]
        for record in consumer:
            seen.append(record.offset)
            following = [offset for offset in wanted if offset > record.offset]
            # What was filtered out counts as read; what is still to come does not.
            assert consumer.position(T0) == (following[0] if following else 10)
            if len(seen) == len(wanted):
                break
        cluster.write("t", 0, 1)
        assert seen == wanted
        assert interceptor.calls == 1
        assert consumer.position(T0) == 10


def test_iterating_behind_an_interceptor_that_takes_all_moves_on() -> None:
    cluster = cluster_with(10)
    interceptor = Filter(lambda offset: offset >= 10)
    with blocking_consumer(cluster, interceptor_classes=[interceptor]) as consumer:
        consumer.assign([("t", 0)])
        consumer.poll(1)
        consumer.seek(T0, 0)
        cluster.write("t", 0, 1)
        assert next(iter(consumer)).offset == 10
        assert interceptor.calls <= 4


def test_a_commit_in_a_loop_has_the_leader_epoch_of_the_last_record() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 10, epoch=0)
    cluster.write("t", 0, 10, epoch=1)
    cluster.leaders[T0] = (1, 1)
    with blocking_consumer(cluster, group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([("t", 0)])
        for record in consumer:
            if record.offset == 14:
                consumer.commit_sync()
                break
        [commit] = cluster.names("OffsetCommit")
        [part] = commit.topics[0].partitions
        assert (part.committed_offset, part.committed_leader_epoch) == (15, 1)


def test_a_poll_in_a_loop_goes_on_where_the_loop_is() -> None:
    cluster = cluster_with(30, batches=2)
    with blocking_consumer(cluster, max_poll_records=10) as consumer:
        consumer.assign([("t", 0)])
        seen: list[int] = []
        for record in consumer:
            seen.append(record.offset)
            if record.offset in (3, 17):
                seen += [other.offset for other in consumer.poll(1, max_records=2)]
            if len(seen) == 30:
                break
        assert seen == list(range(30))


# --- what cannot be read ----------------------------------------------------------------------------------------------


def read_on(consumer: Any, way: str, seen: list[int]) -> None:
    if way == "iterate":
        for record in consumer:
            seen.append(record.value)
    while True:
        seen += [record.value for record in consumer.poll(1)]


@pytest.mark.parametrize("way", ["poll", "iterate"])
def test_a_record_that_cannot_be_deserialized_stays_where_it_is_until_it_is_passed(way: str) -> None:
    cluster = cluster_with(10)

    def number(value: bytes) -> int:
        if value == b"4":
            raise ValueError("a four")
        return int(value)

    with blocking_consumer(cluster, value_deserializer=number) as consumer:
        consumer.assign([("t", 0)])
        seen: list[int] = []
        for _ in range(3):
            with pytest.raises(RecordDeserializationError) as raised:
                read_on(consumer, way, seen)
            assert raised.value.offset == consumer.position(T0) == 4
        consumer.seek(T0, 5)
        assert seen == [0, 1, 2, 3]
        assert rest_of(consumer, 5) == [5, 6, 7, 8, 9]


def test_a_wakeup_takes_no_records_along() -> None:
    cluster = cluster_with(10)
    with blocking_consumer(cluster) as consumer:
        consumer.assign([("t", 0)])
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll(1)
        assert rest_of(consumer, 10) == list(range(10))


def test_what_a_poll_gave_can_be_sent_to_another_process() -> None:
    cluster = cluster_with(10, partitions=2)
    with blocking_consumer(cluster) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        records = consumer.poll(1)
        sent = pickle.loads(pickle.dumps(records))
        assert list(sent) == list(records)
        assert sent.next_offsets() == records.next_offsets()


# --- callbacks that raise ---------------------------------------------------------------------------------------------


def test_commit_callbacks_that_raise_are_called_once_each_and_the_group_is_left() -> None:
    cluster = cluster_with(10)
    called: list[int] = []

    def callback(number: int) -> Any:
        def call(error: Any, offsets: Any) -> None:
            called.append(number)
            raise RuntimeError(f"callback {number}")

        return call

    with blocking_consumer(cluster, group_id="g", enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"])
        assert rest_of(consumer, 10) == list(range(10))
        for number in range(3):
            consumer.commit_async(callback=callback(number))
        with pytest.raises(RuntimeError, match="callback 0"):
            consumer.close()
        assert called == [0, 1, 2]
        assert cluster.names("LeaveGroup")
        assert cluster.committed[T0] == 10


def test_a_commit_callback_may_commit() -> None:
    cluster = cluster_with(10)
    called: list[str] = []

    def again(error: Any, offsets: Any) -> None:
        called.append("first")
        consumer.commit_sync({T0: 7})

    with blocking_consumer(cluster, group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([("t", 0)])
        consumer.commit_async({T0: 5}, again)
        rest_of(consumer, 10)
        assert called == ["first"]
        assert cluster.committed[T0] == 7


if __name__ == "__main__":
    for chosen in ("records", "columns", "iterate"):
        for member in (False, True):
            print(chosen, "as a member" if member else "alone", every_place(chosen, member), "places", flush=True)
