"""The checker's short forms: under a minute of faults, and no anomaly."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cluster import ROLLING_ERROR, ClusterRun
from .history import Kind, Outcome
from .run import Run


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("often_switching")
def test_twenty_seconds_of_faults_break_no_promise_while_threads_switch_often(tmp_path: Path) -> None:
    report = Run(tmp_path, seed=20_262).go(20)
    text = "\n".join(report.lines())
    assert not report.anomalies, text
    assert sum(one.kind is Kind.TRANSACTION and one.outcome is Outcome.OK for one in report.operations) > 5, text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_forty_seconds_of_faults_break_no_promise(tmp_path: Path) -> None:
    report = Run(tmp_path, seed=20_261).go(40)
    text = "\n".join(report.lines())
    assert not report.anomalies, text
    for kind in (Kind.SEND, Kind.TRANSACTION, Kind.POLL):
        assert sum(one.kind is kind and one.outcome is Outcome.OK for one in report.operations) > 20, text
    assert any(one.kind is Kind.TRANSACTION and one.outcome is Outcome.FAIL for one in report.operations), text
    assert any(one.kind is Kind.TRANSACTION and one.reads for one in report.operations), text
    assert any(one.kind is Kind.MOVE for one in report.operations), text
    assert len(report.faults) >= 3, text


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_three_brokers_keep_their_promises_through_a_rolling_restart_and_thirty_seconds_of_faults(
    tmp_path: Path,
) -> None:
    report = ClusterRun(tmp_path, seed=20_263).go(30)
    text = "\n".join(report.lines())
    # Clients' sessions and transactions are short here, so that a machine with much else to do lets some time out: the
    # command counts that, this test does not.
    assert not [one for one in report.anomalies if one.name != ROLLING_ERROR], text
    for kind in (Kind.SEND, Kind.TRANSACTION, Kind.POLL, Kind.OFFSETS):
        assert sum(one.kind is kind and one.outcome is Outcome.OK for one in report.operations) > 20, text
    assert any(one.kind is Kind.MOVE for one in report.operations), text
    assert len(report.faults) >= 3, text
