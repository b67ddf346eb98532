"""Options of consuming in parallel: a keyword that there is none of is refused, by a type checker and at run time."""

from __future__ import annotations

import inspect
import os
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace.client.consumer.config import CONSUMER_CONFIGS
from headrace.client.consumer.keywords import ConsumerKeywords
from headrace.config import ConfigError
from headrace.parallel import Limits, ParallelConsumer, Retry, Window, run

PROGRAM = """\
from headrace.parallel import ParallelConsumer, Pool, run

def handle(record: object) -> None: ...

run(handle, topics=["t"], group="g", workers=3, model=Pool(), auto_offset_reset="earliest")
run(handle, topics=["t"], group="g", worker=3)
run(handle, topics=["t"], group="g", workers="many")
run(handle, topics=["t"])
ParallelConsumer(handle, topics=["t"], group="g", auto_offset_rest="earliest")
"""


@pytest.mark.slow
def test_a_type_checker_finds_a_wrong_option(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary"]
    command += ["--cache-dir", os.environ.get("MYPY_CACHE_DIR", str(tmp_path)), "--ignore-missing-imports", str(file)]
    environment = os.environ | {"MYPYPATH": str(Path(headrace.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 1, done.stderr
    found = [line.split(":", 2) for line in done.stdout.splitlines() if "error:" in line]
    assert [int(number) for _, number, _ in found] == [6, 7, 8, 9], done.stdout
    assert 'Unexpected keyword argument "worker"' in done.stdout
    assert 'Missing named argument "group"' in done.stdout


def test_a_wrong_option_is_refused_with_the_nearest() -> None:
    def handle(record: object) -> None: ...

    with pytest.raises(TypeError, match=r"has no option worker, .*did you mean workers\?"):
        run(handle, topics=["t"], group="g", worker=3)  # type: ignore[call-arg]  # that is the mistake
    with pytest.raises(TypeError, match=r"did you mean auto_offset_reset\?"):
        ParallelConsumer(handle, topics=["t"], group="g", auto_ofset_reset="earliest")  # type: ignore[call-arg]  # ditto
    ParallelConsumer(handle, topics=["t"], group="g", bootstrap_servers="h:1", sasl_mechanisms="PLAIN")  # type: ignore[call-arg]  # librdkafka's name


def test_every_setting_of_the_consumer_is_a_keyword() -> None:
    assert sorted(ConsumerKeywords.__annotations__) == sorted(name.replace(".", "_") for name in CONSUMER_CONFIGS.names)


def test_help_shows_the_options_of_run() -> None:
    shown, made = inspect.signature(run), inspect.signature(ParallelConsumer)
    assert list(shown.parameters.values()) == list(made.parameters.values())
    # From Python 3.13 on, an option a line; from 3.14 on, types without quotes.
    text = " ".join(pydoc.plain(pydoc.render_doc(run)).split()).replace("run( ", "run(").replace("'", "")
    assert "run(handler: Callable[..., Any], *, topics: Collection[str] | str, group: str" in text
    assert "-> None" in text
    assert "with the same options" in text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Retry(backoff_s=0.1), r"Retry\.backoff_s is a pair of seconds, .* not 0\.1"),  # type: ignore[arg-type]
        (lambda: Retry(topic_backoff_s=(1, float("inf"))), r"Retry\.topic_backoff_s is a pair of seconds"),
        (lambda: Retry(local="3"), r"Retry\.local is 0 to 1000, not '3'"),  # type: ignore[arg-type]
        (lambda: Limits(records=None), r"Limits\.records is at least 1, not None"),  # type: ignore[arg-type]
        (lambda: Window(stall_s="30"), r"Window\.stall_s is more than 0 seconds"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
