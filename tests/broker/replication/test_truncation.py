"""Where logs part, next to Kafka's own answers: rounds of fetches between two logs with their leader epochs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.broker import raw
from tests.broker.replication.model_log import ModelLog, Record

from headrace.broker.replication.fetcher import span
from headrace.broker.replication.follower import Act, Answer, position, step
from headrace.broker.replication.truncation import UNKNOWN, NotInLogError, cut_at, divergence
from headrace.records import assign

VECTORS = Path(__file__).parents[2] / "reference" / "vectors" / "follower-truncation.jsonl.gz"


def _log(described: dict[str, Any]) -> ModelLog:
    log = ModelLog()
    for epoch, count in described["runs"]:
        log.append([Record(epoch, n) for n in range(count)])
    assert log.end_offset == described["end"]
    return log


def _play(case: dict[str, Any]) -> None:
    leader, follower = _log(case["leader"]), _log(case["follower"])
    if case["leader"]["logStart"]:
        leader.delete_before(case["leader"]["logStart"])
    leader.begin_epoch(case["leaderEpoch"])
    assert [list(entry) for entry in leader.epochs.entries] == case["leader"]["entries"]
    for expected in case["rounds"]:
        asked_epoch = expected["lastFetchedEpoch"]
        assert follower.end_offset == expected["fetchOffset"]
        assert follower.leader_epoch == (-1 if asked_epoch is None else asked_epoch)
        try:
            if asked_epoch is None and follower.end_offset < leader.start_offset:
                raise NotInLogError
            found = (
                None
                if asked_epoch is None
                else divergence(leader, case["leaderEpoch"], follower.end_offset, asked_epoch)
            )
        except NotInLogError:
            assert expected["answer"] == "OFFSET_OUT_OF_RANGE"
            break
        if found is None:
            assert expected["answer"] == "fetching"
            break
        assert expected["answer"] == "diverging"
        assert list(found) == expected["leaderSays"]
        offset = cut_at(follower, *found)
        assert offset == expected["truncateTo"]
        follower.truncate_to(offset)
    assert follower.end_offset == case["followerEnd"]
    assert [list(entry) for entry in follower.epochs.entries] == case["followerEntries"]


def test_rounds_of_truncation_are_kafkas() -> None:
    with gzip.open(VECTORS, "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    assert len(cases) > 1000
    for case in cases:
        _play(case)


def test_a_follower_that_ends_where_its_leaders_log_begins_is_not_taken_as_equal() -> None:
    """Epoch 1 wrote offset 2 at the leader, epoch 0 at the follower; deleted, the leader does not know of either."""
    leader = ModelLog()
    leader.append([Record(0, 1), Record(0, 2), Record(1, 3)])
    leader.delete_before(3)
    leader.begin_epoch(2)
    follower = ModelLog()
    follower.append([Record(0, 1), Record(0, 2), Record(0, 4)])
    found = divergence(leader, 2, follower.end_offset, follower.leader_epoch, follower.start_offset)
    assert found is not None
    asked = position(b"", 0, 2, follower)
    answer = Answer(diverging_epoch=found.epoch, diverging_end_offset=found.end_offset, log_start_offset=3)
    to_do = step(asked, asked, answer, follower)
    assert (to_do.act, to_do.offset) == (Act.START_AT, 3)
    follower.start_at(to_do.offset)
    # It has nothing left that could differ, so it is not told again.
    assert follower.leader_epoch == -1
    follower.begin_epoch(0)
    assert divergence(leader, 2, follower.end_offset, follower.leader_epoch, follower.start_offset) is None


def test_a_consumer_at_the_start_of_the_log_goes_on() -> None:
    leader = ModelLog()
    leader.append([Record(0, 1), Record(1, 2)])
    leader.delete_before(1)
    assert divergence(leader, 1, 1, 0) is None


@pytest.mark.parametrize(("deleted_before", "expected"), [(0, (Act.TRUNCATE, 2)), (3, (Act.BEGIN_WITH, UNKNOWN))])
def test_a_batch_that_begins_before_the_followers_end_takes_the_place_of_what_is_there(
    deleted_before: int, expected: tuple[Act, int]
) -> None:
    follower = ModelLog()
    follower.append([Record(0, n) for n in range(3)])
    if deleted_before:
        follower.delete_before(deleted_before)
    asked = position(b"", 0, 0, follower)
    for first_offset, found in ((2, expected), (3, (Act.APPEND, UNKNOWN)), (UNKNOWN, (Act.APPEND, UNKNOWN))):
        to_do = step(asked, asked, Answer(first_offset=first_offset, last_epoch=0), follower)
        assert (to_do.act, to_do.offset) == found


def test_records_say_where_they_begin_and_their_last_epoch_as_far_as_they_are_whole() -> None:
    first, second = raw.batch([b"a", b"b"]), raw.batch([b"c"])
    assign(first, 5, 1)
    assign(second, 7, 2)
    assert span(bytes(first + second)) == (5, 2)
    assert span(bytes(first + second[:-1])) == (5, 1)
    assert span(bytes(first[:-1])) == span(b"") == (-1, -1)
