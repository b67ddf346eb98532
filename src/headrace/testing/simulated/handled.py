"""What parallel consumers promise: every record is finished, in the order that was asked for; no commit passes one that
is not; and what failed too often, and nothing else, is among the dead letters, once where that is transactional."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from headrace.parallel.finished import decode_finished
from headrace.parallel.options import Order
from headrace.testing.simulated.history import BrokenError, Handled, ParallelCommit, Piece
from headrace.testing.simulated.variants import (
    DEAD_LETTERS,
    KEYED,
    LATER_S,
    PARALLEL_GROUP,
    RETRIES,
    ParallelVariant,
    RecordKind,
    kind_of,
    wait_s,
)
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from headrace.testing.simulated.checks import Contents

Found = Mapping[TopicPartition, "Contents"]

_NEVER = 1 << 62


class _Ends:
    """When the last of the records before an offset was finished for the first time."""

    def __init__(self, ends: list[tuple[int, int]]) -> None:
        self._offsets = [offset for offset, _ in ends]
        self._latest = list(accumulate((tick for _, tick in ends), max, initial=0))

    def before(self, offset: int) -> int:
        return self._latest[bisect_left(self._offsets, offset)]


def not_handled(handled: Handled, found: Found) -> str | None:
    """A record that no parallel consumer has finished; None when all are. Raises what was seen at once to be wrong."""
    for text in handled.broken:
        raise BrokenError(text)
    for partition, held in found.items():
        if partition.topic == KEYED:
            for offset, (value, _) in held.rows.items():
                if (value, 0) not in handled.ends:
                    return f"{partition}: {value!r} at {offset} was finished by no parallel consumer"
    for value, rounds in handled.awaited:
        if (value, rounds) not in handled.ends:
            return f"{value!r} came to the retry topic (round {rounds}) and was finished there by no parallel consumer"
    return None


def not_committed(found: Found, committed: Iterable[ParallelCommit]) -> str | None:
    """A record that is finished, as all are, and that the group has not committed; None when it has all."""
    offsets = {commit.partition: commit.offset for commit in committed}
    for partition, held in found.items():
        last = max((offset for offset, _ in _committed(held)), default=-1)
        if partition.topic in (KEYED, RETRIES) and offsets.get(partition, 0) <= last:
            return f"{partition}: {PARALLEL_GROUP} has committed {offsets.get(partition)}, though {last} is finished"
    return None


def settle(handled: Handled, found: Found) -> None:
    """Letters of which nobody knows whether they were committed: those that are in the log are."""
    there = {(partition.topic, piece) for partition, held in found.items() for _, piece in _committed(held)}
    for letter, tick in list(handled.doubtful.items()):
        if (letter.topic, letter.there) in there:
            del handled.doubtful[letter]
            handled.arrived(letter, tick, is_retry=letter.topic == RETRIES)


def check_handled(
    handled: Handled, found: Found, variant: ParallelVariant, committed: Iterable[ParallelCommit] = ()
) -> None:
    """Raise for a record that was begun too early, a commit that passed one, or a letter that should not be there.

    `committed` is what the group has in the end: it may pass nothing that is neither handled nor in the log.
    """
    for text in handled.broken:
        raise BrokenError(text)
    _check_order(handled, found, variant.order)
    rows = {
        partition: sorted(_committed(held)) for partition, held in found.items() if partition.topic in (KEYED, RETRIES)
    }
    for commit in (*handled.commits, *committed):
        _check_commit(handled, commit, rows.get(commit.partition, []))
    _check_letters(handled, found, variant)
    _check_sent(handled, found, variant)


def _committed(held: Contents) -> Iterable[tuple[int, Piece]]:
    """What may be read of a partition: by offset the value, and the rounds it has made."""
    for offset, (value, _) in held.rows.items():
        if offset not in held.aborted and offset not in held.undecided:
            yield offset, (value, held.rounds.get(offset, 0))


def _check_order(handled: Handled, found: Found, order: Order) -> None:
    """Of the topic itself: what comes back from the retry topic has left its place."""
    if order is Order.NONE:
        return
    of_lane: dict[tuple[TopicPartition, str], list[tuple[int, int]]] = {}
    for partition, held in found.items():
        if partition.topic == KEYED:
            for offset, (value, _) in sorted(held.rows.items()):
                end = offset, handled.ends.get((value, 0), _NEVER)
                of_lane.setdefault((partition, _lane(value, order)), []).append(end)
    by_lane = {lane: _Ends(ends) for lane, ends in of_lane.items()}
    for partition, offset, value, tick in handled.begins:
        if partition.topic == KEYED:
            ends = by_lane.get((partition, _lane(value, order)))
            if ends is None or ends.before(offset) > tick:
                raise BrokenError(
                    f"{partition}: {value!r} at {offset} was begun before an earlier one of its {order.value} was done"
                )


def _lane(value: str, order: Order) -> str:
    return value.split(":")[2] if order is Order.KEY else ""


def _check_commit(handled: Handled, commit: ParallelCommit, rows: list[tuple[int, Piece]]) -> None:
    """It passes, and has in its note, only what was finished when it was asked for, or left with it."""
    noted = decode_finished(commit.offset, commit.note)
    if noted is None:
        raise BrokenError(f"{commit.partition}: the note of a commit of {commit.offset} cannot be read")
    for offset, piece in rows:
        if offset >= commit.offset and not any(first <= offset < last for first, last in noted):
            continue
        if handled.ends.get(piece, _NEVER) > commit.tick and piece not in commit.along:
            raise BrokenError(
                f"{commit.partition}: a commit of {commit.offset} passed a record that was not finished, at {offset}"
            )


def _check_letters(handled: Handled, found: Found, variant: ParallelVariant) -> None:
    """What is among the retries and the dead letters failed as often as it takes; in transactions, it is there once."""
    seen: dict[Piece, str] = {}
    for partition, held in found.items():
        if partition.topic not in (RETRIES, DEAD_LETTERS):
            continue
        for offset, (value, rounds) in _committed(held):
            is_dead = partition.topic == DEAD_LETTERS
            of = (value, rounds if is_dead else rounds - 1)
            where = f"{partition} at {offset}: {value!r}"
            if not _may_leave(handled, variant, of, is_dead=is_dead):
                times = handled.failures.get(of, 0)
                raise BrokenError(f"{where} left round {of[1]} after it had failed {times} times")
            if variant.is_transactional and of in seen:
                raise BrokenError(f"{where} was sent on from round {of[1]} twice, also as {seen[of]}")
            seen[of] = where


def _check_sent(handled: Handled, found: Found, variant: ParallelVariant) -> None:
    """Letters were sent as they should be, and those of which anybody heard that they came are there."""
    for letter in handled.letters:
        value, rounds = letter.of
        what = f"the letter of {value!r} to {letter.topic}"
        if letter.key != value.split(":")[2]:
            raise BrokenError(f"{what} was sent with the key {letter.key!r}")
        partition, offset = letter.origin or (TopicPartition("", -1), -1)
        held = found.get(partition)
        if held is None or partition.topic != KEYED or held.rows.get(offset, ("",))[0] != value:
            raise BrokenError(f"{what} says that the record was at {offset} of {partition}")
        if letter.topic == RETRIES:
            waits_ms = {round(wait_s(variant.retry.topic_backoff_s, rounds + 1) * 1000)}
            if kind_of(value, variant) is RecordKind.LATER and rounds == 0:
                waits_ms.add(round(LATER_S * 1000))
            if letter.wait_ms not in waits_ms:
                raise BrokenError(f"{what} is due after {letter.wait_ms} ms, not after {sorted(waits_ms)}")
    there = {(partition.topic, piece) for partition, held in found.items() for _, piece in _committed(held)}
    for letter in handled.delivered:
        if (letter.topic, letter.there) not in there:
            raise BrokenError(f"the letter of {letter.of[0]!r} came to {letter.topic}, and is not there")


def _may_leave(handled: Handled, variant: ParallelVariant, piece: Piece, *, is_dead: bool) -> bool:
    value, rounds = piece
    kind = kind_of(value, variant)
    failures = handled.failures.get(piece, 0)
    if kind is RecordKind.REFUSED and is_dead:
        return failures > 0
    if is_dead != (rounds == variant.last_round) or not 0 <= rounds <= variant.last_round:
        return False
    return failures >= (1 if kind is RecordKind.LATER and rounds == 0 else variant.tries)
