"""Numbers in sentences for people: shared by all that prints some."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_NAMES_SHOWN = 3


def some(names: Sequence[str]) -> str:
    """A few of them, and how many more there are."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def plural(number: int, noun: str) -> str:
    """1 record, 12,345 records; 1 micro-batch, 2 micro-batches."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{number:,} {noun}{ending}"


def did_you_mean(name: str, there: Iterable[str]) -> str:
    """`; did you mean events?`, for the end of a sentence about a name; empty when no other is near."""
    near = difflib.get_close_matches(name, [other for other in there if other != name], 1)
    return f"; did you mean {near[0]}?" if near else ""


# All that a terminal or a reader of lines takes for more than a character: C0 and C1, line and paragraph separators,
# what changes the direction of text, and halves of surrogate pairs.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSEEN_IN_LINES = re.compile(_UNSEEN.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def visible(text: str, *, lines: bool = False) -> str:
    """Text of others as it may be shown: nothing in it moves a cursor, begins a line or hides anything.

    With `lines`, line breaks and tabs are left as they are.
    """
    return (_UNSEEN_IN_LINES if lines else _UNSEEN).sub(_escape, text)


def visible_json(text: str) -> str:
    """JSON that says the same, in which what terminals would act upon is escaped."""
    return _UNSEEN_IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
