"""The note of a commit: what is finished beyond it, within 4,096 bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.parallel.finished import METADATA_BYTES_MAX, decode_finished, encode_finished


def intervals_of(base: int, lengths: list[tuple[int, int]]) -> list[tuple[int, int]]:
    made, position = [], base
    for is_open, finished in lengths:
        made.append((position + is_open, position + is_open + finished))
        position = made[-1][1]
    return made


def covers(decoded: list[tuple[int, int]], intervals: list[tuple[int, int]]) -> bool:
    """Whether what was decoded is a beginning of what was encoded."""
    offsets = {offset for first, last in intervals for offset in range(first, last)}
    found = {offset for first, last in decoded for offset in range(first, last)}
    return found <= offsets and all(offset in found for offset in offsets if found and offset <= max(found))


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.integers(0, 2**62),
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), max_size=300),
)
def test_a_note_says_again_what_was_written(base: int, lengths: list[tuple[int, int]]) -> None:
    intervals = intervals_of(base, lengths)
    note, is_whole = encode_finished(base, intervals)
    assert is_whole
    assert len(note) <= METADATA_BYTES_MAX
    assert decode_finished(base, note) == intervals


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(0, 2**32), st.integers(40, 400))
def test_what_does_not_fit_is_left_out_from_the_end(base: int, seed: int, room: int) -> None:
    rng = random.Random(seed)
    intervals = intervals_of(base, [(rng.randint(1, 3), rng.randint(1, 3)) for _ in range(1_000)])
    note, is_whole = encode_finished(base, intervals, room)
    assert not is_whole
    assert len(note) <= room
    decoded = decode_finished(base, note)
    assert decoded
    assert covers(decoded, intervals)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["alternating", "random", "one open"])
def test_twenty_four_thousand_offsets_fit_whatever_their_pattern(pattern: str) -> None:
    rng = random.Random(1)
    flags = {
        "alternating": lambda offset: offset % 2 == 1,
        "random": lambda offset: rng.random() < 0.5,
        "one open": lambda offset: offset != 12_000,
    }[pattern]
    open_offsets = [offset for offset in range(24_000) if offset == 0 or not flags(offset)]
    intervals = [(a + 1, b) for a, b in zip(open_offsets, [*open_offsets[1:], 24_000]) if a + 1 < b]
    note, is_whole = encode_finished(7_000_000_000, [(a + 7_000_000_000, b + 7_000_000_000) for a, b in intervals])
    assert is_whole
    assert len(note.encode()) <= METADATA_BYTES_MAX
    assert decode_finished(7_000_000_000, note) == [(a + 7_000_000_000, b + 7_000_000_000) for a, b in intervals]


def test_a_few_runs_are_shorter_than_bits_and_the_shorter_is_taken() -> None:
    few, _ = encode_finished(100, [(101, 20_000)])
    many, _ = encode_finished(100, [(100 + 2 * i + 1, 100 + 2 * i + 2) for i in range(5_000)])
    assert few.startswith("headrace:1:r:")
    assert len(few) < 30
    assert many.startswith("headrace:1:b:")


def test_far_apart_intervals_fit_as_runs_where_bits_would_not() -> None:
    intervals = [(i * 1_000_000 + 1, i * 1_000_000 + 2) for i in range(500)]
    note, is_whole = encode_finished(0, intervals)
    assert is_whole
    assert decode_finished(0, note) == intervals


@pytest.mark.parametrize(
    "note", ["somebody else's", "headrace:1:r:!!", "headrace:2:r:AAAA", "headrace:1:x:AAAA", "headrace:1:r:"]
)
def test_a_note_of_somebody_else_is_not_read(note: str) -> None:
    assert decode_finished(0, note) is None


def test_a_note_of_another_commit_is_not_read() -> None:
    note, _ = encode_finished(100, [(105, 110)])
    assert decode_finished(100, note) == [(105, 110)]
    assert decode_finished(90, note) is None


def test_no_note_is_nothing_finished() -> None:
    assert decode_finished(5, "") == []
    assert encode_finished(5, []) == ("", True)
