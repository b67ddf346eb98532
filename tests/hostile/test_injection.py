"""What clients call themselves, and what records hold, reaches the log and terminals as text, and as nothing else."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import sys

import pytest

from headrace.cli import formats
from headrace.cli.output import Column, note, print_json, styled, table
from headrace.cli.start import set_up_logging
from headrace.records import Batch, build_batch, decode_columns
from headrace.topics import TopicPartition
from headrace.words import visible, visible_json

EVIL = "one\r\n12:00:00.000 ERROR broker: forged \x1b[2J\x1b]0;title\x07 \x9b31m \u202egnp.exe \u2028 \x7f"
UNSEEN = set("\r\x1b\x07\x9b\u202e\u2028\x7f\x00")


def is_harmless(text: str) -> bool:
    return not UNSEEN & set(text)


def test_the_log_has_one_line_for_one_event(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        set_up_logging("info")
        logging.getLogger("headrace.broker").warning("a client called %s did something", EVIL)
        try:
            raise ValueError(EVIL)
        except ValueError:
            logging.getLogger("headrace.broker").exception("a request failed")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    lines = capfd.readouterr().err.splitlines()
    assert "forged" in lines[0]
    assert "\\x1b[2J" in lines[0]
    assert "a request failed" in lines[1]
    assert is_harmless("".join(lines))


def test_tables_and_styled_text_show_what_is_there() -> None:
    lines = table([{"group": EVIL, "member": EVIL}], [Column("group", "GROUP"), Column("member", "MEMBER")], 1000)
    assert len(lines) == 2
    assert is_harmless("".join(lines))
    assert is_harmless(styled(EVIL, "1"))
    assert visible("plain ünïcode 漢字 ✓") == "plain ünïcode 漢字 ✓"


def test_remarks_keep_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    note("two\nlines")
    assert capsys.readouterr().err == "two\nlines\n"


def test_json_says_the_same_without_what_terminals_act_upon(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({EVIL: [EVIL]})
    printed = capsys.readouterr().out
    assert is_harmless(printed)
    assert json.loads(printed) == {EVIL: [EVIL]}
    assert json.loads(visible_json(json.dumps("ü\t\n\x9b", ensure_ascii=False))) == "ü\t\n\x9b"


@pytest.mark.parametrize("form", ["value", "key-value", "json", "hex", "%t %k %s %h"])
def test_records_are_raw_in_a_pipe_and_escaped_on_a_terminal(form: str) -> None:
    raw = EVIL.encode() + b"\xff\x9b"
    columns = decode_columns(Batch(build_batch([(1, raw, raw, (("h", raw),))])))
    write = formats.writer_for(form, r"\t")
    partition = TopicPartition("t", 0)
    shown = formats.for_terminals(write)(partition, columns)
    assert is_harmless(shown.decode())
    if form in ("value", "key-value", "%t %k %s %h"):
        assert raw in write(partition, columns)


def test_consume_escapes_where_a_terminal_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    main, other = pty.openpty()
    try:
        with open(other, "w", closefd=False) as terminal:
            monkeypatch.setattr(sys, "stdout", terminal)
            assert sys.stdout.isatty()
            print_json(EVIL)
        assert is_harmless(os.read(main, 4096).decode().replace("\r\n", "\n"))
    finally:
        os.close(main)
        os.close(other)
    assert not io.StringIO().isatty()
