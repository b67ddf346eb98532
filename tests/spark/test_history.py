"""What a marker says of a batch: that it is in, that it is not, or that the checkpoint is not the output's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.spark import foreach_batch
from headrace.spark.adopting import name_of
from headrace.spark.batches import MicroBatch
from headrace.spark.foreach_batch import SameSinkTwiceError, marked_with
from headrace.spark.history import Logged, SinkIdentity, judge
from headrace.spark.markers import Marker, UnreadableMarkerError
from headrace.spark.once import MarkerFinding, WrongHistoryError

QUERY = "0b9f3a52-7c0e-4a57-9a3e-0d6b7e5f1c22"
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":%d,"conf":{}}'


def logged(end: int, *, at_ms: int = 1, group: str = "g") -> Logged:
    source = f'{{"in":{{"0":{end}}},"@headrace":{{"cluster":"C","group":"{group}"}}}}'
    return Logged.of(f"v1\n{METADATA % at_ms}\n{source}")


def micro_batch(number: int, begin: int, end: int, run: str = "run-1") -> MicroBatch:
    return MicroBatch(QUERY, run, number, None, logged(begin) if number else None, logged(end))


def marker(number: int, begin: int, end: int, *, run: str = "run-1", call: str = "call-1") -> Marker:
    made = Marker(number, 10, 0, query=QUERY, sink="main", cluster="C", call=call, topics={"out": "id-1"})
    return marked_with(made, micro_batch(number, begin, end, run))


def test_the_same_batch_from_the_same_offsets_is_in() -> None:
    found = marker(3, 20, 30)
    assert judge(found, marker(3, 20, 30, run="run-2", call="call-2")) is MarkerFinding.BEFORE
    assert judge(found, marker(3, 20, 30)) is MarkerFinding.OURS
    assert judge(found, marker(4, 30, 40, call="call-2")) is MarkerFinding.NOTHING
    assert judge(None, found) is MarkerFinding.NOTHING
    # A batch in which the sink was not called is no gap.
    assert judge(found, marker(6, 50, 60, call="call-2")) is MarkerFinding.NOTHING


def test_a_restored_checkpoint_is_refused_and_says_where_the_output_ends() -> None:
    found = marker(3, 20, 30)
    with pytest.raises(WrongHistoryError, match=r'other offsets of the source.*startingOffsets=\{"in":\{"0":30\}\}'):
        judge(found, marker(3, 20, 35, run="run-2", call="call-2"))
    with pytest.raises(WrongHistoryError, match=r"batch 2 .* although batch 3 is committed since 1970-01-01T00:00:00Z"):
        judge(found, marker(2, 10, 20, run="run-2", call="call-2"))
    with pytest.raises(WrongHistoryError, match="begins at other offsets"):
        judge(found, marker(4, 31, 40, run="run-2", call="call-2"))


def test_what_spark_plans_anew_with_the_same_offsets_is_the_same_batch() -> None:
    assert logged(5, at_ms=1, group="a").digest == logged(5, at_ms=2, group="b").digest
    assert logged(5).digest != logged(6).digest
    other = replace(logged(5), watermark_ms=7)
    assert other.digest != logged(5).digest
    # A source of somebody else's may have any text in its offsets.
    assert Logged.of(f'v1\n{METADATA % 1}\n{{"at":"a\u2028b"}}').sources == ('{"at":"a\u2028b"}',)
    # Sources that are not ours have offsets of their own shape, or none.
    assert Logged.of(f"v1\n{METADATA % 1}\n-\n17").starting_offsets() == {}


def test_markers_of_other_clusters_topics_and_sinks_are_not_believed() -> None:
    found = marker(3, 20, 30)
    ours = marker(3, 20, 30, run="run-2", call="call-2")
    with pytest.raises(WrongHistoryError, match="written to the cluster ELSEWHERE"):
        judge(replace(found, cluster="ELSEWHERE"), ours)
    with pytest.raises(WrongHistoryError, match="out was deleted and made anew"):
        judge(found, replace(ours, topics={"out": "id-2"}))
    with pytest.raises(WrongHistoryError, match="is of query"):
        judge(replace(found, sink="other"), ours)
    # A list of topics may grow.
    assert judge(found, replace(ours, topics={"out": "id-1", "more": "id-9"})) is MarkerFinding.BEFORE


def test_a_job_of_the_same_name_with_other_topics_is_refused() -> None:
    found = Marker(0, query="batch-load", sink="main", end="a", topics={"eu": "1"})
    with pytest.raises(WrongHistoryError, match="to eu: a name stands for one job"):
        judge(found, replace(found, end="b", call="call-2"))


def test_markers_of_an_earlier_version_are_read() -> None:
    found = Marker.from_bytes(b'{"batch":3,"records":10,"at_ms":1}')
    assert judge(found, marker(3, 20, 30)) is MarkerFinding.BEFORE
    assert judge(found, marker(4, 30, 40)) is MarkerFinding.NOTHING
    with pytest.raises(WrongHistoryError, match="older than the output"):
        judge(found, marker(2, 10, 20))
    for value in (b"", b"[]", b'{"records":1}', b'{"batch":"x"}'):
        with pytest.raises(UnreadableMarkerError):
            Marker.from_bytes(value)


def test_a_job_of_an_earlier_version_is_known_again_unless_it_may_have_been_another() -> None:
    plain, dashed = SinkIdentity("batch-load"), SinkIdentity("batch-load-orders")
    known = {plain.earlier_id(["orders"]), dashed.earlier_id(["eu"])}
    assert name_of(plain, ["orders"], known, is_job=True) == "headrace-spark-batch-load-orders"
    for identity, topics in ((plain, ["orders-eu"]), (dashed, ["eu"])):
        with pytest.raises(WrongHistoryError, match="this one, or another"):
            name_of(identity, topics, known, is_job=True)
    assert name_of(plain, ["us"], known, is_job=True) == plain.transactional_id


def test_numbers_that_are_somebody_elses_may_come_again() -> None:
    found = Marker(5, query="mine", sink="main")
    assert judge(found, Marker(5, query="mine", sink="main", call="x")) is MarkerFinding.BEFORE
    assert judge(found, Marker(2, query="mine", sink="main", call="x")) is MarkerFinding.BEFORE


def test_no_two_identities_make_one_transactional_id_and_topics_are_no_part_of_it() -> None:
    pairs = [("batch-load", "orders-eu"), ("batch-load-orders", "eu"), ("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c")]
    assert len({SinkIdentity(*pair).transactional_id for pair in pairs}) == len(pairs)
    assert SinkIdentity(QUERY).earlier_id(["b", "a"]) == f"headrace-spark-{QUERY}-a+b"
    assert SinkIdentity(QUERY).is_sparks
    assert not SinkIdentity("batch-load").is_sparks


def test_a_second_call_for_a_batch_is_refused_whatever_the_first_found() -> None:
    identity = ("CLUSTER", "progress", SinkIdentity(QUERY))
    batch = micro_batch(1, 10, 20)
    with foreach_batch.once_a_batch(identity, batch):
        pass
    with (
        pytest.raises(SameSinkTwiceError, match="Leave the first as it is"),
        foreach_batch.once_a_batch(identity, batch),
    ):
        pass
    # Another name, cluster, batch, and another start of the query are none of its business.
    for who, what in (
        (("CLUSTER", "progress", SinkIdentity(QUERY, "other")), batch),
        (("ELSEWHERE", "progress", SinkIdentity(QUERY)), batch),
        (identity, micro_batch(2, 20, 30)),
        (identity, micro_batch(1, 10, 20, "run-2")),
    ):
        with foreach_batch.once_a_batch(who, what):
            pass


def test_a_call_that_failed_may_come_again() -> None:
    identity, batch = ("CLUSTER", "progress", SinkIdentity(QUERY, "again")), micro_batch(1, 10, 20)
    with pytest.raises(RuntimeError), foreach_batch.once_a_batch(identity, batch):
        raise RuntimeError("the first time")
    with foreach_batch.once_a_batch(identity, batch):
        pass


def test_a_second_call_is_refused_also_while_the_first_is_not_over() -> None:
    """Sinks that are called on threads of their own: the second would wait for the first, and find its marker."""
    identity, batch = ("CLUSTER", "progress", SinkIdentity(QUERY, "at once")), micro_batch(1, 10, 20)
    with foreach_batch.once_a_batch(identity, batch):
        with pytest.raises(SameSinkTwiceError), foreach_batch.once_a_batch(identity, batch):
            pass
        with foreach_batch.once_a_batch(identity, micro_batch(1, 10, 20, "run-2")):
            pass


def test_a_second_call_is_refused_also_when_another_start_of_the_query_has_been_there_between() -> None:
    """A start that was stopped may still be at its last batch: it must not make this one forget its first call."""
    place = ("CLUSTER", "progress", SinkIdentity(QUERY, "between"))
    for run in ("run-1", "run-2"):
        with foreach_batch.once_a_batch(place, micro_batch(1, 10, 20, run)):
            pass
    for run in ("run-1", "run-2"):
        with (
            pytest.raises(SameSinkTwiceError, match="Leave the first as it is"),
            foreach_batch.once_a_batch(place, micro_batch(1, 10, 20, run)),
        ):
            pass
