"""The one shape of `Problem` that all formats use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Why one schema cannot read what another wrote: what, where, and in words."""

    kind: str
    path: str
    message: str
