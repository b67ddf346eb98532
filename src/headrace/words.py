"""Numbers in sentences for people: shared by all that prints some."""

from __future__ import annotations


def plural(number: int, noun: str) -> str:
    """1 record, 12,345 records; 1 micro-batch, 2 micro-batches."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{number:,} {noun}{ending}"
