"""The checker's short forms: seconds of faults, and no anomaly. `python -m tests.checker` takes as long as told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .cluster import ROLLING_ERROR, ClusterRun
from .history import Kind, Operation, Outcome
from .run import Run

Enough = Callable[[list[Operation]], bool]


def done(*kinds: Kind, more_than: int) -> Enough:
    """So many of each kind have succeeded."""

    def enough(operations: list[Operation]) -> bool:
        return all(
            sum(one.kind is kind and one.outcome is Outcome.OK for one in operations) > more_than for kind in kinds
        )

    return enough


def everything_happened(operations: list[Operation]) -> bool:
    """What of the movers of records the short forms have to see, besides what succeeds anyway."""
    return any(one.kind is Kind.MOVE for one in operations) and any(
        one.kind is Kind.TRANSACTION and one.reads for one in operations
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("often_switching")
def test_seconds_of_faults_break_no_promise_while_threads_switch_often(tmp_path: Path) -> None:
    enough = done(Kind.TRANSACTION, more_than=5)
    report = Run(tmp_path, seed=20_262).go(10, enough=enough)
    text = "\n".join(report.lines())
    assert not report.anomalies, text
    assert enough(report.operations), text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_seconds_of_faults_break_no_promise(tmp_path: Path) -> None:
    run = Run(tmp_path, seed=20_261)
    enough = done(Kind.SEND, Kind.TRANSACTION, Kind.POLL, more_than=20)

    def some_failed(operations: list[Operation]) -> bool:
        return any(one.kind is Kind.TRANSACTION and one.outcome is Outcome.FAIL for one in operations)

    report = run.go(
        20,
        enough=lambda so_far: (
            enough(so_far) and everything_happened(so_far) and some_failed(so_far) and len(run.faults) >= 3
        ),
    )
    text = "\n".join(report.lines())
    assert not report.anomalies, text
    assert enough(report.operations), text
    assert everything_happened(report.operations), text
    assert some_failed(report.operations), text
    assert len(report.faults) >= 3, text


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_three_brokers_keep_their_promises_through_a_rolling_restart_and_seconds_of_faults(tmp_path: Path) -> None:
    enough = done(Kind.SEND, Kind.TRANSACTION, Kind.POLL, Kind.OFFSETS, more_than=20)
    cluster = ClusterRun(tmp_path, seed=20_263)

    def moved(operations: list[Operation]) -> bool:
        return any(one.kind is Kind.MOVE for one in operations)

    report = cluster.go(15, lambda so_far: enough(so_far) and moved(so_far) and len(cluster.faults) >= 3)
    text = "\n".join(report.lines())
    # Clients' sessions and transactions are short here, so that a machine with much else to do lets some time out: the
    # command counts that, this test does not.
    assert not [one for one in report.anomalies if one.name != ROLLING_ERROR], text
    assert enough(report.operations), text
    assert moved(report.operations), text
    assert len(report.faults) >= 3, text
