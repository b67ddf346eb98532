"""For every test: where Apache Kafka's jars are, and at the end of a run the list of what was skipped, by reason."""

from __future__ import annotations

import os
from collections import defaultdict

import pytest
from bench import peers

if "HEADRACE_KAFKA_LIBS" not in os.environ and (libs := peers.kafka_libs()) is not None:
    os.environ["HEADRACE_KAFKA_LIBS"] = str(libs)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
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
