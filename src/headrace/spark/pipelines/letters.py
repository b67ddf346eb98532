"""The headers of a dead letter, by the names that `headrace deadletters` and the pipeline `redrive` read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.parallel.retries import (
    ERROR,
    FAILED_MS,
    GROUP,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
    REASON,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

REJECTED = "rejected"
"""The reason of rows that cannot be taken as they are; the error says why."""
_ERROR_CHARS = 1_000


def letter_headers(error: Column, group: str) -> Column:
    """Headers for rows of a topic (with their own, if there is a column `headers` to keep) that go to dead letters.

    Nothing in them changes when a batch is replayed, so a letter is the same whichever attempt wrote it; the time is
    the record's own.
    """
    from pyspark.sql import functions as F

    millis = F.unix_millis("timestamp").cast("string")
    texts = {
        REASON: F.lit(REJECTED),
        ERROR: F.substring(error, 1, _ERROR_CHARS),
        GROUP: F.lit(group),
        FAILED_MS: millis,
        ORIGIN_TOPIC: F.col("topic"),
        ORIGIN_PARTITION: F.col("partition").cast("string"),
        ORIGIN_OFFSET: F.col("offset").cast("string"),
        ORIGIN_TIMESTAMP: millis,
    }
    added = F.array(
        *(F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in texts.items())
    )
    return F.concat(F.coalesce("headers", F.array().cast("array<struct<key:string,value:binary>>")), added)
