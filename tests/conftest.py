"""For every test: the named few that get a second try, and the lists at a run's end."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from tests.switching import VARIABLE, switch_as_told

# Before anything of Headrace is imported, and for the processes that tests start: whoever changes a log without being
# its writer is refused.
os.environ["HEADRACE_CHECK_OWNERS"] = "1"

# Tests that are known to fail now and then, with the reason as far as it is known. Each gets one second try, and is
# listed with its first failure. A test is put here only with somebody who looks for the cause; the list may not grow.
QUARANTINED: dict[str, str] = {}
QUARANTINED_MAX = 0

HERE = Path(__file__).parent
# The files that take longest by what `--durations` says, of which some have few tests that are slow: begun first.
LONGEST_FILES = (
    "spark/test_readme.py",
    "checker/test_run.py",
    "compat/test_transactions.py",
    "compat/test_older_clients.py",
    "compat/test_cluster_recordings.py",
    "client/test_faults.py",
    "parallel/test_simulation.py",
    "log/test_interleaved.py",
    "secured/test_spark.py",
    "compat/test_cluster_transactions.py",
    "compat/test_java_clients.py",
    "broker/test_scale.py",
    "testing/test_pytest_plugin.py",
    "broker/test_several_processes.py",
    "broker/test_crash.py",
    # Of the quick ones.
    "simulation/test_former_coordinators.py",
    "log/test_golden.py",
    "records/test_walk.py",
    "broker/test_recordings.py",
    "protocol/test_against_kio.py",
    "parallel/test_turns.py",
    "broker/test_several.py",
    "runtime/test_simulated_disk.py",
    "testing/test_proxy.py",
    "test_range_users.py",
)

# Every Java that a test starts for Spark, in whatever process, lives for a minute: its second compiler takes a third of
# all its processor time then, for code that is hardly run. (Six short queries: 23 s instead of 37.)
os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -XX:TieredStopAtLevel=1".strip()


def pytest_configure() -> None:
    switch_as_told()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported, nor look at those again afterwards: that takes half of the time.

    They and the tests are 700,000 objects, which every full collection of every test would step through.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def often_switching(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads change places five hundred times as often as they do by themselves, also in processes of the test."""
    before = sys.getswitchinterval()
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # so that it is as before afterwards
    monkeypatch.setenv(VARIABLE, "1e-5")
    switch_as_told()
    yield
    sys.setswitchinterval(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    assert len(QUARANTINED) <= QUARANTINED_MAX, "a test that needs a second try is a defect: mend it, do not list it"
    for item in items:
        if item.nodeid in QUARANTINED:
            item.add_marker(pytest.mark.flaky(reruns=1))
    begin_with_slow_files(items)


def begin_with_slow_files(items: list[pytest.Item]) -> None:
    """A worker takes a file at a time: one that takes minutes, begun last, would keep the others waiting."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    first = {HERE / name: rank for rank, name in enumerate(LONGEST_FILES)}
    assert all(path.exists() for path in first), "a file that was moved would begin last"
    items.sort(key=lambda item: (first.get(item.path, len(first)), -slow[item.path]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tried_twice = terminalreporter.stats.get("rerun", [])
    if tried_twice:
        terminalreporter.section("failed at the first try")
    for report in tried_twice:
        terminalreporter.write_line(f"{report.nodeid}\n{report.longreprtext}\n")
    list_skipped(terminalreporter)


def list_skipped(terminalreporter: pytest.TerminalReporter) -> None:
    skipped: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        _, _, reason = report.longrepr
        skipped[reason.removeprefix("Skipped: ")].append(report.nodeid.split("::")[0])
    if not skipped:
        return
    terminalreporter.section("skipped, by reason")
    for reason, files in sorted(skipped.items(), key=lambda item: -len(item[1])):
        terminalreporter.write_line(f"{len(files):5}  {reason}")
        for file in sorted(set(files)):
            terminalreporter.write_line(f"         {file} ({files.count(file)})")
