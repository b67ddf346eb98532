"""Apache Kafka's answers, loaded once for all tests of this folder."""

import base64
import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "reference" / "vectors"


@cache
def load(name: str) -> list[dict[str, Any]]:
    with gzip.open(FOLDER / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def batches(*kinds: str) -> list[dict[str, Any]]:
    return [row for row in load("record-batches.jsonl.gz") if row["kind"] in kinds]


def unbase64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def to_bytes(row: dict[str, Any]) -> bytes:
    return base64.b64decode(row["bytes"])
