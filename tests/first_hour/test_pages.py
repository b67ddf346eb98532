"""Pages whose examples belong together, pasted as the README is: docs/parallel.md and docs/transactions.md."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from tests.first_hour.test_readme import ROOT, Desk, desk

__all__ = ["desk"]

pytestmark = pytest.mark.slow


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


def test_consuming_in_parallel(desk: Desk) -> None:
    *_, printed = desk.paste("# Consuming in parallel", page("parallel.md"))
    assert "billed" in printed
    # The same handler by the command line, as the page has it; what the first run left is done by this one.
    (desk.directory / "app.py").write_text("def bill(record):\n    print('billed', record.value, flush=True)\n")
    desk.shell("    seq 1 10 | headrace produce orders\n")
    found = re.search(r"^headrace (parallel app:bill .*?)\n```", page("parallel.md"), re.S | re.M)
    assert found is not None
    # Without the live view, which is for terminals, and on a port that is free.
    line = found[1].replace("\\\n", " ").replace("--watch", "").replace("--metrics-port 9100", "--metrics-port 0")
    command = [sys.executable, "-m", "headrace.cli", *line.split()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=desk.environment, cwd=desk.directory
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("billed")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    for line in ("list orders.dead --json", "redrive orders.dead --all --dry-run"):
        desk.shell(f"    headrace deadletters {line}\n")


def test_transactions(desk: Desk) -> None:
    text = page("transactions.md")
    desk.shell("    headrace topic create orders\n    seq 1 10 | headrace produce orders\n")
    desk.paste("# Transactions", text)
    desk.paste("Consume, transform, produce: exactly once", text)
    read = "headrace consume invoices --isolation-level read_committed"
    assert desk.shell(f"    {read} | grep -c 'to pay'\n").strip() == "10"
