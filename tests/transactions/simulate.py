"""Runs the simulation with many seeds: `python -m tests.transactions.simulate [seeds [first]]`."""

from __future__ import annotations

import sys

from .simulation import simulate


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    totals: dict[str, int] = {}
    for seed in range(first, first + seeds):
        for what, count in simulate(seed).counts.items():
            totals[what] = totals.get(what, 0) + count
    print(f"{seeds} seeds hold.", ", ".join(f"{count} {what}" for what, count in sorted(totals.items())))


if __name__ == "__main__":
    main()
