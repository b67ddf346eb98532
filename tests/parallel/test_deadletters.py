"""`headrace deadletters` and `headrace parallel`, the view and the page for Prometheus."""

from __future__ import annotations

import io
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.parallel.helpers import config, fill, make_topic, stop
from tests.waiting import eventually

from headrace import Producer, metrics
from headrace.cli.app import run
from headrace.client.errors import BufferExhaustedError
from headrace.client.ranges import RangeReader
from headrace.errors import InvalidTopicError
from headrace.parallel import Counters, ParallelConsumer, PartitionState, Reject, Retry, Snapshot
from headrace.parallel.deadletters import DeadLetters
from headrace.parallel.view import LiveView, lines
from headrace.topics import TopicPartition

pytestmark = pytest.mark.slow


@pytest.fixture
def letters(address: str, new_topic: Callable[..., str]) -> str:
    """A topic whose records 3, 4 and 7 are dead letters."""
    topic = new_topic(1)
    make_topic(address, f"{topic}.dead", 1)
    fill(address, topic, 10)

    def handle(record: Any) -> None:
        if record.value in (b"3", b"7"):
            raise ValueError(f"no {record.value.decode()}")
        if record.value == b"4":
            raise Reject("not for us")

    consumer = ParallelConsumer(
        handle,
        topics=[topic],
        group=topic,
        config=config(address),
        order="partition",
        retry=Retry(local=0, dead_letters=f"{topic}.dead"),
    )
    consumer.start()
    eventually(lambda: consumer.snapshot().counters.dead_letters == 3, "the dead letters")
    eventually(lambda: consumer.snapshot().counters.handled == 7, "the others")
    stop(consumer)
    return topic


@pytest.mark.parametrize("transactional", [False, True])
def test_a_record_too_large_for_a_letter_is_whole_again_where_it_is_put_back(
    address: str, new_topic: Callable[..., str], transactional: bool
) -> None:
    topic = new_topic(1)
    dead = f"{topic}.dead"
    make_topic(address, dead, 2)
    value = (bytes(range(256)) * 4_096)[:1_048_300]
    with Producer({"bootstrap.servers": address}) as producer:
        producer.send(topic, value, b"key", headers=[("own", b"1")]).result(30)
        producer.send(topic, b"small").result(30)
    handled: list[bytes] = []

    def handle(record: Any) -> None:
        if record.offset == 0:
            raise Reject("too much")
        handled.append(record.value)

    consumer = ParallelConsumer(
        handle,
        topics=[topic],
        group=topic,
        config=config(address),
        order="none",
        retry=Retry(dead_letters=dead),
        transactional=transactional,
    )
    consumer.start()
    eventually(lambda: consumer.snapshot().counters.dead_letters == 1, "the dead letter")
    assert consumer.snapshot().counters.letters_in_parts == 1
    with DeadLetters(config(address), dead) as letters:
        (letter,) = letters.letters()
        assert len(letter.offsets) > 1
        assert (letter.record.key, letter.record.value, letter.reason) == (b"key", value, "rejected")
        assert letter.record.headers[0] == ("own", b"1")
        assert letters.redrive() == 1
        assert not list(letters.letters())
    eventually(lambda: value in handled, "the record that was put back")
    stop(consumer)


def test_dead_letters_are_listed_shown_and_put_back_once(
    address: str, letters: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = f"{letters}.dead"
    assert run(["deadletters", "list", dead, "--json", "-b", address]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["origin"], row["reason"], row["error"]) for row in rows] == [
        (f"{letters}-0:3", "failed", "no 3"),
        (f"{letters}-0:4", "rejected", "not for us"),
        (f"{letters}-0:7", "failed", "no 7"),
    ]
    assert run(["deadletters", "list", dead, "--reason", "rejected", "-b", address]) == 0
    table = capsys.readouterr().out
    assert "not for us" in table
    assert "no 3" not in table
    assert run(["deadletters", "show", dead, "0:2", "-b", address]) == 0
    shown = capsys.readouterr().out
    assert "no 7" in shown
    assert f"headrace.origin-topic: {letters}" in shown

    assert run(["deadletters", "redrive", dead, "--at", "0:1", "--dry-run", "-b", address]) == 0
    assert capsys.readouterr().out == f"0:1 → {letters}\n"
    assert run(["deadletters", "redrive", dead, "--at", "0:1", "-b", address]) == 0
    assert run(["deadletters", "redrive", dead, "--all", "-b", address]) == 0
    assert capsys.readouterr().out.splitlines() == [f"0:{n} → {letters}" for n in (1, 0, 2)]
    assert run(["deadletters", "redrive", dead, "--all", "-b", address]) == 0
    assert "No letter fits" in capsys.readouterr().err
    assert run(["deadletters", "list", dead, "-b", address]) == 0
    assert "There are no dead letters" in capsys.readouterr().err
    assert run(["deadletters", "list", dead, "--all", "--json", "-b", address]) == 0
    assert [row["redriven"] for row in json.loads(capsys.readouterr().out)] == [True] * 3

    seen: list[Any] = []
    consumer = ParallelConsumer(seen.append, topics=[letters], group=letters, config=config(address))
    consumer.start()
    eventually(lambda: len(seen) == 3, "what was put back")
    stop(consumer)
    assert sorted((record.value, record.headers) for record in seen) == [(b"3", ()), (b"4", ()), (b"7", ())]


def test_redrive_has_to_be_told_which(address: str, letters: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["deadletters", "redrive", f"{letters}.dead", "-b", address]) == 2
    assert run(["deadletters", "show", f"{letters}.dead", "7", "-b", address]) == 2
    assert run(["deadletters", "show", f"{letters}.dead", "0:99", "-b", address]) == 1
    assert "has no record" in capsys.readouterr().err


def test_what_was_put_back_is_remembered_in_the_middle_too(address: str, letters: str) -> None:
    with DeadLetters(config(address), f"{letters}.dead") as dead:
        assert dead.redrive(lambda letter: letter.record.offset == 1) == 1
    with DeadLetters(config(address), f"{letters}.dead") as dead:
        assert [letter.record.offset for letter in dead.letters()] == [0, 2]
        assert [letter.is_redriven for letter in dead.letters(include_redriven=True)] == [False, True, False]


def test_letters_may_be_put_back_while_they_are_gone_through(address: str, letters: str) -> None:
    small = {"max.partition.fetch.bytes": 100, "fetch.max.bytes": 100}
    with DeadLetters(config(address, **small), f"{letters}.dead") as dead:
        seen = []
        for letter in dead.letters():
            seen.append(letter.record.offset)
            assert dead.redrive(lambda one, place=letter.record.offset: one.record.offset == place) == 1
            assert dead.letter(0, 2) is not None
        assert seen == [0, 1, 2]
        assert list(dead.letters()) == []


def test_a_selection_that_would_not_run_is_refused(address: str, letters: str) -> None:
    async def select(letter: Any) -> bool:
        return False

    with (
        DeadLetters(config(address), f"{letters}.dead") as dead,
        pytest.raises(TypeError, match="select is an `async def`"),
    ):
        dead.redrive(select)  # type: ignore[arg-type]  # that is the mistake


def test_what_was_put_back_is_remembered_where_another_letter_was_refused(
    address: str, letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_send, told = DeadLetters._send, []

    def send(self: DeadLetters, producer: Producer, letter: Any, topic: str) -> Any:
        return plain_send(self, producer, letter, "not/a/topic" if letter.record.offset == 1 else topic)

    with DeadLetters(config(address), f"{letters}.dead") as dead:
        with monkeypatch.context() as patched:
            patched.setattr(DeadLetters, "_send", send)
            for _ in range(2):
                with pytest.raises(InvalidTopicError):
                    dead.redrive(on_each=lambda letter, _: told.append(letter.record.offset))
        assert told == [0, 2]
        assert [letter.is_redriven for letter in dead.letters(include_redriven=True)] == [True, False, True]
        assert dead.redrive() == 1
    with RangeReader({"bootstrap.servers": address}) as reader:
        assert reader.end_offsets([(letters, 0)]) == {(letters, 0): 13}


def test_what_was_put_back_is_remembered_where_there_was_no_room_for_another_letter(
    address: str, letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_send = DeadLetters._send

    def send(self: DeadLetters, producer: Producer, letter: Any, topic: str) -> Any:
        if letter.record.offset == 1:
            raise BufferExhaustedError("buffer.memory stayed full")
        return plain_send(self, producer, letter, topic)

    with DeadLetters(config(address), f"{letters}.dead") as dead:
        with monkeypatch.context() as patched:
            patched.setattr(DeadLetters, "_send", send)
            for _ in range(2):
                with pytest.raises(BufferExhaustedError):
                    dead.redrive()
        assert [letter.is_redriven for letter in dead.letters(include_redriven=True)] == [True, False, False]
        assert dead.redrive() == 2
    with RangeReader({"bootstrap.servers": address}) as reader:
        assert reader.end_offsets([(letters, 0)]) == {(letters, 0): 13}


def test_a_handler_runs_from_the_command_line(
    address: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = new_topic(1)
    fill(address, topic, 20)
    (tmp_path / "counting_handler.py").write_text(
        "import os, signal\nseen = []\n"
        "def handle(record):\n"
        "    seen.append(record)\n"
        "    if len(seen) == 20:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    arguments = ["parallel", "counting_handler:handle", topic, "--group", topic, "--workers", "2", "--watch"]
    assert run([*arguments, "-b", address]) == 0
    printed = capsys.readouterr()
    assert "handled 20" in printed.err
    assert f"group {topic}" in printed.out


@pytest.mark.parametrize(("handler", "words"), [("nothing", "MODULE:FUNCTION"), ("nowhere:f", "cannot be loaded")])
def test_a_handler_that_is_not_there_is_said(
    address: str, handler: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["parallel", handler, "t", "--group", "g", "-b", address]) == 2
    assert words in capsys.readouterr().err


def snapshot(handled: int) -> Snapshot:
    states = [PartitionState(TopicPartition("orders", n), 5, 105 + n, 100 * n, 4, 0, 2.5, n == 1) for n in range(30)]
    return Snapshot("billing", 8, 4, 100, 2_000_000, Counters(handled=handled), states)


def test_the_view_has_rates_and_the_worst_partitions_first() -> None:
    shown = lines(snapshot(1_500), snapshot(500), 2.0, width=200, height=10)
    assert "handled 1,500 (500/s)" in shown[0]
    assert "workers busy 4/8" in shown[0]
    assert shown[4].startswith("orders-29 ")
    assert shown[-1] == "… and 25 more"
    assert len(shown) == 10


def test_the_view_fits_a_narrow_terminal_and_says_what_it_waits_for() -> None:
    shown = lines(snapshot(1_500), None, 2.0, width=80, height=12)
    assert all(len(line) <= 80 for line in shown)
    assert "rebalances 0" in "\n".join(shown)
    assert "no partitions" in lines(Snapshot("billing", 8, 0, 0, 0, Counters()), None, 1.0)[-1]


def test_a_topic_that_is_not_there_is_said_and_not_made(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["deadletters", "list", "no-such-topic", "-b", address]) == 1
    assert "no topic no-such-topic" in capsys.readouterr().err
    assert run(["deadletters", "list", "no-such-topic", "-b", address]) == 1


def test_watch_draws_until_it_is_stopped() -> None:
    stream = io.StringIO()
    with LiveView(lambda: snapshot(7), stream, every_s=0.01):
        eventually(lambda: stream.getvalue().count("group billing") >= 2, "two drawings")
    assert "\x1b" not in stream.getvalue(), "no terminal codes where there is no terminal"


def test_the_metrics_page_is_served() -> None:
    with metrics.serve(0, snapshot(7)) as page:
        with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics") as answer:
            assert 'headrace_parallel_handled_total{group="billing"} 7' in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{page.port}/other")
        refused.value.close()
