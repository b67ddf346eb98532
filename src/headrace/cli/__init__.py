"""Who looks? The command `headrace`: brokers, topics, records, groups and logs from a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. `start` is taken first: a broker needs none of what draws tables, and starts the sooner."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["start"]:
        from headrace.cli.start import start

        sys.exit(start(given[1:]))
    from headrace.cli.app import run

    sys.exit(run(given))
