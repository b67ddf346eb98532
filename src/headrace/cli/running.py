"""How a pipeline looks while it runs: a bar, and nothing of what Spark and Java write, which goes to a file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from headrace.cli.output import count, note
from headrace.spark.pipelines import PipelineProgress, Watch

_OUT, _ERR = 1, 2


@contextlib.contextmanager
def watched(name: str, log: Path) -> Iterator[Watch | None]:
    """What to call with each snapshot; None where nobody looks."""
    is_looked_at = sys.stderr.isatty()
    if is_looked_at:
        note(f"Spark's log is in {log}")
    with diverted(log) as screen:
        if not is_looked_at:
            yield None
            return
        with bar(name, screen) as watch:
            yield watch


@contextlib.contextmanager
def diverted(log: Path) -> Iterator[TextIO]:
    """What anybody in this process or a child of it writes goes to the file; gives what is the terminal's.

    By the descriptors, because the JVM and Spark's workers inherit those.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (_OUT, _ERR)}
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for number in kept:
            os.dup2(file, number)
        with os.fdopen(os.dup(kept[_ERR]), "w") as screen:
            yield screen
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in kept.items():
            os.dup2(original, number)
            os.close(original)
        os.close(file)


@contextlib.contextmanager
def bar(name: str, screen: TextIO) -> Iterator[Watch]:
    """Rows in and out, their rate, the lag."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=28),
        TextColumn("{task.fields[said]}", markup=False),
    )
    with Progress(*columns, TimeElapsedColumn(), console=Console(file=screen), transient=True) as progress:
        task = progress.add_task(name, total=None, said="starting")

        def watch(snapshot: PipelineProgress) -> None:
            progress.update(task, total=snapshot.total, completed=snapshot.rows_in, said=said(snapshot))

        yield watch


def said(snapshot: PipelineProgress) -> str:
    """A snapshot in a line."""
    if snapshot.note and not snapshot.rows_in:
        return snapshot.note
    parts = [f"in {count(snapshot.rows_in)}", f"out {count(snapshot.rows_out)}"]
    if snapshot.rate_per_s:
        parts.append(f"{count(round(snapshot.rate_per_s))}/s")
    if snapshot.lag is not None:
        parts.append(f"lag {count(snapshot.lag)}")
    if snapshot.note:
        parts.append(snapshot.note)
    return " · ".join(parts)
