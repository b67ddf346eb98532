"""The pipelines `activity` and `audit` on a broker and one Spark session: what goes where, once, and what is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.spark.auditing import read_topic
from tests.spark.topics import fill, make_topic

from headrace.client.producer.blocking import Producer
from headrace.parallel.deadletters import DeadLetters
from headrace.spark.pipelines.activity import activity
from headrace.spark.pipelines.audit import audit
from headrace.spark.pipelines.moments import utc_date, utc_text
from headrace.spark.pipelines.running import in_utc
from headrace.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
AT_MS = 1_760_000_000_000
MINUTE_MS = 60_000


def event(number: int, at_ms: int = AT_MS, **more: Any) -> bytes:
    return json.dumps({"id": str(number), "at": at_ms, "event": "click", "user": f"u{number % 7}", **more}).encode()


def elsewhere(spark: Any) -> Any:
    """A session whose own times are those of New York: what a pipeline writes is UTC all the same."""
    from pyspark.sql import SparkSession

    made = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    made.conf.set("spark.sql.session.timeZone", "America/New_York")
    return made


def values(servers: str, topic: str) -> list[tuple[bytes | None, Any]]:
    """Key and value of every committed record, as an independent client reads them."""
    return [(key, json.loads(value or b"null")) for _, key, value in read_topic(servers, topic)]


def test_what_is_counted_apart_has_keys_of_its_own(spark: Any, kafka: BrokerProcess, tmp_path: Path) -> None:
    servers = kafka.address
    make_topic(servers, "apart", partitions=1)
    apart = [("a|b", "c"), ("a", "b|c"), ("a\\", "|c"), ("x", None), ("x", ""), ("x", "\\N")]
    with Producer({"bootstrap.servers": servers}) as producer:
        for number, (name, page) in enumerate(apart):
            producer.send("apart", event(number, event=name, page=page))
    options = {"servers": servers, "source": ["apart"], "by": ["event", "page"], "checkpoint": str(tmp_path / "run")}
    activity(session=spark, **options)
    found = {key: (value["event"], value.get("page"), value["count"]) for key, value in values(servers, "apart-counts")}
    assert sorted(found.values(), key=str) == sorted(((*one, 1) for one in apart), key=str)


def test_activity_cleans_diverts_counts_and_resumes(spark: Any, kafka: BrokerProcess, tmp_path: Path) -> None:
    servers = kafka.address
    spark = elsewhere(spark)
    make_topic(servers, "raw", 2)
    options = {"servers": servers, "source": "raw", "checkpoint": str(tmp_path / "run"), "max_per_batch": 40}
    good = [event(number, AT_MS + number, duration_ms="12") for number in range(90)]
    bad = [
        b"{broken",
        b'["no object"]',
        b"\xff\xfe",
        event(1, duration_ms="soon"),
        b'{"id": "x", "event": "click"}',
        b'{"at": "2026-01-01T00:00:00Z"}',
    ]
    fill(servers, "raw", good + bad, key=b"k")
    first = activity(session=spark, **options).document
    assert (first["rows_in"], first["clean"]["rows"], first["dead_letters"]["rows"]) == (96, 90, 6)
    assert first["batches"] >= 2
    assert first["lag"] == 0

    clean = [value for _, value in values(servers, "raw-clean")]
    assert sorted(int(row["id"]) for row in clean) == list(range(90))
    assert clean[0]["duration_ms"] == 12, "text became a number"
    assert clean[0]["at"].startswith("2025-10-09T08:53:20"), "milliseconds became a time"
    assert clean[0]["at"].endswith("Z")
    with DeadLetters({"bootstrap.servers": servers}, "raw-dead") as letters:
        found = {letter.record.value: letter for letter in letters.letters()}
    assert found.keys() == set(bad)
    assert found[b"{broken"].error == "the value is not a JSON object"
    assert found[b'["no object"]'].error == "the value is not a JSON object"
    assert found[b"\xff\xfe"].error == "the value is not UTF-8"
    assert found[bad[3]].error == "duration_ms is not a bigint: soon"
    assert found[bad[4]].error == "at is missing"
    assert found[bad[5]].error == "event is missing"
    assert {letter.origin_topic for letter in found.values()} == {"raw"}
    assert counted(servers) == {"2025-10-09T08:53:00Z|click": 90}

    # Nothing new: nothing is written. Then more, one in an old window that is still open, one that is too late.
    assert activity(session=spark, **options).document["rows_in"] == 0
    fill(servers, "raw", [event(200, AT_MS + 30 * MINUTE_MS), event(201, AT_MS)], key=b"k")
    assert activity(session=spark, **options).document["clean"]["rows"] == 2
    fill(servers, "raw", [event(202, AT_MS + 29 * MINUTE_MS), event(203, AT_MS)], key=b"k")
    assert activity(session=spark, **options).document["clean"]["rows"] == 2, "what is too late to count is still clean"
    assert len(values(servers, "raw-clean")) == 94
    assert counted(servers) == {
        "2025-10-09T08:53:00Z|click": 91,
        "2025-10-09T09:22:00Z|click": 1,
        "2025-10-09T09:23:00Z|click": 1,
    }
    report = audit(
        session=spark, servers=servers, source="raw", against="raw-clean,raw-dead", match="json:id", order=False
    )
    assert not report.has_findings, report.lines


def counted(servers: str) -> dict[str, int]:
    """The last count of every key."""
    return {(key or b"").decode(): value["count"] for key, value in values(servers, "raw-counts")}


def test_audit_finds_what_is_wrong_and_nothing_else(spark: Any, kafka: BrokerProcess) -> None:
    servers = kafka.address
    for name in ("sent", "got"):
        make_topic(servers, name, 2)
    fill(servers, "sent", [event(number) for number in range(50)], partition=0, key=b"a")
    fill(servers, "got", [event(number) for number in range(50)], partition=1, key=b"a")
    options = {"servers": servers, "source": "sent", "against": "got", "match": "json:id"}
    clean = audit(session=spark, **options)
    assert not clean.has_findings
    assert clean.lines[2].strip() == "in 50 · out 50 · lost 0 · duplicated 0 · out of order 0"

    fill(servers, "sent", [event(number) for number in (60, 61, 62)], partition=0, key=b"a")
    fill(servers, "got", [event(number) for number in (62, 61, 7, 7, 99)], partition=1, key=b"a")
    with Producer({"bootstrap.servers": servers, "transactional.id": "audit"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("got", event(60), partition=0)
        producer.flush()
        producer.abort_transaction()
    found = audit(session=spark, **options)
    document = found.document
    assert found.has_findings
    wanted = {"rows_in": 53, "rows_out": 55, "lost": 1, "duplicated": 2, "unknown": 1, "out_of_order": 1}
    assert {name: document[name] for name in wanted} == wanted, found.lines
    assert document["examples"]["lost"] == ["sent-0@50"]
    log = document["logs"]["against"]
    assert (log["aborts"], log["aborted_records"], log["unexplained"], log["records"]) == (1, 1, 0, 56)
    alone = audit(session=spark, servers=servers, source="got", match="json:id", sequence="json:id")
    assert alone.document["repeated"] == 2
    assert alone.document["went_back"] == 2


def test_audit_tells_a_key_without_a_value_from_a_value_without_a_key(spark: Any, kafka: BrokerProcess) -> None:
    servers = kafka.address
    for name in ("nulls-sent", "nulls-got"):
        make_topic(servers, name, 1)
    with Producer({"bootstrap.servers": servers}) as producer:
        producer.send("nulls-sent", b"x", key=None)
        producer.send("nulls-got", None, key=b"x")
    found = audit(session=spark, servers=servers, source="nulls-sent", against="nulls-got", scan=False).document
    assert (found["lost"], found["unknown"]) == (1, 1)


def test_days_and_texts_of_times_are_utc_in_any_session(spark: Any) -> None:
    there = elsewhere(spark)
    rows = there.sql("select timestamp_seconds(x) t from values (1767232800), (1767225599), (-1), (0) as v(x)")
    found = [tuple(row) for row in rows.select(utc_date("t").cast("string"), utc_text("t")).collect()]
    assert found == [
        ("2026-01-01", "2026-01-01T02:00:00Z"),
        ("2025-12-31", "2025-12-31T23:59:59Z"),
        ("1969-12-31", "1969-12-31T23:59:59Z"),
        ("1970-01-01", "1970-01-01T00:00:00Z"),
    ]
    assert in_utc(there).conf.get("spark.sql.session.timeZone") == "UTC"
    assert there.conf.get("spark.sql.session.timeZone") == "America/New_York"
    assert in_utc(spark) is spark
