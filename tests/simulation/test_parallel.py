"""Parallel consumers, and whatever else is a blocking program with callbacks, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.client.admin.types import NewTopic
from headrace.parallel.finished import encode_finished
from headrace.testing.simulated import simulated_cluster
from headrace.testing.simulated.blocking import BlockingCluster, ThreadedClient
from headrace.testing.simulated.checks import Contents
from headrace.testing.simulated.handled import check_handled, not_handled, settle
from headrace.testing.simulated.history import BrokenError, Handled, Letter, ParallelCommit
from headrace.testing.simulated.plans import Plan, plan_for
from headrace.testing.simulated.runs import play
from headrace.testing.simulated.variants import DEAD_LETTERS, KEYED, RETRIES, VARIANTS
from headrace.topics import TopicPartition

_PARTITION = TopicPartition(KEYED, 0)
_FOUND = {_PARTITION: Contents(3, {0: ("w:0:a", 1), 1: ("w:1:b", 1), 2: ("w:2:a", 1)})}
_BY_KEY, _BY_PARTITION = VARIANTS["pool by key"], VARIANTS["pool by partition"]
_ROUNDS, _ONCE = VARIANTS["pool by key, retry topic"], VARIANTS["pool by key, transactional"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", ["pool by key", "window of batches", "window by key, transactional", "consumers by key", "ranges"]
)
def test_parallel_consumers_take_the_same_course_twice(variant: str) -> None:
    plan = replace(plan_for(4), workloads=("idempotent", "parallel"), parallel=variant)
    one, two = play(plan), play(plan)
    assert one.failure is None
    assert one.counts["records handled in parallel"] > 0
    assert one.digest == two.digest


def test_every_kind_of_parallel_consumers_is_drawn_and_plans_of_before_have_the_first() -> None:
    assert {plan_for(seed).parallel for seed in range(100)} == set(VARIANTS)
    former = plan_for(1).document()
    del former["parallel"]
    assert Plan.of(former).parallel == "pool by key"


def test_a_listener_of_a_blocking_program_may_call_its_consumer() -> None:
    committed: list[object] = []

    class Listener:
        def __init__(self, consumer: ThreadedClient) -> None:
            self._consumer = consumer

        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            committed.append(self._consumer.committed(partitions))

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            self._consumer.commit_sync()

    def program(cluster: BlockingCluster) -> list[bytes]:
        with cluster.admin() as admin:
            admin.create_topics([NewTopic("t", 1, 1)]).all()
        with cluster.producer() as producer:
            producer.send("t", b"one").result()
        found: list[bytes] = []
        with cluster.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"], Listener(consumer))
            while not found:
                found += [record.value for record in consumer.poll(1.0)]
        with cluster.admin() as admin:
            committed.append(admin.list_group_offsets(["g"]).all()["g"][TopicPartition("t", 0)].offset)
        return found

    assert simulated_cluster(seed=1, brokers=1).run_blocking(program) == [b"one"]
    # Nothing when the partition came, and all that was read when it went.
    assert committed == [{TopicPartition("t", 0): None}, 1]


def _handled(ends: dict[str, int]) -> Handled:
    return Handled(ends={(value, 0): tick for value, tick in ends.items()})


def test_a_record_that_nobody_finished_is_noticed() -> None:
    handled = _handled({"w:0:a": 1, "w:1:b": 2})
    assert not_handled(handled, _FOUND) is not None
    handled.arrived(Letter(RETRIES, ("w:2:a", 0), ("w:2:a", 1)), 3, is_retry=True)
    assert "came to the retry topic" in str(not_handled(handled, _FOUND))
    handled.ended(("w:2:a", 1), 4)
    assert not_handled(handled, _FOUND) is None


def test_a_key_out_of_order_is_noticed_and_other_keys_are_not() -> None:
    handled = _handled({"w:0:a": 10, "w:1:b": 2, "w:2:a": 12})
    handled.begins = [(_PARTITION, 1, "w:1:b", 1), (_PARTITION, 2, "w:2:a", 11)]
    check_handled(handled, _FOUND, _BY_KEY)
    with pytest.raises(BrokenError, match="one of its partition"):
        check_handled(handled, _FOUND, _BY_PARTITION)
    handled.begins = [(_PARTITION, 2, "w:2:a", 9)]
    check_handled(handled, _FOUND, VARIANTS["pool without order"])
    with pytest.raises(BrokenError, match="one of its key"):
        check_handled(handled, _FOUND, _BY_KEY)


def test_a_commit_that_passes_an_unfinished_record_is_noticed() -> None:
    handled = _handled({"w:0:a": 10, "w:1:b": 2, "w:2:a": 12})
    handled.commits = [ParallelCommit(_PARTITION, *one) for one in ((0, "", 1), (2, "", 11), (3, "", 13))]
    check_handled(handled, _FOUND, _BY_KEY)
    handled.commits = [ParallelCommit(_PARTITION, 3, "", 11)]
    with pytest.raises(BrokenError, match="passed a record"):
        check_handled(handled, _FOUND, _BY_KEY)
    # What leaves in the same transaction may be passed, but not in the end, when its letter is nowhere.
    handled.commits = [ParallelCommit(_PARTITION, 3, "", 11, frozenset({("w:2:a", 0)}))]
    check_handled(handled, _FOUND, _BY_KEY)
    del handled.ends["w:2:a", 0]
    with pytest.raises(BrokenError, match="passed a record"):
        check_handled(handled, _FOUND, _BY_KEY, [ParallelCommit(_PARTITION, 3, "", 99)])


def test_a_note_that_has_an_unfinished_record_is_noticed() -> None:
    note, _ = encode_finished(0, [(1, 2)])
    handled = _handled({"w:0:a": 10, "w:1:b": 2, "w:2:a": 12})
    handled.commits = [ParallelCommit(_PARTITION, 0, note, 3)]
    check_handled(handled, _FOUND, _BY_KEY)
    handled.commits = [ParallelCommit(_PARTITION, 0, note, 1)]
    with pytest.raises(BrokenError, match="passed a record that was not finished, at 1"):
        check_handled(handled, _FOUND, _BY_KEY)


def _letters(*rows: tuple[str, str, int]) -> dict[TopicPartition, Contents]:
    """Letters in their topics: topic, value and rounds."""
    found = {TopicPartition(topic, 0): Contents() for topic in (RETRIES, DEAD_LETTERS)}
    for offset, (topic, value, rounds) in enumerate(rows):
        held = found[TopicPartition(topic, 0)]
        held.rows[offset], held.rounds[offset] = (value, 1), rounds
    return found


def test_letters_that_left_too_early_are_noticed() -> None:
    usual, refused = "w:0:a", "w:3:a"
    handled = Handled(failures={(usual, 0): 2, (usual, 1): 2, (usual, 2): 2, (refused, 0): 1})
    check_handled(handled, _letters((RETRIES, usual, 1), (RETRIES, usual, 2), (DEAD_LETTERS, usual, 2)), _ROUNDS)
    check_handled(handled, _letters((DEAD_LETTERS, refused, 0)), _ROUNDS)
    for too_early in ((DEAD_LETTERS, usual, 0), (RETRIES, usual, 3), (RETRIES, refused, 1)):
        with pytest.raises(BrokenError, match="left round"):
            check_handled(handled, _letters(too_early), _ROUNDS)
    handled.failures[usual, 1] = 1
    with pytest.raises(BrokenError, match="left round 1 after it had failed 1 times"):
        check_handled(handled, _letters((RETRIES, usual, 2)), _ROUNDS)


def test_a_letter_that_is_there_twice_is_noticed_where_it_is_sent_in_transactions() -> None:
    handled = Handled(failures={("w:0:a", 0): 4})
    found = _letters((RETRIES, "w:0:a", 1), (RETRIES, "w:0:a", 1))
    check_handled(handled, found, _ROUNDS)
    with pytest.raises(BrokenError, match="twice"):
        check_handled(handled, found, _ONCE)
    found[TopicPartition(RETRIES, 0)].aborted.add(0)
    check_handled(handled, found, _ONCE)


def test_a_letter_of_unknown_outcome_counts_once_it_is_committed() -> None:
    letter = Letter(RETRIES, ("w:0:a", 0), ("w:0:a", 1))
    handled = Handled(doubtful={letter: 7})
    found = _letters((RETRIES, "w:0:a", 1))
    found[TopicPartition(RETRIES, 0)].undecided.add(0)
    settle(handled, found)
    assert not handled.ends
    found[TopicPartition(RETRIES, 0)].undecided.clear()
    settle(handled, found)
    assert handled.ends == {("w:0:a", 0): 7}
    assert handled.awaited == {("w:0:a", 1)}
    assert not handled.doubtful


_LETTER = Letter(RETRIES, ("w:0:a", 0), ("w:0:a", 1), "a", (_PARTITION, 0), 50)


def _sent(letter: Letter, *, is_delivered: bool = False) -> Handled:
    delivered = {letter} if is_delivered else set()
    return Handled(failures={("w:0:a", 0): 2}, letters=[letter], delivered=delivered)


def test_a_letter_that_is_not_what_its_record_was_is_noticed() -> None:
    found = {**_FOUND, **_letters()}
    check_handled(_sent(_LETTER), found, _ROUNDS)
    for wrong, told in (
        (replace(_LETTER, key=None), "with the key None"),
        (replace(_LETTER, origin=(TopicPartition(RETRIES, 0), 0)), "at 0 of retries-0"),
        (replace(_LETTER, origin=(_PARTITION, 1)), "at 1 of keyed-0"),
        (replace(_LETTER, wait_ms=0), "due after 0 ms"),
    ):
        with pytest.raises(BrokenError, match=told):
            check_handled(_sent(wrong), found, _ROUNDS)


def test_a_letter_that_was_acknowledged_and_is_not_there_is_noticed() -> None:
    check_handled(_sent(_LETTER, is_delivered=True), {**_FOUND, **_letters((RETRIES, "w:0:a", 1))}, _ROUNDS)
    with pytest.raises(BrokenError, match="is not there"):
        check_handled(_sent(_LETTER, is_delivered=True), {**_FOUND, **_letters()}, _ROUNDS)
