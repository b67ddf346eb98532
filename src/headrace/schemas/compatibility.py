"""The seven levels of compatibility: who has to read whose records, of the newest version or of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.schemas.formats import ParsedSchema, Problem


class Level(StrEnum):
    """BACKWARD: the new schema reads old records. FORWARD: old schemas read new records. FULL: both."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Every earlier version counts, and not the newest alone."""
        return self.name.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        return self.name.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        return self.name.startswith(("FORWARD", "FULL"))


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and between which schemas it is."""

    kind: str
    path: str
    message: str
    version: int | None
    new_is_reader: bool

    def __str__(self) -> str:
        old = "an earlier schema" if self.version is None else f"version {self.version}"
        who = f"the new schema cannot read {old}" if self.new_is_reader else f"{old} cannot read the new schema"
        return f"{self.kind} at {self.path or '/'}: {self.message} ({who})"


def check(new: ParsedSchema, earlier: Sequence[tuple[int | None, ParsedSchema]], level: Level) -> list[Finding]:
    """What stands against a new schema at a level; `earlier` has the versions so far, oldest first."""
    findings: list[Finding] = []
    for version, old in reversed(earlier if level.is_transitive else earlier[-1:]):
        if level.new_reads_old:
            findings += _found(new, old, version, new_is_reader=True)
        if level.old_reads_new:
            findings += _found(old, new, version, new_is_reader=False)
        if findings:
            # The newest that it does not go with says enough.
            break
    return findings


def _found(reader: ParsedSchema, writer: ParsedSchema, version: int | None, *, new_is_reader: bool) -> list[Finding]:
    if type(reader) is not type(writer):
        return [Finding("SCHEMA_TYPE_MISMATCH", "", "the schemas are of different types", version, new_is_reader)]
    problems: list[Problem] = reader.problems_reading(writer)
    return [Finding(one.kind, one.path, one.message, version, new_is_reader) for one in problems]
