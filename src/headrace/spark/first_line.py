"""The line that counts, first: what Spark says of a failure are pages of stacks, with an error of ours inside."""

from __future__ import annotations

import re
from typing import Any

_OURS = re.compile(r"^\s*headrace(?:\.\w+)*\.(\w+): (.+)$", re.M)
# What Python's own classes say, of a mistake that was found in this package: the error behind its last frame.
_RAISED_HERE = re.compile(
    r"^  File \"[^\"\n]*headrace/spark/[^\n]*\n(?:    [^\n]*\n)*(ValueError|TypeError): (.+)$", re.M
)
_LINE_CHARS_MAX = 600


def line_that_counts(text: str) -> str | None:
    """The last error of ours in a text of Spark's; None where there is none, or where it stands first already."""
    found = _OURS.findall(text) or _RAISED_HERE.findall(text)
    if not found:
        return None
    kind, sentence = found[-1]
    line = f"{sentence[:_LINE_CHARS_MAX]} ({kind})"
    return None if text.startswith(line) else line


def _with_line(text: str) -> str:
    line = line_that_counts(text)
    return text if line is None else f"{line}\n\n{text}"


def install() -> None:
    """Let Spark's exceptions in this process begin with that line. PySpark makes them in one place."""
    from pyspark.errors.exceptions import captured

    place: Any = captured
    convert = place.convert_exception
    if getattr(convert, "puts_ours_first", False):
        return

    def convert_exception(error: Any) -> Any:
        converted = convert(error)
        said = getattr(converted, "_desc", None)
        if isinstance(said, str):
            converted._desc = _with_line(said)
        return converted

    # What a worker raised has words of its own, whatever its description is.
    of_worker = place.PythonException.__str__
    place.PythonException.__str__ = lambda self: _with_line(of_worker(self))

    convert_exception.puts_ours_first = True  # type: ignore[attr-defined]  # how it is known to be ours
    place.convert_exception = convert_exception
