"""Times as users write them: 2026-01-31T12:00 (UTC unless it says otherwise), or milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.spark.pipelines.declaring import WrongOption


def moment_ms(text: str | None, what: str) -> int | None:
    """Milliseconds since 1970; None for None."""
    if text is None:
        return None
    if text.strip().isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise WrongOption(f"{what} is a time such as 2026-01-31T12:00, or milliseconds, not {text!r}") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)
