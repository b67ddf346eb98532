"""The producers themselves: configuration, serializing, threads, memory, forks; no broker is needed."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import gzip
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace.testing
from headrace import Producer, aio
from headrace.client.cluster.core import ClientCore
from headrace.client.cluster.view import PartitionView, TopicView
from headrace.client.configs import UnknownConfigWarning
from headrace.client.errors import BufferExhaustedError, ClientClosedError, SerializationError, UndeliveredError
from headrace.client.producer._batch import ProducerBatch
from headrace.client.producer._unpacked import Unpacked
from headrace.client.producer.config import PRODUCER_CONFIGS, read_producer_config
from headrace.client.producer.delivery import BatchDelivery, Delivery
from headrace.client.producer.partitioners import (
    RoundRobinPartitioner,
    StickyState,
    UniformStickyPartitioner,
    pick_other,
)
from headrace.client.serializers import (
    FloatSerializer,
    Int32Serializer,
    IntSerializer,
    JsonDeserializer,
    JsonSerializer,
    StringDeserializer,
    StringSerializer,
    make_deserializer,
    make_serializer,
)
from headrace.config import ConfigError, format_value
from headrace.records import Batch, Codec, read_records
from headrace.records.murmur2 import partition_for_key

from .fake import FakeCluster, VirtualClock, World

REFERENCE = Path(__file__).parent.parent / "reference"
NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


# --- configuration ---------------------------------------------------------------------------------------------------

# What Java has and a Python client cannot use, and where we differ on purpose.
_JAVA_ONLY = ("sasl.", "ssl.", "metric", "security.providers", "config.providers", "enable.metrics.push")
_OURS = {"key.serializer": None, "value.serializer": None}


def test_every_key_of_the_java_producer_has_its_type_and_default() -> None:
    lines = (REFERENCE / "configs" / "clients.jsonl").read_text().splitlines()
    java = [json.loads(line) for line in lines]
    checked = 0
    for entry in java:
        if entry["client"] != "producer" or entry["name"].startswith(_JAVA_ONLY):
            continue
        key = PRODUCER_CONFIGS[entry["name"]]
        assert key.type.name == entry["type"], entry["name"]
        if entry["name"] in _OURS:
            continue
        assert key.required != entry["has_default"], entry["name"]
        if entry["has_default"]:
            assert format_value(PRODUCER_CONFIGS.defaults()[entry["name"]]) == entry["default"], entry["name"]
        checked += 1
    assert checked >= 40


def test_keywords_are_the_same_as_dotted_keys() -> None:
    with Producer(bootstrap_servers="127.0.0.1:1", linger_ms=7) as producer:
        assert producer._settings.linger_s == 0.007
    with pytest.raises(ConfigError, match="twice"):
        Producer({"linger.ms": 1}, linger_ms=2, **{"bootstrap.servers": "h:1"})


def test_an_unknown_key_is_warned_of_with_the_nearest_name() -> None:
    with pytest.warns(UnknownConfigWarning, match=r"lingr\.ms.*linger\.ms"):
        Producer({**NOWHERE, "lingr.ms": 5}).close()


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"acks": "2"}, "acks"),
        ({"compression.type": "brotli"}, "compression.type"),
        ({"linger.ms": -1}, "linger.ms"),
        ({"batch.size": "many"}, "batch.size"),
        ({"bootstrap.servers": "localhost"}, "bootstrap.servers"),
        ({"bootstrap.servers": ""}, "bootstrap.servers"),
        ({"enable.idempotence": True, "acks": "1"}, "enable.idempotence"),
        ({"max.in.flight.requests.per.connection": 6}, "max.in.flight"),
        ({"delivery.timeout.ms": 100}, "delivery.timeout.ms"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism"),
        ({"value.serializer": "nonsense"}, "value.serializer"),
        ({"value.serializer": "no.such.Thing"}, "value.serializer"),
        ({"partitioner.class": "no.such.Thing"}, "partitioner.class"),
        ({"compression.zstd.level": 23}, "compression.zstd.level"),
    ],
)
def test_wrong_values_are_refused_by_name(config: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        Producer({**NOWHERE, **config})


def test_acks_1_turns_idempotence_off_unless_it_was_asked_for() -> None:
    assert read_producer_config({**NOWHERE, "acks": 1})["enable.idempotence"] is False
    assert read_producer_config(NOWHERE)["enable.idempotence"] is True
    assert read_producer_config({**NOWHERE, "retries": 0})["enable.idempotence"] is False


# --- serializers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("serializer", "data", "expected"),
    [
        (StringSerializer(), "héllo", "héllo".encode()),
        (IntSerializer(), -2, b"\xff" * 7 + b"\xfe"),
        (Int32Serializer(), 258, b"\0\0\1\2"),
        (FloatSerializer(), 1.5, b"\x3f\xf8" + bytes(6)),
        (JsonSerializer(), {"a": [1, "é"]}, '{"a":[1,"é"]}'.encode()),
    ],
)
def test_serializers_write_what_java_and_others_read(serializer: Any, data: Any, expected: bytes) -> None:
    assert serializer.serialize("t", data) == expected


@pytest.mark.parametrize("name", ["string", "int", "int32", "float", "json"])
def test_what_is_serialized_reads_back(name: str) -> None:
    data: Any = {"string": "žluť", "int": -(2**63), "int32": 7, "float": 0.1, "json": {"k": [None, True]}}[name]
    written = make_serializer(name, {}, False)
    read = make_deserializer(name, {}, False)
    assert written is not None
    assert read is not None
    blob = written.serialize("t", data)
    assert blob is not None
    assert read.deserialize("t", blob) == data


@pytest.mark.parametrize(
    ("config", "is_key", "encoding"),
    [
        ({"key.serializer.encoding": "utf-16-le", "serializer.encoding": "latin-1"}, True, "utf-16-le"),
        ({"key.serializer.encoding": "utf-16-le", "serializer.encoding": "latin-1"}, False, "latin-1"),
        ({"value.serializer.encoding": "cp1250"}, False, "cp1250"),
        ({}, False, "utf-8"),
    ],
)
def test_the_string_serializer_honours_its_encodings(config: dict[str, str], is_key: bool, encoding: str) -> None:
    serializer = make_serializer("org.apache.kafka.common.serialization.StringSerializer", config, is_key)
    assert serializer is not None
    assert serializer.serialize("t", "é") == "é".encode(encoding)


def test_an_unknown_encoding_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"value\.serializer\.encoding='klingon'"):
        Producer({**NOWHERE, "value.serializer": "string", "value.serializer.encoding": "klingon"})


@pytest.mark.parametrize(
    ("deserializer", "data"), [(StringDeserializer(), b"\xff"), (JsonDeserializer(), b"{"), (IntSerializer(), b"\0")]
)
def test_bytes_that_are_something_else_are_refused(deserializer: Any, data: bytes) -> None:
    with pytest.raises(SerializationError):
        deserializer.deserialize("t", data)


class Reversing:
    """A serializer as a user writes it."""

    def configure(self, config: Any, is_key: bool) -> None:
        self.configured = (config["client.id"], is_key)

    def serialize(self, topic: str, data: str) -> bytes:
        return data[::-1].encode()


def test_serializers_are_objects_or_dotted_names_and_are_configured() -> None:
    mine = Reversing()
    producer = Producer(
        {**NOWHERE, "client.id": "me", "key.serializer": mine, "value.serializer": f"{__name__}.Reversing"}
    )
    assert mine.configured == ("me", True)
    record, _ = producer._setup.convert(_record("t", "abc", "key"), None)
    assert (record.value, record.key) == (b"cba", b"yek")
    producer.close()


def _record(topic: str, value: Any, key: Any = None) -> Any:
    from headrace.client.producer._base import ProducerRecord

    return ProducerRecord(topic, value, key)


@pytest.mark.parametrize(
    "record",
    [
        {"value": "text"},
        {"value": b"", "key": 7},
        {"value": b"", "headers": [("name", 7)]},
        {"value": b"", "headers": [(b"name", b"")]},
    ],
)
def test_what_is_not_bytes_is_refused_at_once_with_a_hint(record: dict[str, Any]) -> None:
    with Producer(NOWHERE) as producer, pytest.raises(SerializationError, match="t"):
        producer.send("t", **record)


@pytest.mark.parametrize("record", [{"partition": -1}, {"timestamp": -5}, {"topic": ""}, {"partition": "0"}])
def test_impossible_records_are_refused_at_once(record: dict[str, Any]) -> None:
    with Producer(NOWHERE) as producer, pytest.raises(ValueError):
        producer.send(**{"topic": "t", "value": b"", **record})


class Stamping:
    """An interceptor as a user writes it."""

    def __init__(self) -> None:
        self.acknowledged: list[Any] = []

    def on_send(self, record: Any) -> Any:
        if record.value == b"boom":
            raise ValueError
        return record._replace(value=record.value + b"!")

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self.acknowledged.append((metadata, error))


def test_interceptors_change_records_and_hear_of_their_end(caplog: pytest.LogCaptureFixture) -> None:
    mine = Stamping()
    with Producer({**NOWHERE, "interceptor.classes": [mine]}) as producer:
        told: list[Any] = []
        record, callback = producer._setup.convert(_record("t", b"a"), lambda error, metadata: told.append(metadata))
        assert record.value == b"a!"
        callback(None, "where")
        assert mine.acknowledged == [("where", None)]
        assert told == ["where"]
        assert producer._setup.convert(_record("t", b"boom"), None)[0].value == b"boom"


# --- partitioners ----------------------------------------------------------------------------------------------------


def test_keys_go_where_java_sends_them() -> None:
    checked = 0
    with gzip.open(REFERENCE / "vectors" / "hashes.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            if case["kind"] == "murmur2" and case["key"] is not None:
                key = base64.b64decode(case["key"])
                for count, partition in case["partition"].items():
                    assert partition_for_key(key, int(count)) == partition
                    checked += 1
    assert checked > 1000


def test_keyed_records_of_a_batch_go_by_murmur2() -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 7})
    world = World(cluster)
    rng = random.Random(2)
    keys = [rng.randbytes(rng.randint(0, 30)) for _ in range(500)]
    deliveries = [world.send("t", b"", key=key) for key in keys]
    world.deliver(deliveries)
    assert [d.result().partition for d in deliveries] == [partition_for_key(key, 7) for key in keys]


def topic_view(count: int, available: list[int]) -> TopicView:
    return TopicView(
        "t", partitions=[PartitionView(i, 1 if i in available else -1) for i in range(count)], available=available
    )


def test_sticky_stays_until_a_batch_is_full_and_then_moves() -> None:
    rng = random.Random(4)
    state = StickyState()
    view = topic_view(10, list(range(10)))
    seen = []
    for _ in range(300):
        first = state.current(view, lambda p: 0, rng, True)
        state.took(600, 1000, view, lambda p: 0, rng, True)
        assert state.current(view, lambda p: 0, rng, True) == first
        state.took(600, 1000, view, lambda p: 0, rng, True)
        seen.append(first)
    assert set(seen) == set(range(10))
    assert max(Counter(seen).values()) < 60


@pytest.mark.parametrize(("available", "allowed"), [([3], {3}), ([], set(range(5))), ([1, 2], {1, 2})])
def test_sticky_uses_partitions_with_a_leader_and_any_when_none_has(available: list[int], allowed: set[int]) -> None:
    rng = random.Random(4)
    assert {pick_other(None, 5, available, rng) for _ in range(200)} == allowed
    view = topic_view(5, available)
    picked = set()
    for _ in range(200):
        state = StickyState()
        picked.add(state.current(view, lambda p: 0, rng, False))
    assert picked == allowed


def test_adaptive_partitioning_prefers_short_queues() -> None:
    rng = random.Random(4)
    view = topic_view(2, [0, 1])
    picked = Counter(StickyState().current(view, lambda p: [9, 0][p], rng, True) for _ in range(2000))
    assert 0.07 < picked[0] / 2000 < 0.13


def test_round_robin_takes_turns_and_uniform_sticky_moves_when_a_batch_closes() -> None:
    turns = RoundRobinPartitioner()
    assert [turns.partition("t", b"k", None, 3, [0, 2]) for _ in range(4)] == [0, 2, 0, 2]
    sticky = UniformStickyPartitioner(random.Random(1))
    first = sticky.partition("t", None, None, 4, [0, 1, 2, 3])
    assert all(sticky.partition("t", None, None, 4, [0, 1, 2, 3]) == first for _ in range(10))
    sticky.on_new_batch("t", first)
    assert sticky.partition("t", None, None, 4, [0, 1, 2, 3]) != first


class ByLength:
    def partition(self, topic: str, key: Any, value: bytes, count: int, available: Any) -> int:
        return len(value) % count


def test_a_custom_partitioner_decides_and_an_explicit_partition_wins() -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 4})
    world = World(cluster, partitioner_class=ByLength())
    deliveries = [world.send("t", b"x" * i) for i in range(8)] + [world.send("t", b"xx", partition=3)]
    world.deliver(deliveries)
    assert [d.result().partition for d in deliveries] == [0, 1, 2, 3, 0, 1, 2, 3, 3]


def test_a_raising_partitioner_fails_its_records() -> None:
    class Broken:
        def partition(self, *args: Any) -> int:
            raise ZeroDivisionError("oops")

    world = World(FakeCluster(VirtualClock(), topics={"t": 4}), partitioner_class=Broken())
    delivery = world.send("t", b"x")
    world.deliver([delivery])
    assert "oops" in str(delivery.exception())


# --- threads, memory, forks ------------------------------------------------------------------------------------------


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("headrace")}


def test_importing_headrace_is_quick_and_brings_neither_numpy_nor_threads() -> None:
    code = (
        "import sys, time, threading; t = time.process_time(); import headrace; headrace.__version__;"
        "took = time.process_time() - t; heavy = {'numpy', 'numba', 'pyarrow', 'asyncio'} & set(sys.modules);"
        "print(took < 0.1, sorted(heavy), threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(None, 1) == ["True", "[] 1\n"]


def test_no_thread_before_the_first_send_and_none_after_close() -> None:
    before = threads()
    producer = Producer({**NOWHERE, "max.block.ms": 100})
    assert threads() == before
    producer.send("t", b"")
    assert len(threads() - before) == 1
    with pytest.raises(UndeliveredError):
        producer.close(timeout=0)
    assert threads() == before
    producer.close()
    with pytest.raises(ClientClosedError):
        producer.send("t", b"")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_many_producers_made_and_closed_leave_nothing_behind(silent_server: str) -> None:
    before, files = threads(), open_files()
    for _ in range(40):
        producer = Producer(bootstrap_servers=silent_server)
        producer.send("t", b"")
        with pytest.raises(UndeliveredError):
            producer.close(timeout=0)
    assert threads() == before
    assert open_files() <= files + 1


def send_many(producer: Producer, count: int, size: int) -> None:
    for _ in range(count):
        producer.send("t", b"x" * size)


def test_a_full_buffer_blocks_send_for_max_block_ms_and_says_so(silent_server: str) -> None:
    producer = Producer(bootstrap_servers=silent_server, buffer_memory=100_000, max_block_ms=300)
    try:
        producer.send("t", b"")
        # What waits for its topic ends after max.block.ms too, and would make room just then.
        assert producer._core is not None
        producer._core.accumulator.settings = dataclasses.replace(producer._settings, max_block_ms=60_000)
        start = time.monotonic()
        with pytest.raises(BufferExhaustedError, match=r"buffer\.memory.*max\.block\.ms"):
            send_many(producer, 1000, 1000)
        assert 0.25 < time.monotonic() - start < 30
        assert producer.metrics()["buffer-available-bytes"] < 10_000
    finally:
        with pytest.raises(UndeliveredError):
            producer.close(timeout=0)


def test_undelivered_records_fail_when_the_producer_closes(silent_server: str) -> None:
    errors: list[Any] = []
    producer = Producer(bootstrap_servers=silent_server)
    delivery = producer.send("t", b"", on_delivery=lambda error, metadata: errors.append(error))
    with pytest.raises(TimeoutError):
        delivery.result(0.05)
    with pytest.raises(TimeoutError):
        producer.flush(0.05)
    producer.close(timeout=0.05)
    assert isinstance(delivery.exception(), ClientClosedError)
    assert len(errors) == 1


def test_a_producer_used_after_fork_starts_afresh_in_the_child(silent_server: str) -> None:
    producer = Producer(bootstrap_servers=silent_server, max_block_ms=200)
    producer.send("t", b"parent")
    pid = os.fork()
    if pid == 0:
        # The child: its own thread, and an empty buffer; nothing may raise or hang.
        signal.alarm(20)
        status = 1
        try:
            assert not threads() or producer._sender.thread is None
            delivery = producer.send("t", b"child")
            assert delivery.exception(5) is not None
            producer.close(timeout=0)
            status = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            raise
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert producer._sender.thread is not None
    assert producer._sender.thread.is_alive()
    with pytest.raises(UndeliveredError, match="1 record "):
        producer.close(timeout=0)


def test_results_cannot_be_waited_for_inside_a_callback(silent_server: str) -> None:
    raised: list[Any] = []
    producer = Producer(bootstrap_servers=silent_server, max_block_ms=50)

    def callback(error: Any, metadata: Any) -> None:
        try:
            producer.flush()
        except RuntimeError as problem:
            raised.append(problem)

    producer.send("t", b"", on_delivery=callback).exception(10)
    producer.close(timeout=0)
    assert "callback" in str(raised[0])


def test_many_threads_may_send_at_once() -> None:
    producer = Producer({**NOWHERE, "max.block.ms": 60_000})
    deliveries: list[Any] = []

    def work() -> None:
        for _ in range(2000):
            deliveries.append(producer.send("t", b"x"))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with pytest.raises(UndeliveredError, match="8,000 records"):
        producer.close(timeout=0)
    assert len(deliveries) == 8000
    assert all(delivery.done() for delivery in deliveries)


def test_asyncio_producer_closes_without_a_broker() -> None:
    async def main() -> None:
        producer = aio.Producer(bootstrap_servers="127.0.0.1:1", buffer_memory=2000)
        delivery = producer.send("t", b"x" * 1500)
        with pytest.raises(BufferExhaustedError, match="room"):
            producer.send("t", b"x" * 1500)
        waiting = asyncio.ensure_future(_outcome(delivery))
        await asyncio.sleep(0)
        await producer.close(timeout=0)
        assert isinstance(await waiting, ClientClosedError)
        with pytest.raises(ClientClosedError):
            producer.send("t", b"")
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


async def _outcome(delivery: Any) -> Any:
    try:
        return await delivery
    except ClientClosedError as error:
        return error


def test_the_core_has_no_clock_of_its_own() -> None:
    # A guard for simulations: everything the core does follows the clock it was given.
    assert "time" not in {name for name in vars(sys.modules[ClientCore.__module__]) if name == "time"}


def test_a_batch_of_listed_values_can_be_cut_in_two() -> None:
    objects = pytest.importorskip("headrace.records.kernels_fast_objects")
    values = [b"%d" % row for row in range(101)]
    lengths = memoryview(objects.measure(values).lengths)
    batch = ProducerBatch(None, "t", 0, 0.0)
    batch.take_columns(Unpacked(values, lengths, 7).rows(1, 101), BatchDelivery(None, "t", None), 1000)
    batch.identify(5, 0, 30)
    halves = batch.split()
    found = [record for half in halves for record in read_records(Batch(half.encode(Codec.LZ4, None)))]
    assert [record.value for record in found] == values[1:]
    assert [record.sequence for record in found] == list(range(30, 130))
    assert {record.timestamp for record in found} == {7}
    assert batch.metadata_of(3).timestamp == 7


def test_a_delivery_is_shown_by_what_became_of_it_and_not_by_what_it_is_made_of() -> None:
    with headrace.testing.broker() as kafka, Producer(bootstrap_servers=kafka.address) as producer:
        delivery = producer.send("shown", b"secret")
        assert repr(delivery) in ("<Delivery to shown: under way>", "<Delivery to shown: partition 0, offset 0>")
        delivery.result(30)
        assert repr(delivery) == "<Delivery to shown: partition 0, offset 0>"
    assert repr(Delivery()) == "<Delivery>"
    assert not {"append", "sort", "pop"} & set(dir(delivery))
    assert {"result", "exception", "done"} <= set(dir(delivery))
