"""Who looks? The command `headrace`: brokers, topics, records, groups and logs from a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. `start` is taken first: a broker needs none of what draws tables, and starts the sooner."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["start"]:
        try:
            from headrace.cli.start import start

            sys.exit(start(given[1:]))
        except KeyboardInterrupt:  # before the broker listens to signals: nothing was begun
            sys.exit(130)
    from headrace.cli.app import run

    sys.exit(run(given))
