"""Which quota counts, and how long a client is to pause, as Kafka's own classes answered."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.broker.quotas.precedence import QuotaTable
from headrace.broker.quotas.rates import Rate, TokenBucket
from headrace.cluster.image import QuotaEntity

VECTORS = Path(__file__).parents[2] / "reference" / "vectors" / "quota-precedence.jsonl.gz"
BEGAN_MS = 1_700_000_000_000
KEY = "producer_byte_rate"


def cases(kind: str) -> Iterator[dict[str, Any]]:
    with gzip.open(VECTORS, "rt", encoding="utf-8") as lines:
        yield from (case for case in map(json.loads, lines) if case["kind"] == kind)


def entity(user: str | None, client_id: str | None) -> QuotaEntity:
    parts = (("client-id", client_id), ("user", user))
    return tuple((kind, None if name == "<default>" else name) for kind, name in parts if name is not None)


def test_the_most_specific_quota_counts_and_is_shared_by_those_whom_it_names() -> None:
    asked = 0
    for case in cases("precedence"):
        quotas: dict[QuotaEntity, dict[str, float]] = {}
        for user, client_id, value in case["set"]:
            if value is None:
                quotas.pop(entity(user, client_id), None)
            else:
                quotas[entity(user, client_id)] = {KEY: value}
        table = QuotaTable(quotas, KEY)
        for user, client_id, value, tags in case["asked"]:
            found = table.find(user, client_id)
            asked += 1
            assert (None if found is None else found.value) == value, case["id"]
            if found is not None:
                shared = (user if tags["user"] else "", client_id if tags["client-id"] else "")
                assert (found.user, found.client_id) == shared, case["id"]
    assert asked > 9000


def test_pauses_are_kafkas_to_the_millisecond() -> None:
    steps = 0
    for case in cases("throttle"):
        bound, window_ms = case["quota"], case["window_s"] * 1000
        rate, bucket = Rate(case["samples"], window_ms), TokenBucket(case["samples"], window_ms)
        for at_ms, amount, expected in case["steps"]:
            now_ms = BEGAN_MS + at_ms
            found: Any
            if case["quota_kind"].startswith("mutation"):
                lack_ms = bucket.throttle_ms(bound, now_ms)
                if case["quota_kind"] == "mutation-strict" and lack_ms:
                    found = [True, lack_ms]
                else:
                    bucket.take(amount, bound, now_ms)
                    is_strict = case["quota_kind"] == "mutation-strict"
                    found = [False, 0 if is_strict else bucket.throttle_ms(bound, now_ms)]
            else:
                rate.record(amount, now_ms)
                found = rate.throttle_ms(bound, now_ms)
                if case["quota_kind"] == "request":
                    found = min(found, window_ms)
            steps += 1
            assert found == expected, (case["id"], at_ms)
    assert steps > 2500
