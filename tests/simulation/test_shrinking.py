"""The smallest plan that still fails, told and drawn: without a cluster, whose place a function takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.testing.simulated import runs
from headrace.testing.simulated.html import page
from headrace.testing.simulated.plans import Plan, plan_for
from headrace.testing.simulated.runs import RunResult, shrink
from headrace.testing.simulated.timeline import CLUSTER, Timeline

PLAN = plan_for(1, only=("kill", "pause", "cut"), always=("idempotent", "readers"))


def _play(fails: Callable[[Plan], bool]) -> Callable[[Plan], RunResult]:
    def play(plan: Plan) -> RunResult:
        timeline = Timeline(lambda: 1.0)
        timeline.add(CLUSTER, "leader", "numbered-0: broker 2 leads, epoch 0")
        timeline.committed("numbered-0", 3)
        return RunResult(plan, "BrokenError: <it>" if fails(plan) else None, "", 1, 2.0, timeline)

    return play


def test_everything_that_is_not_needed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(PLAN.troubles) > 3
    needed = PLAN.troubles[2]
    monkeypatch.setattr(runs, "play", _play(lambda plan: needed in plan.troubles))
    found = shrink(PLAN).plan
    assert found.troubles == (needed,)
    assert len(found.workloads) == 1
    assert found.partitions == found.records_max == 1


def test_a_smaller_plan_that_fails_in_another_way_is_not_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = PLAN.troubles[2]

    def play(plan: Plan) -> RunResult:
        lost = f"BrokenError: numbered-0: 'numbered-1:0000{len(plan.troubles)}' was acknowledged at 3 and is lost"
        failure = lost if needed in plan.troubles else "TimeoutError: it does not heal within 120 s"
        return RunResult(plan, failure, "", 1, 2.0, Timeline(lambda: 1.0))

    monkeypatch.setattr(runs, "play", play)
    found = shrink(PLAN)
    assert found.plan.troubles == (needed,)
    assert found.failure is not None
    assert "is lost" in found.failure


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (
            "BrokenError: numbered-0: 'numbered-1:00003' was acknowledged at 3 and is lost; the log is 5",
            "BrokenError: numbered-1: 'numbered-2:00013' was acknowledged at 9 and is lost; the log is 12",
            True,
        ),
        (
            "BrokenError: numbered-0: 'numbered-1:00003' was acknowledged at 3 and is lost; the log is 5",
            "BrokenError: numbered-0: 'numbered-1:00003' was acknowledged at 3, where 'numbered-2:00001' is",
            False,
        ),
        (
            "BrokenError: crowd-0: brokers [2] are fenced or stopping, and in sync (1, 2)",
            "BrokenError: crowd-1: brokers [3, 1] are fenced or stopping, and in sync (3, 1)",
            True,
        ),
        ("BrokenError: it does not heal within 120 s: x", "TimeoutError: it does not heal within 120 s: x", False),
    ],
)
def test_a_kind_of_failure_is_its_words_without_names_and_numbers(one: str, other: str, is_same: bool) -> None:
    assert (runs.kind_of(one) == runs.kind_of(other)) is is_same


def test_what_was_found_so_far_is_told_after_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Plan] = []

    def interrupt(plan: Plan) -> None:
        tries.append(plan)
        if len(tries) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(runs, "play", _play(lambda plan: True))
    found = shrink(PLAN, on_try=interrupt)
    assert found.failure is not None
    assert found.plan == tries[1]


def test_a_page_shows_leaders_watermarks_and_the_failure() -> None:
    drawn = page(_play(lambda plan: True)(PLAN))
    assert "BrokenError: &lt;it&gt;" in drawn
    assert "numbered-0: committed up to 3" in drawn
    assert "broker 2 leads" in drawn
