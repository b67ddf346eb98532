"""Fetch sessions are bounded in number, and in what they remember together."""

from __future__ import annotations

import random

from headrace.broker.partitions.fetch_sessions import (
    EVICTABLE_AFTER_MS,
    FetchSession,
    FetchSessions,
    SessionPartition,
    weight_of,
)
from headrace.errors import ErrorCode


def remember(session: FetchSession, count: int) -> None:
    for index in range(len(session.partitions), len(session.partitions) + count):
        session.partitions["t", bytes(16), index] = SessionPartition("t", bytes(16), index)


def test_what_sessions_remember_together_is_bounded() -> None:
    sessions = FetchSessions(10, random.Random(1), partitions_max=100)
    one = sessions.create(False, 0, 60)
    assert one is not None
    remember(one, 60)
    assert sessions.has_room(one)
    assert sessions.create(False, 0, 41) is None, "answered without a session"
    two = sessions.create(False, 0, 40)
    assert two is not None
    remember(two, 40)
    assert sessions.has_room(two)
    remember(two, 1)
    assert not sessions.has_room(two)
    assert sessions.find(two.session_id, two.epoch, False) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.partition_count == 60
    for key in list(one.partitions)[:50]:
        del one.partitions[key]
    assert sessions.has_room(one)
    assert sessions.partition_count == 10
    sessions.remove(one.session_id)
    assert sessions.partition_count == 0


def test_a_session_that_nobody_uses_makes_room_also_for_what_another_remembers() -> None:
    sessions = FetchSessions(10, random.Random(1), partitions_max=100)
    old = sessions.create(False, 0, 90)
    assert old is not None
    remember(old, 90)
    assert sessions.has_room(old)
    assert sessions.create(False, EVICTABLE_AFTER_MS - 1, 20) is None
    assert sessions.create(False, EVICTABLE_AFTER_MS, 20) is not None
    assert len(sessions) == 1
    assert sessions.evictions == 1
    assert sessions.create(False, 3 * EVICTABLE_AFTER_MS, 101) is None
    assert len(sessions) == 1, "nobody makes room for what does not fit anyway"


def test_names_that_no_topic_can_have_count_by_their_length() -> None:
    """Three thousand of them are a hundred megabytes, which sessions would keep when their clients are gone."""
    sessions = FetchSessions(10, random.Random(1), partitions_max=1000)
    assert weight_of("t" * 249) == weight_of("\U0001f600" * 249) == 1
    long = "x" * 32_000
    assert weight_of(long) > 50
    session = sessions.create(False, 0, weight_of(long))
    assert session is not None
    for index in range(10):
        session.put((long, bytes(16), index), SessionPartition(long, bytes(16), index))
        session.put((long, bytes(16), index), SessionPartition(long, bytes(16), index))  # the same again
    assert sessions.has_room(session)
    assert sessions.partition_count == 10 * weight_of(long)
    for index in range(10):
        session.drop((long, bytes(16), index))
    assert sessions.has_room(session)
    assert sessions.partition_count == 0
    assert sessions.create(False, 0, 20 * weight_of(long)) is None
