"""A range is read whole, whatever its brokers answer on the way; what is lost is said only when the log has lost it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.spark.scripted import LEADER, REPLICA, ScriptedClient, answer, batch

from headrace.client.consumer.errors import RecordDeserializationError
from headrace.client.consumer.records import PartitionColumns
from headrace.errors import ErrorCode, RequestTimedOutError
from headrace.records import Columns, TimestampType
from headrace.records.columns import bytes_column, int_column
from headrace.spark.planning import DataLossError, OffsetRange
from headrace.spark.reading import RangeFetcher, ReadPlan, to_spark
from headrace.spark.source import HeadraceSource
from headrace.topics import TopicPartition

T = TopicPartition("t", 0)


def rows(client: ScriptedClient, end: int = 100, *, kafka: dict[str, str] | None = None, **options: Any) -> int:
    plan = ReadPlan.of(kafka or {}, read_committed=False, **options)
    found: Any = client
    return sum(len(piece) for piece in RangeFetcher(found, plan, OffsetRange(T, 0, end)).pieces())


def lagging(until: int) -> Any:
    """A new leader whose high watermark is 60 up to the n-th answer, though its log has 100."""

    def fetched(node: int, offset: int, number: int) -> Any:
        if offset < 60:
            return answer(batch(offset, 60 - offset), watermark=60)
        return answer(watermark=60) if number <= until else answer(batch(offset, 100 - offset))

    return fetched


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("until", [2, 3, 4, 20])
def test_a_watermark_that_lags_after_an_election_is_no_loss(until: int, fail: bool) -> None:
    assert rows(ScriptedClient(lagging(until)), fail_on_data_loss=fail) == 100


def test_a_watermark_that_never_comes_is_a_time_out_and_no_loss() -> None:
    client = ScriptedClient(lagging(10_000))
    with pytest.raises(RequestTimedOutError, match="not all replicas do"):
        rows(client, fail_on_data_loss=False, timeout_ms=20_000)


def test_a_log_that_was_cut_short_is_a_loss_once_its_leader_says_so() -> None:
    with pytest.raises(DataLossError, match="ends at offset 60; the range goes to 100"):
        rows(ScriptedClient(lagging(10_000), log_end=60))
    client = ScriptedClient(lagging(10_000), log_end=60)
    assert rows(client, fail_on_data_loss=False) == 60
    assert client.others == ["OffsetForLeaderEpoch"]


def test_a_leader_that_does_not_know_where_its_epoch_ends_is_asked_otherwise() -> None:
    client = ScriptedClient(lagging(10_000), log_end=-1, earliest=60)
    with pytest.raises(DataLossError, match="ends at offset 60"):
        rows(client)
    assert client.others == ["OffsetForLeaderEpoch", "ListOffsets"]


def test_an_offset_out_of_range_is_looked_into_before_it_is_a_loss() -> None:
    def fetched(node: int, offset: int, number: int) -> Any:
        if offset == 0:
            return answer(batch(0, 60))
        refused = answer(error=int(ErrorCode.OFFSET_OUT_OF_RANGE))
        return refused if number < 6 else answer(batch(60, 40))

    assert rows(ScriptedClient(fetched), fail_on_data_loss=False) == 100
    with pytest.raises(DataLossError, match="offsets 60 to 79"):
        rows(ScriptedClient(fetched, earliest=80))


def test_the_replica_that_the_leader_names_is_read_from() -> None:
    def fetched(node: int, offset: int, number: int) -> Any:
        if node == LEADER:
            return answer(replica=REPLICA)
        return answer(batch(offset, 50))

    client = ScriptedClient(fetched)
    assert rows(client, kafka={"client.rack": "b"}) == 100
    assert [node for node, _ in client.asked] == [LEADER, REPLICA, REPLICA]


@pytest.mark.parametrize(
    "trouble",
    [
        answer(watermark=0),
        answer(error=int(ErrorCode.OFFSET_OUT_OF_RANGE)),
        answer(error=int(ErrorCode.OFFSET_NOT_AVAILABLE)),
        answer(error=int(ErrorCode.NOT_LEADER_OR_FOLLOWER)),
    ],
)
def test_a_replica_that_fails_leads_back_to_the_leader(trouble: Any) -> None:
    client = ScriptedClient(lambda node, offset, number: trouble)
    client.fetched = lambda node, offset, number: (
        trouble if node == REPLICA else answer(replica=REPLICA) if client.racks[-1] else answer(batch(offset, 100))
    )
    assert rows(client, kafka={"client.rack": "b"}) == 100
    assert [node for node, _ in client.asked] == [LEADER, REPLICA, LEADER]
    # Asked without a rack, the leader answers itself.
    assert client.racks == ["b", "b", ""]
    assert client.others == []


def test_a_damaged_batch_behind_the_range_does_not_fail_it() -> None:
    bad = bytearray(batch(100, 10))
    bad[-1] ^= 0xFF

    def fetched(node: int, offset: int, number: int) -> Any:
        return answer((batch(0, 100) if offset < 100 else b"") + bytes(bad), watermark=110)

    for end in (100, 99, 50):
        assert rows(ScriptedClient(fetched), end) == end
    with pytest.raises(RecordDeserializationError):
        rows(ScriptedClient(fetched), 105)


def test_a_damaged_batch_behind_a_gap_at_the_ranges_end_does_not_fail_it() -> None:
    bad = bytearray(batch(100, 10))
    bad[-1] ^= 0xFF
    # Compaction has removed 90 to 99.
    client = ScriptedClient(
        lambda node, offset, number: answer(batch(0, 90) if offset < 90 else bytes(bad), watermark=110)
    )
    assert rows(client) == 90


def test_a_timestamp_that_spark_cannot_count_is_null_and_no_other_time() -> None:
    """Nanoseconds that were written as milliseconds came out as another time."""
    pa = pytest.importorskip("pyarrow")
    stamps = [1_700_000_000_123, 1_700_000_000_123_456_789, -(2**62)]
    values = bytes_column([b"a", b"b", b"c"])
    columns = Columns(int_column("q", [0, 1, 2]), int_column("q", stamps), bytes_column([None] * 3), values)
    piece = PartitionColumns(TopicPartition("t", 0), columns, 0, TimestampType.CREATE_TIME, 3)
    schema = pa.schema([("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])
    found = to_spark(piece, schema).column("timestamp").cast(pa.int64()).to_pylist()
    assert found == [1_700_000_000_123_000, None, None]


def test_a_schema_that_is_not_the_sources_is_refused_before_a_task_fails_of_it() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    source = HeadraceSource({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    wrong = types.StructType(
        [types.StructField("value", types.StringType()), types.StructField("id", types.LongType())]
    )
    with pytest.raises(ValueError, match=r"and not value string, id bigint: leave .schema\(…\) out"):
        source.reader(wrong)
