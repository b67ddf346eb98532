"""Times, always UTC: as users write them (2026-01-31T12:00, or milliseconds since 1970), and as Spark's columns.

What Spark itself makes of a timestamp (a date, a text) depends on the session's time zone; what is here does not.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.spark.pipelines.declaring import WrongOptionError

if TYPE_CHECKING:
    from pyspark.sql import Column

_DAY_US = 86_400_000_000
_UNITS = "microsecond|millisecond|second|minute|hour|day|week|month|year"
_DURATION = re.compile(rf"\s*(?:interval\s+)?(?:[+-]?\d+(?:\.\d+)?\s+(?:{_UNITS})s?\s*)+", re.IGNORECASE)
_MILLISECONDS = re.compile("[0-9]{1,18}")
ISO_SECONDS = "yyyy-MM-dd'T'HH:mm:ss'Z'"


def moment_ms(text: str | None, what: str) -> int | None:
    """Milliseconds since 1970; None for None."""
    if text is None:
        return None
    if _MILLISECONDS.fullmatch(text.strip()):
        return int(text)
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise WrongOptionError(f"{what} is a time such as 2026-01-31T12:00, or milliseconds, not {text!r}") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)


def utc_date(column: str) -> Column:
    """The UTC day of a column of timestamps."""
    from pyspark.sql import functions as F

    since = F.unix_micros(F.col(column))
    return F.date_from_unix_date(((since - F.pmod(since, F.lit(_DAY_US))) / F.lit(_DAY_US)).cast("int"))


def utc_text(column: str, pattern: str = ISO_SECONDS) -> Column:
    """A timestamp as text, in UTC."""
    from pyspark.sql import functions as F

    # Texts of JSON may be given a time zone of their own.
    said = F.to_json(F.struct(F.col(column).alias("t")), {"timeZone": "UTC", "timestampFormat": pattern})
    return F.get_json_object(said, "$.t")


def check_duration(text: str, flag: str) -> None:
    """Refuse what Spark would not read as a duration; it would say so only when the first query runs already."""
    if not _DURATION.fullmatch(text):
        raise WrongOptionError(f"{flag} is a duration such as 90 seconds, 1 hour 30 minutes, not {text!r}")
