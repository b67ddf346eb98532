"""What the console changes, and who may have it changed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.console.serving import CHANGE, Console, console

from headrace import Producer
from headrace.console.masking import masks_of

RESET = {"group": "billing", "to": "earliest"}


def test_topics_are_made_changed_and_deleted_once_their_name_is_typed(changing: Console) -> None:
    status, done = changing.change("create-topic", topic="made", partitions=2, configs={"retention.ms": "1000"})
    assert (status, done["done"]["partitions"]) == (200, 2)
    assert changing.change("add-partitions", topic="made", partitions=3)[0] == 200
    assert changing.change("set-config", topic="made", name="retention.ms", value=None)[0] == 200
    assert len(changing.get("topic?name=made")["partitions"]) == 3
    assert changing.change("produce", topic="made", value="one", partition=1)[1]["done"] == {
        "partition": 1,
        "offset": 0,
    }
    status, refused = changing.change("truncate-topic", topic="made", confirm="mad")
    assert (status, refused) == (400, {"error": "type 'made' to confirm"})
    assert changing.change("truncate-topic", topic="made", confirm="made")[0] == 200
    assert changing.get("topic?name=made")["partitions"][1]["start"] == 1
    assert changing.change("delete-topic", topic="made", confirm="made")[0] == 200
    assert "made" not in [row["name"] for row in changing.get("topics")["rows"]]


def test_a_reset_is_seen_before_it_is_done(changing: Console) -> None:
    before = changing.get("group?name=billing")["lag"]
    status, _, body = changing.ask("/api/c/kafka/preview-reset", "POST", RESET, CHANGE)
    rows = json.loads(body)
    assert status == 200
    assert all(row["after"] == 0 and row["moves"] <= 0 for row in rows)
    assert changing.get("group?name=billing")["lag"] == before, "a preview changes nothing"
    assert changing.change("reset-group", **RESET)[0] == 400, "it has to be confirmed"
    assert changing.change("reset-group", **RESET, confirm="billing")[0] == 200
    assert changing.get("group?name=billing")["lag"] > before
    back = {"group": "billing", "to": "shift", "number": 10, "confirm": "billing"}
    assert changing.change("reset-group", **back)[0] == 200


def test_nothing_is_changed_unless_that_was_allowed(shown: Console) -> None:
    for name in ("create-topic", "delete-topic", "produce", "reset-group", "abort-transaction", "elect-preferred"):
        status, refused = shown.change(name, topic="orders", value="x", confirm="orders")
        assert status == 403, name
        assert "--allow-changes" in refused["error"]
    # What a reset would do may be looked at.
    assert shown.ask("/api/c/kafka/preview-reset", "POST", RESET, CHANGE)[0] == 200


def test_every_change_is_in_the_audit_log_but_not_what_was_produced(yard: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    with console(yard, allow_changes=True, audit_file=file) as running:
        running.change("produce", topic="orders", value="a secret")
        running.change("delete-topic", topic="orders", confirm="no")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["what"], one["outcome"], one["topic"]) for one in lines] == [
        ("produce", "done", "orders"),
        ("delete-topic", "refused", "orders"),
    ]
    assert "a secret" not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


# --- who may come -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "headers", "expected"),
    [
        ("GET", {"host": "attacker.example"}, 421),
        ("GET", {"host": "attacker.example:80"}, 421),
        ("GET", {"host": "localhost:1234"}, 200),
        ("GET", {"host": "[::1]:1234"}, 200),
        ("POST", {**CHANGE, "origin": "http://attacker.example"}, 403),
        ("POST", {"x-headrace-console": "1", "content-type": "text/plain"}, 415),
        ("POST", {"content-type": "application/json"}, 403),
    ],
)
def test_pages_of_others_cannot_use_it(shown: Console, method: str, headers: dict[str, str], expected: int) -> None:
    path = "/api/session" if method == "GET" else "/api/c/kafka/preview-reset"
    assert shown.ask(path, method, None if method == "GET" else RESET, headers)[0] == expected


def test_every_answer_says_what_a_browser_may_do_with_it(shown: Console) -> None:
    for path in ("/", "/static/app.js", "/api/session", "/api/c/kafka/overview", "/nothing"):
        headers = shown.ask(path)[1]
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_no_page_names_another_host() -> None:
    import headrace.console

    static = Path(headrace.console.__file__).parent / "static"
    for file in static.iterdir():
        found = [one for one in re.findall(r"https?://[\w.-]+", file.read_text()) if "w3.org" not in one]
        assert all("HOST" in one for one in found), (file.name, found)
        assert "innerHTML" not in file.read_text(), file.name


def test_a_token_opens_it_once_and_a_cookie_from_then_on(shop: str) -> None:
    with console(shop, token="open sesame") as running:
        assert running.ask("/")[0] == 200
        assert running.ask("/api/c/kafka/overview")[0] == 401
        assert json.loads(running.ask("/api/session")[2])["needs_token"]
        assert running.ask("/api/login", "POST", {"token": "wrong"}, CHANGE)[0] == 401
        status, headers, _ = running.ask("/api/login", "POST", {"token": "open sesame"}, CHANGE)
        assert status == 200
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        session = cookie.partition(";")[0]
        assert running.ask("/api/c/kafka/overview", headers={"cookie": session})[0] == 200
        assert running.ask("/api/c/kafka/overview", headers={"cookie": "headrace-console=made-up"})[0] == 401
        assert running.ask("/api/c/kafka/overview", headers={"authorization": "Bearer open sesame"})[0] == 200


def test_what_is_masked_is_neither_shown_nor_found(shop: str) -> None:
    masks = masks_of([{"topics": "ord.*", "fields": ["value.card.number", "headers.source"]}])
    with console(shop, masks=masks) as running:
        messages = running.get("messages?topic=orders&limit=500&from=oldest")["messages"]
        text = json.dumps(messages)
        assert "4111" not in text
        assert "till" not in text
        assert "visa" in text
        assert running.get("messages?topic=orders&text=4111-3")["messages"] == []
        assert running.get("messages?topic=orders&filter=value.card.number%20%3D%3D%20%224111-3%22")["messages"] == []
        one = messages[0]
        path = f"download?topic=orders&partition={one['partition']}&offset={one['offset']}"
        assert b"4111" not in running.ask(f"/api/c/kafka/{path}")[2]


def test_a_dead_letter_is_put_back_once(changing: Console, yard: str) -> None:
    with Producer(bootstrap_servers=yard) as producer:
        headers = [
            ("headrace.reason", b"failed"),
            ("headrace.origin-topic", b"paid"),
            ("headrace.origin-partition", b"0"),
            ("headrace.origin-offset", b"7"),
            ("trace", b"abc"),
        ]
        where = producer.send("paid.dead", b"try me again", headers=headers).result(30)
    letter = {"topic": "paid.dead", "partition": where.partition, "offset": where.offset}
    status, done = changing.change("put-back", **letter)
    assert (status, done) == (200, {"done": {"topic": "paid"}})
    newest = changing.get("messages?topic=paid&limit=1")["messages"][0]
    assert newest["value"]["text"] == "try me again"
    assert newest["headers"] == [["trace", "abc"]]
    assert changing.change("put-back", **letter)[0] == 400, "not twice"
