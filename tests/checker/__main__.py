"""`python -m tests.checker --minutes 30`: check a broker's promises under faults. Exit code 1 when one is broken."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.switching import switch_as_told

from .run import Run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checker", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=None, help="of the faults; the clients' timing is their own")
    parser.add_argument("--keep", type=Path, default=None, help="a directory for histories and logs, kept afterwards")
    options = parser.parse_args()
    switch_as_told()
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="checker-") as temporary:
        directory = options.keep or Path(temporary)
        say(f"seed {seed}, {options.minutes} minutes")
        report = Run(directory, seed, say).go(options.minutes * 60)
    print("\n".join(report.lines()))
    return 1 if report.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
