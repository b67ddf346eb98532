"""`headrace demo`: Headrace seen once, in ten seconds; with --spark, in a minute and a half."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.console_beside import check_installed
from headrace.cli.options import plain_kernels
from headrace.cli.output import usage

_WIDTH_MAX = 96
_SHOW_EVENTS = 1_000_000


def command(
    events: Annotated[
        int | None, typer.Option("--events", min=1000, max=5_000_000, help="How many to produce [100000; 1000000].")
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="The long one: three brokers, Spark, exactly once, through kill -9.")
    ] = False,
    stay: Annotated[
        bool, typer.Option("--stay", help="With --spark: leave it running at the end, and show it in the browser.")
    ] = False,
) -> None:
    """See it all once: a broker, a topic, a producer, a group, a crash."""
    from headrace.demo.short import EVENTS, ShortDemo

    console = Console(highlight=False, soft_wrap=False)
    console.width = min(console.width, _WIDTH_MAX)
    if stay and not spark:
        raise usage("--stay goes with --spark")
    if stay:
        check_installed()
    if spark:
        from headrace.demo.show import Show, missing_for_spark

        missing = missing_for_spark()
        if missing is None:
            with tempfile.TemporaryDirectory(prefix="headrace-show-", ignore_cleanup_errors=True) as directory:
                Show(console, Path(directory), events or _SHOW_EVENTS, stays=stay).run()
            return
        console.print(f"{missing}\nSo here is the short tour, without Spark.\n", markup=False)
    events = events or EVENTS
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as directory, plain_kernels():
        ShortDemo(console, Path(directory), events).run()
