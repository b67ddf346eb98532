"""How a tour is told: a title, steps with what was measured in them, and where to go on."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from headrace._version import __version__


class Tour:
    """What the demo and the show share: how things are said. It takes the time from when it is made."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def _say(self, text: Text | str | Table) -> None:
        self._console.print(text)

    def _title(self, text: str) -> None:
        self._say(Text.assemble(("Headrace ", "bold"), f"{__version__}: {text}"))

    def _step(self, title: str) -> None:
        self._console.print()
        self._console.print(Rule(f"[bold]{title}[/bold]", align="left", style="blue"))

    def _farewell(self, lines: Sequence[tuple[str, str]]) -> None:
        """How long it took, and commands to go on with."""
        self._step("Your turn")
        self._say(f"That took {time.monotonic() - self._began:.0f} seconds, and left nothing behind. To go on:")
        shown = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 2))
        for line, what in lines:
            shown.add_row(Text(line, style="bold"), Text(what, style="dim"))
        self._say(shown)
