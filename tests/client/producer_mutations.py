"""Faults put into the producer one by one: within how many seeds does the model find each?

    python -m tests.client.producer_mutations 300

A model that cannot fail proves nothing. Most of these were in the producer once.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from headrace.client.producer._accumulator import Accumulator
from headrace.client.producer._batch import ProducerBatch
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._identity import IdentityKeeper
from headrace.client.producer._loop_sender import LoopSender
from headrace.client.transactions import exactly_once
from headrace.client.transactions._core import TransactionCore
from headrace.errors import ErrorCode

from .producer_model import kinds


def renumber_what_is_open() -> Any:
    """A batch is given up, and those behind it get new numbers, although they may have been written."""

    def settle(self: IdentityKeeper, queue: Any) -> None:
        if not queue.in_flight and self.identity.is_known:
            self.identity.bump()
            queue.sequences.restart(self.identity)
            self._unsettled.pop((queue.topic, queue.partition))

    return patch.object(IdentityKeeper, "_settle", settle)


def forget_doubts() -> Any:
    """What lies unread before a broker is taken for not written when a later attempt is out of order."""
    worth = ProducerCore._is_worth_retrying

    def certain(self: ProducerCore, batch: ProducerBatch, *rest: Any) -> bool:
        batch.doubt_until = 0.0
        return worth(self, batch, *rest)

    return patch.object(ProducerCore, "_is_worth_retrying", certain)


def split_what_may_be_written() -> Any:
    failed = ProducerCore._failed_attempt

    def attempt(self: ProducerCore, batch: ProducerBatch, error: Any, *rest: Any, **more: Any) -> None:
        if getattr(error, "code", None) == ErrorCode.MESSAGE_TOO_LARGE:
            batch.doubt_until = 0.0
        failed(self, batch, error, *rest, **more)

    return patch.object(ProducerCore, "_failed_attempt", attempt)


def lose_numbers_of_what_cannot_be_encoded() -> Any:
    cannot = ProducerCore._cannot_encode

    def lose(self: ProducerCore, queue: Any, batch: ProducerBatch, error: Exception) -> None:
        queue.sequences.next += batch.count
        queue.sequences.assigned.append(batch)
        cannot(self, queue, batch, error)

    return patch.object(ProducerCore, "_cannot_encode", lose)


def flush_without_what_is_held() -> Any:
    hold = Accumulator._hold

    def forget(self: Accumulator, *rest: Any) -> None:
        hold(self, *rest)
        for waiting in self.held.values():
            for entry in waiting:
                entry.flushes = _Deaf()

    return patch.object(Accumulator, "_hold", forget)


def forget_partitions_under_the_same_epoch() -> Any:
    """A partition that is used again begins at 0, where a broker knows its first numbers."""

    def forget(self: IdentityKeeper) -> None:
        for key in self.accumulator.unused_queues().keys() - self._unsettled.keys():
            del self.accumulator.queues[key]

    return patch.object(IdentityKeeper, "forget_unused", forget)


class _Deaf(list[Any]):
    def __contains__(self, _: object) -> bool:
        return True


def take_late_records() -> Any:
    """What is sent after commit_transaction() goes with the transaction."""

    def drain(self: ProducerCore, now: float, now_ms: int, created: float) -> None:
        self.accumulator.drain(now, now_ms, created)

    return patch.object(ProducerCore, "_drain", drain)


def believe_a_refusal_after_a_lost_answer() -> Any:
    return patch.object(TransactionCore, "_doubt", lambda self, step: None)


def rewind_before_the_outcome_is_known() -> Any:
    outcome = exactly_once._Batch.outcome
    return patch.object(exactly_once._Batch, "outcome", lambda self: outcome(self) or False)


def read_on_before_the_outcome_is_known() -> Any:
    outcome = exactly_once._Batch.outcome
    return patch.object(exactly_once._Batch, "outcome", lambda self: outcome(self) is not False)


def forget_to_rewind() -> Any:
    return patch.object(exactly_once, "_rewind", lambda consumer, starts: None)


def close_without_telling() -> Any:
    return patch.object(LoopSender, "tell_waiters", lambda self: None)


MUTATIONS: dict[Callable[[], Any], tuple[str, ...]] = {
    renumber_what_is_open: ("idempotent",),
    forget_doubts: ("idempotent",),
    split_what_may_be_written: ("idempotent",),
    lose_numbers_of_what_cannot_be_encoded: ("idempotent",),
    forget_partitions_under_the_same_epoch: ("idempotent",),
    flush_without_what_is_held: ("plain",),
    take_late_records: ("transactional",),
    believe_a_refusal_after_a_lost_answer: ("transactional",),
    rewind_before_the_outcome_is_known: ("once", "once_asyncio"),
    read_on_before_the_outcome_is_known: ("once",),
    forget_to_rewind: ("once", "once_asyncio"),
    close_without_telling: ("asyncio",),
}


def found_within(mutation: Callable[[], Any], kind: str, seeds: int) -> int | None:
    """How many seeds it takes; None when that many are not enough."""
    run = kinds()[kind]
    with mutation():
        for seed in range(seeds):
            try:
                run(seed)
            except Exception:  # noqa: BLE001 - whatever it is, it was found
                return seed + 1
    return None


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int)
    seeds = parser.parse_args().seeds
    with silenced():
        for mutation, names in MUTATIONS.items():
            for kind in names:
                found = found_within(mutation, kind, seeds)
                how = f"found within {found} seeds" if found else f"NOT found within {seeds} seeds"
                print(f"{mutation.__name__} ({kind}): {how}", flush=True)


if __name__ == "__main__":
    main()
