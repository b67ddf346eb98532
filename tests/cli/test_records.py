"""`headrace produce` and `headrace consume`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from .conftest import Command

pytestmark = pytest.mark.slow


def values(headrace: Command, topic: str, *arguments: str) -> list[str]:
    result = headrace("consume", topic, *arguments)
    assert result.code == 0, result.err
    return result.lines


def test_lines_go_in_and_come_out(headrace: Command, topic: str) -> None:
    result = headrace("produce", topic, stdin="one\ntwo\r\nthree")
    assert result.code == 0
    assert "3 records written" in result.err
    assert result.out == ""
    assert sorted(values(headrace, topic)) == ["one", "three", "two"]


def test_nothing_in_nothing_out(headrace: Command, topic: str) -> None:
    assert headrace("produce", topic).code == 0
    assert values(headrace, topic) == []


def test_keys_headers_and_nulls(headrace: Command, topic: str) -> None:
    lines = "a:1,b:\tk1:v1\nc:2\tk2:NULL\n"
    arguments = ("--headers", "-K", ":", "--null-marker", "NULL", "-H", "from=test", "-z", "zstd")
    assert headrace("produce", topic, *arguments, stdin=lines).code == 0
    records = {record["key"]: record for record in map(json.loads, values(headrace, topic, "-f", "json"))}
    assert records["k1"]["value"] == "v1"
    assert records["k1"]["headers"] == [["a", "1"], ["b", ""], ["from", "test"]]
    assert records["k2"]["value"] is None


@pytest.mark.parametrize(
    ("arguments", "line", "problem"),
    [
        (("-K", ":"), "no separator", "line 2 has no key separator ':'"),
        (("--headers",), "no tab", "line 2 has no tab"),
        (("--input", "json"), "{", "line 2 is no record as JSON"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(
    headrace: Command, topic: str, arguments: tuple[str, ...], line: str, problem: str
) -> None:
    good = {"-K": "k:v", "--headers": "a:1\tv", "--input": "{}"}[arguments[0]]
    result = headrace("produce", topic, *arguments, stdin=f"{good}\n{line}\n")
    assert result.code == 2
    assert problem in result.err


def test_json_comes_back_as_it_went(headrace: Command, topic: str) -> None:
    headrace("produce", topic, "-K", "\\t", "-p", "2", stdin=b'key\t\xff\xfe\nk2\t{"a": 1}\n')
    lines = values(headrace, topic, "-f", "json")
    assert json.loads(lines[0])["value_base64"] == "//4="
    headrace("topic", "create", f"{topic}-copy", "-p", "3")
    assert headrace("produce", f"{topic}-copy", "--input", "json", stdin="\n".join(lines) + "\n").code == 0
    copied = [json.loads(line) for line in values(headrace, f"{topic}-copy", "-f", "json")]
    for line, copy in zip(map(json.loads, lines), copied, strict=True):
        assert {**copy, "topic": topic} == line


def test_a_file(headrace: Command, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f"{number}\n" for number in range(5000)))
    assert headrace("produce", topic, "-f", str(path), "-z", "lz4", "-q").err == ""
    assert sorted(map(int, values(headrace, topic))) == list(range(5000))


def test_records_that_are_refused_are_told(headrace: Command, topic: str) -> None:
    headrace("config", "set", "topic", topic, "max.message.bytes=100")
    result = headrace("produce", topic, stdin="x" * 1000 + "\n")
    assert result.code == 1
    assert "1 of 1 record not written" in result.err


def test_a_topic_that_a_typo_makes_is_said(headrace: Command) -> None:
    headrace("topic", "create", "walkabouts")
    assert "made topic walkabuots; did you mean walkabouts?" in headrace("produce", "walkabuots", stdin="x\n").err
    assert "made topic" not in headrace("produce", "walkabuots", stdin="x\n").err


@pytest.mark.parametrize(
    "typed",
    [
        "topic describe {}",
        "topic delete {} --yes",
        "topic alter {} -p 9",
        "config get topic {}",
        "config set topic {} retention.ms=1",
        "consume {}",
        "consume {} --group g",
        "deadletters list {}",
    ],
)
def test_a_topic_that_there_is_not_is_said_with_the_nearest(headrace: Command, topic: str, typed: str) -> None:
    result = headrace(*typed.format(f"{topic}x").split())
    assert result.code == 1
    assert result.err == f"headrace: there is no topic {topic}x; did you mean {topic}?\n"


def test_from_and_to(headrace: Command, topic: str) -> None:
    headrace("produce", topic, "-p", "0", stdin="".join(f"{number}\n" for number in range(10)))
    one = ("-p", "0")
    assert values(headrace, topic, *one, "--from", "7") == ["7", "8", "9"]
    assert values(headrace, topic, *one, "--from", "-2") == ["8", "9"]
    assert values(headrace, topic, *one, "--to", "2") == ["0", "1"]
    assert values(headrace, topic, *one, "--from", "3", "--to", "5") == ["3", "4"]
    assert values(headrace, topic, *one, "--from", "end") == []
    assert values(headrace, topic, *one, "--from", "99") == []
    assert values(headrace, topic, *one, "--from", "beginning", "-n", "1") == ["0"]
    assert len(values(headrace, topic, "--from", "1h")) == 10
    assert values(headrace, topic, "--from", "2999-01-01") == []
    assert values(headrace, topic, "--to", "1999-01-01T00:00:00+01:00") == []


def test_from_a_moment_between_records(headrace: Command, topic: str) -> None:
    lines = [{"value": str(number), "partition": 1, "timestamp": 1_700_000_000_000 + number} for number in range(5)]
    headrace("produce", topic, "--input", "json", stdin="".join(json.dumps(line) + "\n" for line in lines))
    assert values(headrace, topic, "--from", "2023-11-14T22:13:20.003") == ["3", "4"]


@pytest.mark.parametrize("where", ["tomorrow", "1x", "P", "12:99"])
def test_a_place_that_is_none_is_a_usage_error(headrace: Command, topic: str, where: str) -> None:
    result = headrace("consume", topic, "--from", where)
    assert result.code == 2
    assert repr(where) in result.err


def test_options_that_exclude_each_other(headrace: Command, topic: str) -> None:
    for arguments in (
        ("--follow", "--to", "5"),
        ("--group", "g", "--partition", "0"),
        ("--group", "g", "--to", "5"),
        ("--group", "g", "--from", "5"),
        ("--partition", "17"),
        ("--isolation-level", "snapshot"),
        ("--format", "yaml"),
        ("--format", "%q"),
    ):
        assert headrace("consume", topic, *arguments).code == 2, arguments
    assert headrace("consume", "nope").code == 1


def test_formats(headrace: Command, topic: str) -> None:
    headrace("produce", topic, "-K", "=", "-p", "1", "-H", "h=1", stdin="key=vä\n")
    assert values(headrace, topic, "-f", "key-value") == ["key\tvä"]
    assert values(headrace, topic, "-f", "key-value", "-K", " -> ") == ["key -> vä"]
    assert values(headrace, topic, "-f", "%t %p %o %k %s %K %S %h 100%%") == [f"{topic} 1 0 key vä 3 3 h=1 100%"]
    assert values(headrace, topic, "-f", r"%k\n%s\n") == ["key", "vä"]
    dump = values(headrace, topic, "-f", "hex")
    assert dump[0] == f"{topic}-1 @0 key (3 bytes)"
    assert dump[-1].split() == ["000000", "76", "c3", "a4", "v.."]


def test_a_group_goes_on_where_it_stopped(headrace: Command, topic: str) -> None:
    headrace("produce", topic, stdin="".join(f"{number}\n" for number in range(100)))
    group = ("--group", f"g-{topic}")
    first = values(headrace, topic, *group, "-n", "30")
    assert len(first) == 30
    second = values(headrace, topic, *group)
    assert sorted(map(int, first + second)) == list(range(100))
    assert values(headrace, topic, *group) == []
    (document,) = headrace("group", "describe", f"g-{topic}", "--json").json()
    assert (document["state"], document["lag"], document["members"]) == ("Empty", 0, [])


def test_a_new_group_may_begin_at_the_end(headrace: Command, topic: str) -> None:
    headrace("produce", topic, stdin="old\n")
    assert values(headrace, topic, "--group", f"end-{topic}", "--from", "end") == []


def test_uncommitted_ends_are_reached_quickly(headrace: Command, topic: str) -> None:
    headrace("produce", topic, stdin="a\nb\n")
    began = time.monotonic()
    assert len(values(headrace, topic, "--isolation-level", "read_committed")) == 2
    assert time.monotonic() - began < 30
