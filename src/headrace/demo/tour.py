"""How a tour is told: a title, steps with what was measured in them, and where to go on."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from headrace._version import __version__

_BARS = " ▁▂▃▄▅▆▇█"


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


def bars(values: list[float], width: int = 32, floor: int = 1) -> str:
    """A line of bars: the values, averaged into at most `width` of them; `floor` is the lowest bar."""
    if not values:
        return ""
    step = max(1, -(-len(values) // width))
    means = [sum(values[at : at + step]) / len(values[at : at + step]) for at in range(0, len(values), step)]
    top = max(means) or 1
    return "".join(_BARS[min(len(_BARS) - 1, max(floor, round(mean / top * (len(_BARS) - 1))))] for mean in means)
