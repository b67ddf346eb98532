"""The order of steps that makes a batch happen once, against a model of a log with transactions.

The model forgets nothing and cannot lie: after any schedule of failures, crashes and replays, every batch must be
visible exactly once, whole, in order.
"""

from __future__ import annotations

import random

import pytest

from headrace.client.errors import ProducerFencedError, TransactionOutcomeUnknownError
from headrace.client.transactions import ProducerIdentity
from headrace.errors import HeadraceError
from headrace.spark.once import (
    BatchOutcome,
    BatchTooSlowError,
    ExactlyOnceError,
    MarkerFinding,
    QueryStoppedError,
    TakenOverError,
    WriteFailedError,
    run_batch,
)


class CrashError(Exception):
    """The driver is gone."""


class Model:
    """A cluster: epochs, one open transaction per id, and what is committed."""

    def __init__(self) -> None:
        self.epoch = -1
        self.open: list[object] | None = None
        self.committed: list[int] = []
        self.marker: tuple[int, object] | None = None
        self.calls: list[str] = []


class ModelSteps:
    """The steps against the model. `trouble(step)` may raise, before or after the step has its effect."""

    def __init__(self, model: Model, batch_id: int, rows: list[int], trouble) -> None:  # type: ignore[no-untyped-def]
        self.model, self.batch_id, self.rows, self.trouble = model, batch_id, rows, trouble
        self.stopped = False
        # Kept in the marker, so that nobody else is ever taken for this run (an id is given again).
        self.run = object()

    def _step(self, name: str, identity: ProducerIdentity | None, effect) -> None:  # type: ignore[no-untyped-def]
        self.model.calls.append(name)
        self.trouble(f"before {name}")
        if identity is not None and identity.epoch != self.model.epoch:
            raise ProducerFencedError(f"epoch {identity.epoch} is over")
        effect()
        self.trouble(f"after {name}")

    def fence(self) -> ProducerIdentity:
        def effect() -> None:
            self.model.epoch += 1
            self.model.open = None

        self._step("fence", None, effect)
        return ProducerIdentity(1, self.model.epoch)

    def look(self) -> MarkerFinding:
        self._step("look", None, lambda: None)
        if self.model.marker is None or self.model.marker[0] < self.batch_id:
            return MarkerFinding.NOTHING
        return MarkerFinding.OURS if self.model.marker == (self.batch_id, self.run) else MarkerFinding.BEFORE

    def is_stopped(self) -> bool:
        return self.stopped

    def enlist(self, identity: ProducerIdentity) -> None:
        def effect() -> None:
            self.model.open = []

        self._step("enlist", identity, effect)

    def write(self, identity: ProducerIdentity) -> None:
        def effect() -> None:
            assert self.model.open is not None
            self.model.open.extend(self.rows)

        self._step("write", identity, effect)

    def mark(self, identity: ProducerIdentity) -> None:
        def effect() -> None:
            assert self.model.open is not None
            self.model.open.append(("marker", self.batch_id, self.run))

        self._step("mark", identity, effect)

    def commit(self, identity: ProducerIdentity) -> None:
        def effect() -> None:
            for row in self.model.open or ():
                if isinstance(row, tuple):
                    self.model.marker = row[1:]
                else:
                    self.model.committed.append(row)  # type: ignore[arg-type]  # rows are numbers
            self.model.open = None

        self._step("commit", identity, effect)


def quiet(step: str) -> None:
    return None


def run(steps: ModelSteps, batch_id: int, attempts: int = 4, clock=lambda: 0.0) -> BatchOutcome:  # type: ignore[no-untyped-def]
    return run_batch(steps, batch_id, attempts_max=attempts, timeout_ms=1000, monotonic=clock)


def test_the_steps_come_in_this_order() -> None:
    model = Model()
    assert run(ModelSteps(model, 0, [1, 2], quiet), 0) is BatchOutcome.COMMITTED
    assert model.calls == ["fence", "look", "enlist", "write", "mark", "commit"]
    assert model.committed == [1, 2]


def test_a_batch_that_is_committed_is_skipped_after_fencing() -> None:
    model = Model()
    run(ModelSteps(model, 5, [1], quiet), 5)
    model.calls.clear()
    assert run(ModelSteps(model, 5, [1], quiet), 5) is BatchOutcome.SKIPPED
    assert run(ModelSteps(model, 4, [0], quiet), 4) is BatchOutcome.SKIPPED
    assert model.calls == ["fence", "look"] * 2
    assert model.committed == [1]


def test_a_lost_answer_to_the_commit_is_no_second_batch() -> None:
    model = Model()
    left = [TransactionOutcomeUnknownError("no answer")]

    def trouble(step: str) -> None:
        if step == "after commit" and left:
            raise left.pop()

    assert run(ModelSteps(model, 0, [1], trouble), 0) is BatchOutcome.COMMITTED
    assert model.committed == [1]


def test_a_commit_whose_answer_is_lost_every_time_is_not_said_to_be_nothing() -> None:
    model = Model()

    def trouble(step: str) -> None:
        if step == "after commit":
            raise TransactionOutcomeUnknownError("no answer in 60 s")

    assert run(ModelSteps(model, 0, [1], trouble), 0, attempts=1) is BatchOutcome.COMMITTED
    assert model.committed == [1]


def test_what_cannot_be_found_out_is_not_said() -> None:
    model = Model()
    silent = [False]

    def trouble(step: str) -> None:
        if silent[0] and "fence" in step:
            raise HeadraceError("no coordinator")
        if step == "after commit":
            silent[0] = True
            raise TransactionOutcomeUnknownError("no answer")

    with pytest.raises(ExactlyOnceError, match="whether it was written is not known"):
        run(ModelSteps(model, 0, [1], trouble), 0, attempts=1)
    silent[0] = False

    def fails(step: str) -> None:
        if silent[0] and "fence" in step:
            raise HeadraceError("no coordinator")
        if step == "after write":
            silent[0] = True
            raise WriteFailedError("the disk is full")

    with pytest.raises(ExactlyOnceError, match=r"nothing of it was committed.*the disk is full"):
        run(ModelSteps(model, 1, [2], fails), 1, attempts=1)
    assert model.committed == [1]


def test_a_take_over_behind_a_commit_says_that_the_batch_is_in() -> None:
    model = Model()

    def trouble(step: str) -> None:
        if step == "after commit":
            model.epoch += 1
            raise ProducerFencedError("epoch 0 is over")

    clock = iter([0.0, 5.0, 0.0, 5.0])
    with pytest.raises(TakenOverError, match="batch 0 is committed"):
        run(ModelSteps(model, 0, [1], trouble), 0, clock=lambda: next(clock))

    def aborted(step: str) -> None:
        if step == "before commit":
            model.epoch += 1

    # The commit came too late: that is looked up, not guessed.
    with pytest.raises(BatchTooSlowError):
        run(ModelSteps(model, 1, [2], aborted), 1, clock=lambda: next(clock))
    assert model.committed == [1]


def test_a_query_that_is_stopped_does_not_begin_its_batch_again() -> None:
    model = Model()
    steps = ModelSteps(model, 0, [1], quiet)

    def cancelled(step: str) -> None:
        if step == "after write":
            steps.stopped = True
            raise WriteFailedError("job 3 was cancelled")

    steps.trouble = cancelled
    with pytest.raises(QueryStoppedError, match="nothing of it was written"):
        run(steps, 0)
    assert model.calls.count("write") == 1
    assert (model.open, model.committed) == (None, [])


def test_the_first_cause_is_carried_and_what_is_open_is_released() -> None:
    model = Model()
    causes = iter(["the disk is full", "attempt 1: an earlier one failed", "again", "and again"])

    def trouble(step: str) -> None:
        if step == "after write":
            raise WriteFailedError(next(causes))

    steps = ModelSteps(model, 3, [1], trouble)
    with pytest.raises(ExactlyOnceError, match=r"failed 4 times.*the disk is full"):
        run(steps, 3)
    assert model.open is None
    assert model.committed == []


def test_another_run_that_takes_over_is_not_fenced_back() -> None:
    model = Model()

    def trouble(step: str) -> None:
        if step == "before mark":
            model.epoch += 1

    with pytest.raises(TakenOverError, match="only one may run"):
        run(ModelSteps(model, 0, [1], trouble), 0)
    assert model.calls.count("fence") == 1


def test_a_batch_longer_than_the_time_out_says_what_to_do() -> None:
    model = Model()
    now = [0.0]

    def trouble(step: str) -> None:
        if step == "after write":
            now[0] += 2
            model.epoch += 1

    with pytest.raises(BatchTooSlowError, match="maxOffsetsPerTrigger"):
        run(ModelSteps(model, 0, [1], trouble), 0, clock=lambda: now[0])


@pytest.mark.parametrize("seed", range(200))
def test_every_batch_is_there_once_whatever_fails_and_whenever_the_driver_dies(seed: int) -> None:
    rng = random.Random(seed)
    model = Model()
    expected: list[int] = []
    failures: list[type[Exception]] = [WriteFailedError, TransactionOutcomeUnknownError, CrashError]

    def trouble(step: str) -> None:
        if rng.random() < 0.08:
            kind = rng.choice(failures)
            if kind is TransactionOutcomeUnknownError and "commit" not in step:
                kind = WriteFailedError
            if kind is WriteFailedError and step.split()[1] in ("fence", "look"):
                kind = CrashError
            raise kind("injected")

    for batch_id in range(6):
        # Spark replays a batch with the same rows, in whatever order.
        rows = [batch_id * 10 + row for row in range(3)]
        for _ in range(100):
            shuffled = rng.sample(rows, len(rows))
            try:
                run(ModelSteps(model, batch_id, shuffled, trouble), batch_id)
                break
            except (CrashError, HeadraceError):
                continue
        expected += rows
        assert sorted(model.committed) == expected
    assert model.marker is not None
    assert model.marker[0] == 5
