"""What `--watch` does: one screen, shown anew until Ctrl-C; without a terminal, one after the other."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from headrace.cli.output import usage

Screen = Callable[[], list[str]]


def check_watched(*, follow: bool, as_json: bool) -> None:
    """What never ends is no document for a program."""
    if follow and as_json:
        raise usage("--watch is for people and never ends: it cannot go with --json")


def watch_screen(screen: Screen, every_s: float) -> None:
    """Never returns. `screen` gives the lines that there are now."""
    if not sys.stdout.isatty():
        while True:
            print("\n".join([*screen(), ""]), flush=True)
            time.sleep(every_s)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), screen=False, auto_refresh=False) as live:
        while True:
            live.update(Text.from_ansi("\n".join(screen())), refresh=True)
            time.sleep(every_s)
