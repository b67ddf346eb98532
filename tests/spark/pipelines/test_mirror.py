"""Topics of one cluster at another: everything of them, once, in both directions, and the groups' offsets."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from tests.spark.pipelines.reading import everything
from tests.spark.topics import make_topic

from headrace.client.admin import Admin, ConfigResource, ResourceType
from headrace.client.producer.blocking import Producer
from headrace.spark.once import TakenOverError
from headrace.spark.pipelines.declaring import PipelineError, WrongOptionError, parsed
from headrace.spark.pipelines.mirror import OPTIONS, _Mirror, run
from headrace.spark.pipelines.mirror_groups import HOP, find, hop_of
from headrace.spark.pipelines.mirror_topics import Naming, Topic, TopicChanges, compare
from headrace.spark.planning import DataLossError
from headrace.testing import BrokerProcess
from headrace.topics import TopicPartition

# --- pure -------------------------------------------------------------------------------------------------------------


def test_a_position_is_found_among_gaps_and_foreign_records() -> None:
    # Target offset → source offset; 3 and 7 are ends of transactions, 5 is somebody else's record.
    log = {0: 10, 1: 11, 2: 15, 4: 16, 6: 30, 8: 31}

    def probe(begin: int, before: int) -> tuple[int, int] | None:
        return next(((at, log[at]) for at in range(begin, before) if at in log), None)

    for wanted in range(40):
        expected = next((at for at in sorted(log) if log[at] >= wanted), 9)
        assert find(probe, 0, 9, wanted) == expected
    assert find(probe, 0, 0, 5) == 0


def test_a_hop_says_where_a_record_was() -> None:
    assert hop_of(b"abc-_/orders.eu/3/17") == ("abc-_", "orders.eu", 3, 17)
    assert [hop_of(value) for value in (None, b"", b"a/b/c/1", b"a/b/1")] == [None] * 4
    # Anybody may write such a header.
    assert [hop_of(value) for value in ("a/b/²/1".encode(), b"a/b/1/" + b"9" * 5_000)] == [None] * 2


def test_topics_are_created_enlarged_and_configured_but_never_made_smaller() -> None:
    source = {"new": Topic(2), "more": Topic(5), "less": Topic(1), "set": Topic(1, {"a": "1", "b": "2"})}
    target = {"more": Topic(3), "less": Topic(4), "set": Topic(1, {"b": "3", "c": "4"})}
    assert compare(source, target) == TopicChanges(
        {"new": Topic(2)}, {"more": 5}, {"set": {"a": "1", "b": "2", "c": None}}
    )
    assert compare(source, target, with_configs=False).configs == {}


def test_what_makes_no_sense_is_refused() -> None:
    assert Naming("eu.{topic}").target("orders") == "eu.orders"
    for template in ("orders", "{topic}{topic}", "a b{topic}"):
        with pytest.raises(WrongOptionError, match="--rename"):
            Naming(template)
    with pytest.raises(WrongOptionError, match="one of them"):
        run(parsed(OPTIONS, {"to": "x:1", "topics": "a", "pattern": "a"}))
    with pytest.raises(WrongOptionError, match="regular expression"):
        run(parsed(OPTIONS, {"to": "x:1", "pattern": "("}))


class Memory:
    """The target's marker, and what was written, across runs."""

    kafka: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.position: dict[str, Any] = {}
        self.written: list[tuple[str, int, int]] = []

    def resume(self) -> dict[str, Any]:
        return dict(self.position)

    def write(self, rows: Any, topics: Any, position: dict[str, Any], **options: Any) -> int:
        # As it is after a restart: what was written down, as text.
        self.position = json.loads(json.dumps(position))
        self.written += [(one.topic, start, end) for one, (start, end) in (rows or {}).items()]
        return sum(end - start for start, end in (rows or {}).values())


class Source:
    """A cluster with these ends of topics, and their ids."""

    def __init__(self, ends: dict[str, int], ids: dict[str, str] | None = None, name: str = "SOURCE") -> None:
        self.id, self.ends, self.ids = name, ends, ids or dict.fromkeys(ends, "first")

    def earliest(self, partitions: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def commit(self, group: str, offsets: Any) -> None:
        return None


def _run(memory: Memory, source: Source, *topics: str, **options: Any) -> list[tuple[str, int, int]]:
    """One run over these topics; what it has mirrored."""
    chosen = parsed(OPTIONS, {"to": "x:1", "topics": list(topics), **options})
    running: Any = SimpleNamespace(
        snapshot=SimpleNamespace(rows_in=0, rows_out=0, batches=0), name="m", tell=lambda **changes: None
    )
    stubs: Any = (running, source, source, memory)
    mirror = _Mirror(*stubs, Naming(), chosen)
    mirror.topics, mirror.source_ids = dict.fromkeys(topics, 1), dict(source.ids)
    doubled: Any = mirror
    doubled._latest = lambda: {TopicPartition(name, 0): source.ends[name] for name in topics}
    doubled._rows = dict
    before = len(memory.written)
    mirror.go()
    return memory.written[before:]


def test_positions_of_topics_that_a_run_does_not_name_are_kept() -> None:
    memory, source = Memory(), Source({"a": 100, "b": 50})
    assert _run(memory, source, "a") == [("a", 0, 100)]
    assert _run(memory, source, "b") == [("b", 0, 50)]
    assert _run(memory, source, "a") == []
    source.ends["a"] = 120
    assert _run(memory, source, "a", "b") == [("a", 100, 120)]


def test_a_mirror_from_the_end_is_fixed_there_by_its_first_run() -> None:
    memory, source = Memory(), Source({"a": 100, "b": 50})
    assert _run(memory, source, "a", start="latest") == []
    source.ends.update(a=150, b=60)
    assert _run(memory, source, "a", start="latest") == [("a", 100, 150)]
    # A topic that is named for the first time starts at its end too.
    assert _run(memory, source, "a", "b", start="latest") == []
    source.ends.update(b=70)
    assert _run(memory, source, "a", "b", start="latest") == [("b", 60, 70)]


def test_a_topic_made_anew_at_the_source_is_mirrored_from_its_beginning_and_said() -> None:
    memory = Memory()
    assert _run(memory, Source({"a": 100}), "a") == [("a", 0, 100)]
    anew = Source({"a": 130}, {"a": "second"})
    with pytest.raises(DataLossError, match="a was deleted and made anew"):
        _run(memory, anew, "a")
    assert _run(memory, anew, "a", fail_on_data_loss=False) == [("a", 0, 130)]
    assert _run(memory, anew, "a") == []


def test_positions_of_another_cluster_are_refused() -> None:
    memory = Memory()
    _run(memory, Source({"a": 100}), "a")
    with pytest.raises(PipelineError, match="has read the cluster SOURCE"):
        _run(memory, Source({"a": 100}, name="OTHER"), "a")


# --- with two clusters ------------------------------------------------------------------------------------------------


def _mirror(spark: Any, source: str, target: str, **options: Any) -> dict[str, Any]:
    return run(parsed(OPTIONS, {"servers": source, "to": target, **options}), spark).document


def _facts(record: Any) -> tuple[Any, ...]:
    own = [one for one in record.headers if one[0] != HOP]
    return record.partition, record.timestamp, record.key, record.value, own


@pytest.mark.slow
def test_records_topics_and_groups_are_the_same_at_the_target(spark: Any, kafka: BrokerProcess, other: Any) -> None:
    here, there = kafka.address, other.address
    make_topic(here, "m.orders", partitions=2, **{"max.message.bytes": "200000", "retention.ms": "-1"})
    with Producer({"bootstrap.servers": here, "transactional.id": "gaps"}) as producer:
        producer.init_transactions()
        for begin in range(0, 60, 10):
            producer.begin_transaction()
            for number in range(begin, begin + 10):
                value = None if number % 7 == 0 else b"v%d" % number
                headers = [("h", b"1"), ("h", None)] if number % 3 else []
                key = None if number % 5 == 0 else b"k%d" % number
                producer.send(
                    "m.orders", value, key, headers=headers, partition=number % 2, timestamp=1_700_000_000_000 + number
                )
            # Aborted records and the ends of transactions are offsets that the target does not have.
            producer.abort_transaction() if begin == 20 else producer.commit_transaction()
    with Admin({"bootstrap.servers": here}) as admin:
        admin.alter_group_offsets(
            "billing", {TopicPartition("m.orders", 0): 17, TopicPartition("m.orders", 1): 0}
        ).all()

    done = _mirror(spark, here, there, pattern=r"m\..*", groups="bill.*", max_per_batch=25)
    assert done["mirrored"] == 50
    source, target = everything(here, "m.orders"), everything(there, "m.orders")
    assert [_facts(one) for one in target] == [_facts(one) for one in source]
    with Admin({"bootstrap.servers": there}) as admin:
        config = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "m.orders")])
        assert next(iter(config.all().values()))["max.message.bytes"].value == "200000"
        offsets = admin.list_group_offsets(["billing"])["billing"]
    at = offsets[TopicPartition("m.orders", 0)].offset
    unread = [one.value for one in source if one.partition == 0 and one.offset >= 17]
    assert [one.value for one in target if one.partition == 0 and one.offset >= at] == unread

    # Started again: only what is new, with partitions, topics and configs that are new.
    with Admin({"bootstrap.servers": here}) as admin:
        admin.create_partitions({"m.orders": 3}).all()
        admin.incremental_alter_configs(
            {ConfigResource(ResourceType.TOPIC, "m.orders"): {"max.message.bytes": None}}
        ).all()
    make_topic(here, "m.more", partitions=1)
    with Producer({"bootstrap.servers": here}) as producer:
        producer.send("m.orders", b"new", partition=2)
        producer.send("m.more", b"more")
    assert _mirror(spark, here, there, pattern=r"m\..*")["mirrored"] == 2
    assert [_facts(one) for one in everything(there, "m.orders")] == [
        _facts(one) for one in everything(here, "m.orders")
    ]
    assert [one.value for one in everything(there, "m.more")] == [b"more"]
    assert _mirror(spark, here, there, pattern=r"m\..*")["mirrored"] == 0


@pytest.mark.slow
def test_two_mirrors_in_both_directions_send_nothing_back(spark: Any, kafka: BrokerProcess, other: Any) -> None:
    here, there = kafka.address, other.address
    for servers, value in ((here, b"east"), (there, b"west")):
        make_topic(servers, "b.same", partitions=1)
        with Producer({"bootstrap.servers": servers}) as producer:
            producer.send("b.same", value)
    for _ in range(2):
        _mirror(spark, here, there, topics="b.same", name="both")
        _mirror(spark, there, here, topics="b.same", name="both")
    assert sorted(one.value for one in everything(here, "b.same")) == [b"east", b"west"]
    assert sorted(one.value for one in everything(there, "b.same")) == [b"east", b"west"]

    # Under other names: no copies of copies.
    for _ in range(2):
        _mirror(spark, here, there, pattern=r".*b\.same", name="names", rename="east.{topic}")
        _mirror(spark, there, here, pattern=r".*b\.same", name="names", rename="west.{topic}")
    for servers, copy in ((here, "west.b.same"), (there, "east.b.same")):
        with Admin({"bootstrap.servers": servers}) as admin:
            assert sorted(name for name in admin.list_topics() if name.endswith("b.same")) == ["b.same", copy]


@pytest.mark.slow
def test_a_mirror_that_another_run_overtook_stops(spark: Any, kafka: BrokerProcess, other: Any) -> None:
    from headrace.spark.pipelines.transacted import Transacted

    make_topic(other.address, "t.out", partitions=1)
    rows = spark.createDataFrame([("a",)], "value string")
    with Transacted({"bootstrap.servers": other.address}, "overtaken") as first:
        assert first.resume() == {}
        first.write(rows, ["t.out"], {"at": 1}, topic="t.out")
        with Transacted({"bootstrap.servers": other.address}, "overtaken") as second:
            assert second.resume() == {"at": 1}
            second.write(rows, ["t.out"], {"at": 2}, topic="t.out")
        with pytest.raises(TakenOverError):
            first.write(rows, ["t.out"], {"at": 2}, topic="t.out")
    assert len(everything(other.address, "t.out")) == 2
    with pytest.raises(WrongOptionError, match="one cluster"):
        _mirror(spark, kafka.address, kafka.address, topics="m.orders")
