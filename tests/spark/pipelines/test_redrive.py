"""Dead letters go back to their topics: those that fit, each once, with their own headers."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.spark.pipelines.reading import everything
from tests.spark.topics import make_topic

from headrace.client.admin import Admin
from headrace.client.producer.blocking import Producer
from headrace.parallel.deadletters import DeadLetters
from headrace.parallel.letters import PART, pack
from headrace.spark.pipelines.declaring import PipelineError, WrongOptionError, parsed
from headrace.spark.pipelines.redrive import OPTIONS, REDRIVEN, Ledger, check_ledgers, run, settle
from headrace.testing import BrokerProcess
from headrace.topics import TopicPartition

# --- what was put back ------------------------------------------------------------------------------------------------


def test_a_ledger_moves_its_base_over_what_is_done_and_over_offsets_without_letters() -> None:
    there = [0, 1, 2, 5, 6, 9]
    fitting, ledger = settle(Ledger(), there, [0, 1, 2, 5])
    assert (fitting, ledger) == ([0, 1, 2, 5], Ledger(6))
    _, ledger = settle(ledger, there, [9])
    assert ledger == Ledger(6, ((7, 10),))
    assert [ledger.has(offset) for offset in (5, 6, 9, 10)] == [True, False, True, False]
    assert Ledger.of(ledger.note()[0], 0) == ledger


def test_deleted_letters_count_as_done() -> None:
    assert Ledger.of(None, 40) == Ledger(40)
    note, _ = Ledger(6, ((7, 10),)).note()
    assert Ledger.of(note, 7) == Ledger(10)


def test_notes_of_a_topic_that_was_made_anew_are_refused() -> None:
    one = TopicPartition("orders.dead", 0)
    check_ledgers({one: Ledger(5)}, {one: 5}, "g")
    with pytest.raises(PipelineError, match="made anew"):
        check_ledgers({one: Ledger(20)}, {one: 3}, "g")


def test_letters_that_no_note_has_room_for_are_left() -> None:
    picks = random.Random(7)
    there = list(range(60_000))
    wanted = sorted(picks.sample(there[1:], 20_000))
    fitting, ledger = settle(Ledger(), there, wanted)
    assert 2_000 < len(fitting) < len(wanted)
    assert fitting == wanted[: len(fitting)]
    assert ledger.note()[1]
    assert all(ledger.has(offset) for offset in fitting)


def test_options_that_choose_nothing_or_mean_nothing_are_refused() -> None:
    with pytest.raises(WrongOptionError, match="say which letters"):
        run(parsed(OPTIONS, {"topic": "dead"}))
    for since in ("yesterday", "²"):
        with pytest.raises(WrongOptionError, match="--since is a time"):
            run(parsed(OPTIONS, {"topic": "dead", "since": since}))
    with pytest.raises(WrongOptionError, match="dead-letter topic itself"):
        run(parsed(OPTIONS, {"topic": "dead", "everything": True, "to": "dead"}))


# --- with a broker ----------------------------------------------------------------------------------------------------


def _letter(number: int, reason: str, error: str, origin: str | None, **more: str) -> list[tuple[str, bytes]]:
    facts = {"headrace.reason": reason, "headrace.error": error, "headrace.failed-ms": str(1_000 + number), **more}
    if origin is not None:
        facts["headrace.origin-topic"] = origin
    return [("trace", b"t%d" % number), *((name, text.encode()) for name, text in facts.items())]


@pytest.mark.slow
def test_letters_that_fit_go_back_once_and_the_command_line_knows(spark: Any, kafka: BrokerProcess) -> None:
    servers = kafka.address
    dead = make_topic(servers, "orders.dead", partitions=2)
    for name in ("orders", "refunds"):
        make_topic(servers, name)
    with Producer({"bootstrap.servers": servers}) as producer:
        for number in range(40):
            headers = _letter(
                number, "failed" if number % 2 else "poison", f"E{number % 4}", "orders" if number % 8 else "refunds"
            )
            producer.send(dead, b"v%d" % number, b"k%d" % (number % 5), headers=headers, partition=number % 2)
    base = {"topic": dead, "servers": servers}

    dry = run(parsed(OPTIONS, {**base, "reason": "failed", "dry_run": True}), spark)
    assert (dry.document["fit"], dry.document["put_back"]) == (20, 0)
    assert everything(servers, "orders") == []

    done = run(parsed(OPTIONS, {**base, "reason": "failed", "error": "E3", "since": "1020", "per_step": "3"}), spark)
    wanted = {b"v%d" % number for number in range(20, 40) if number % 4 == 3}
    assert done.document["put_back"] == len(wanted) == 5
    back = everything(servers, "orders")
    assert {record.value for record in back} == wanted
    assert all(
        [name for name, _ in record.headers] == ["trace", REDRIVEN] and record.headers[1][1] == b"1" for record in back
    )
    again = run(parsed(OPTIONS, {**base, "reason": "failed", "error": "E3", "since": "1020"}), spark)
    assert (again.document["put_back"], again.document["put_back_before"]) == (0, 5)

    # What the pipeline put back, the command line leaves alone, and the other way round.
    with DeadLetters({"bootstrap.servers": servers}, dead) as letters:
        assert len(list(letters.letters())) == 35
        assert letters.redrive(lambda letter: letter.record.value == b"v1") == 1
    rest = run(parsed(OPTIONS, {**base, "everything": True}), spark)
    assert (rest.document["put_back"], rest.document["to"]) == (34, {"orders": 29, "refunds": 5})
    values = sorted(record.value for topic in ("orders", "refunds") for record in everything(servers, topic))
    assert values == sorted(b"v%d" % number for number in range(40))
    with Admin({"bootstrap.servers": servers}) as admin:
        offsets = admin.list_group_offsets([f"{dead}.redriven"])[f"{dead}.redriven"]
    assert [(one.offset, one.metadata) for one in offsets.values()] == [(20, ""), (20, "")]


@pytest.mark.slow
def test_letters_put_back_too_often_and_those_without_an_origin_stay(spark: Any, kafka: BrokerProcess) -> None:
    servers = kafka.address
    dead = make_topic(servers, "jobs.dead", partitions=1)
    make_topic(servers, "jobs")
    with Producer({"bootstrap.servers": servers}) as producer:
        producer.send(dead, b"often", headers=[*_letter(0, "failed", "E", "jobs"), (REDRIVEN, b"3")])
        producer.send(dead, b"once", headers=[*_letter(1, "failed", "E", "jobs"), (REDRIVEN, b"1")])
        producer.send(dead, b"lost", headers=_letter(2, "failed", "lost", None))
        producer.send(dead, b"RAW BYTES OF A BATCH", headers=_letter(3, "damaged", "E", "jobs"))
    base = {"topic": dead, "servers": servers}
    with pytest.raises(PipelineError, match=r"jobs.dead-0 at offset 2 has no header"):
        run(parsed(OPTIONS, {**base, "everything": True}), spark)
    done = run(parsed(OPTIONS, {**base, "max_attempts": 3, "origin": "jobs"}), spark)
    assert (done.document["put_back"], done.document["damaged"]) == (1, 1)
    assert run(parsed(OPTIONS, {**base, "origin": "jobs", "error": "E"}), spark).document["put_back"] == 1
    with pytest.raises(WrongOptionError, match="no record to put back"):
        run(parsed(OPTIONS, {**base, "reason": "damaged"}), spark)
    assert [record.value for record in everything(servers, "jobs")] == [b"once", b"often"]
    (record, _) = everything(servers, "jobs")
    assert (record.value, dict(record.headers)[REDRIVEN]) == (b"once", b"2")
    with pytest.raises(WrongOptionError, match="there is no topic nowhere"):
        run(parsed(OPTIONS, {**base, "topic": "nowhere", "everything": True}), spark)


def _send_parts(producer: Any, topic: str, number: int, pieces: list[bytes | None], origin: str) -> None:
    """A letter in as many parts; None: one that is not there."""
    facts = [one for one in _letter(number, "failed", "E", origin) if one[0] != "trace"]
    for place, piece in enumerate(pieces, start=1):
        if piece is not None:
            headers = [*facts, (PART, b"%d/%d" % (place, len(pieces)))]
            producer.send(topic, piece, b"%s-%d" % (origin.encode(), number), headers=headers)


@pytest.mark.slow
def test_letters_in_parts_are_put_together_and_back(spark: Any, kafka: BrokerProcess) -> None:
    servers = kafka.address
    dead = make_topic(servers, "large.dead", partitions=1)
    make_topic(servers, "large", partitions=1)
    packed = pack(b"key", b"value" * 100, [("own", b"h"), (REDRIVEN, b"1")])
    often = pack(None, b"often", [(REDRIVEN, b"3")])
    with Producer({"bootstrap.servers": servers}) as producer:
        producer.send(dead, b"before", headers=_letter(0, "failed", "E", "large"))
        _send_parts(producer, dead, 1, [packed[:300], packed[300:]], "large")
        producer.send(dead, b"behind", headers=_letter(2, "failed", "E", "large"))
        _send_parts(producer, dead, 3, [packed[:100], None, packed[200:]], "large")
        _send_parts(producer, dead, 4, [b"no letter", b"at all"], "large")
        _send_parts(producer, dead, 5, [often[:9], often[9:]], "large")
    base = {"topic": dead, "servers": servers, "max_attempts": 3}
    dry = run(parsed(OPTIONS, {**base, "dry_run": True}), spark)
    assert (dry.document["fit"], dry.document["put_back"]) == (3, 0)
    done = run(parsed(OPTIONS, base), spark)
    # Of one letter a part is missing, and of another the parts make none.
    assert (done.document["put_back"], done.document["in_parts"], done.has_findings) == (3, 4, True)
    back = everything(servers, "large")
    assert [record.value for record in back] == [b"before", b"value" * 100, b"behind"]
    assert (back[1].key, back[1].headers) == (b"key", (("own", b"h"), (REDRIVEN, b"2")))
    again = run(parsed(OPTIONS, base), spark)
    assert (again.document["put_back"], again.document["put_back_before"]) == (0, 0)
    with DeadLetters({"bootstrap.servers": servers}, dead) as letters:
        left = [(letter.record.value, letter.offsets) for letter in letters.letters()]
    assert left == [(b"often", (8, 9))]


def test_a_letter_in_parts_is_written_down_whole_or_not_at_all() -> None:
    parts = {3: (1, 3)}
    chosen, ledger = settle(Ledger(), [0, 1, 2, 3, 4], [3, 4], parts)
    assert (chosen, ledger) == ([3, 4], Ledger(0, ((1, 2), (3, 5))))
    assert [offset for offset in range(6) if ledger.has(offset)] == [1, 3, 4]
