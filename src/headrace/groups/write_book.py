"""What is being written of a group, and what could not be: see `headrace.groups.epochs.steps`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class WriteBook:
    """Goes along when a group becomes one of another kind: what could not be written of the old one still has to be."""

    steps: int = 0
    in_flight: dict[bytes, int] = field(default_factory=dict)  # key → the latest step that writes it
    unwritten: dict[bytes, bytes | None] = field(default_factory=dict)
