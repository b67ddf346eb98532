"""Moments and spans as a person writes them: 2026-01-31T12:00, 15m, P1DT2H, a number of milliseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from headrace.cli.output import usage

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SHORT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_ISO = re.compile(
    r"P(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)


def duration_ms(text: str) -> int:
    """`15m`, `1.5h`, `2d12h`, or ISO 8601 (`PT15M`, `P1DT2H`), in milliseconds."""
    compact = text.strip()
    if compact[:1] in ("P", "p"):
        match = _ISO.fullmatch(compact)
        if match and any(match.groupdict().values()):
            return int(sum(float(number) * _UNIT_MS[unit] for unit, number in match.groupdict().items() if number))
    parts = _SHORT.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise usage(f"{text!r} is no duration: write 15m, 1.5h, 2d12h or PT15M")
    return int(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))


def is_duration(text: str) -> bool:
    """Whether it looks like a span rather than a moment."""
    return bool(_SHORT.match(text)) or text[:1] in ("P", "p")


def moment_ms(text: str) -> int:
    """An ISO 8601 date or time (UTC unless it names a zone) in milliseconds since 1970."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise usage(f"{text!r} is no time: write 2026-01-31T12:00:00, with +01:00 for another zone than UTC") from None
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)
