"""Commits whose outcome nobody has heard, and members that were thought dead: nothing is lost, nothing is doubled."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.parallel.handlers import lines
from tests.parallel.helpers import commits, config, fill, make_topic, stop
from tests.parallel.test_transactional import letters_of
from tests.waiting import DEADLINE_S, eventually

from headrace import Admin, Producer
from headrace.parallel import ParallelConsumer, Reject, Retry
from headrace.parallel.finished import decode_finished
from headrace.parallel.transactions import TransactionOutcome, Transactions
from headrace.testing import Direction, FaultProxy, broker

pytestmark = pytest.mark.slow

RECORDS = 70
FOR_EVER = 1 << 40


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """In front of a broker of its own, which sends clients here."""
    with FaultProxy() as proxy:
        often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
        with broker(overrides={**proxy.overrides, **often}) as kafka:
            proxy.target = kafka.address
            yield proxy


def state_of(address: str, transactional_id: str) -> str:
    with Admin({"bootstrap.servers": address}) as admin:
        return str(admin.describe_transactions([transactional_id]).all()[transactional_id].state)


@pytest.mark.parametrize("lost", ["answer", "request", "request, until it has timed out"])
def test_a_commit_of_unknown_outcome_loses_and_doubles_nothing(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    address = proxy.address
    topic, retries, dead = "orders", "orders.retry", "orders.dead"
    for name in (topic, retries, dead):
        make_topic(address, name, 1)
    fill(address, topic, RECORDS)
    timeout_ms = 1_000 if "timed out" in lost else 60_000
    direction = Direction.TO_CLIENT if lost == "answer" else Direction.TO_BROKER
    is_ending = threading.Event()
    letters: list[Any] = []
    outcomes: list[TransactionOutcome] = []
    plain_begin, plain_settle = Transactions.begin, Transactions.settle
    plain_commit = Producer.commit_transaction

    def begin(self: Transactions, messages: list[Any], *rest: Any) -> None:
        letters[:] = messages
        plain_begin(self, messages, *rest)

    def commit(self: Producer, timeout: float | None = None) -> None:
        if letters and not is_ending.is_set():
            # So that what is lost is about the end of the transaction.
            self.flush(DEADLINE_S)
            # Those who connect later, to look, are not held back.
            proxy.reorder(FOR_EVER, direction)
            is_ending.set()
        plain_commit(self, timeout)

    def settle(self: Transactions, seconds: float) -> TransactionOutcome:
        outcomes.append(plain_settle(self, seconds))
        return outcomes[-1]

    monkeypatch.setattr(Producer, "commit_transaction", commit)
    monkeypatch.setattr(Transactions, "begin", begin)
    monkeypatch.setattr(Transactions, "settle", settle)

    def handle(record: Any) -> None:
        if int(record.value) % 7 == 0:
            raise Reject("seven")
        if int(record.value) % 7 == 1 and record.topic == topic:
            raise ValueError("once")

    consumer = ParallelConsumer(
        handle,
        topics=[topic],
        group=topic,
        config=config(address, **{"group.instance.id": "one"}),
        producer_config={"transaction.timeout.ms": timeout_ms},
        retry=Retry(local=0, topic=retries, topic_backoff_s=(0.01, 0.01), dead_letters=dead),
        transactional=True,
        workers=4,
    )
    consumer.start()
    assert is_ending.wait(DEADLINE_S)
    if lost == "answer":
        eventually(lambda: letters_of(address, dead), "the letters, for one who reads committed")
    if "timed out" in lost:
        eventually(lambda: state_of(address, f"{topic}-one") == "CompleteAbort", "the end of the transaction")
    eventually(lambda: TransactionOutcome.UNKNOWN in outcomes, "that the outcome is not known")
    proxy.cut()
    proxy.resume()
    eventually(lambda: commits(address, topic, topic, 1).get(0) == (RECORDS, ""), "all of the topic")
    eventually(lambda: commits(address, topic, retries, 1).get(0, (0, ""))[0] >= RECORDS // 7, "the second round")
    stop(consumer)
    assert letters_of(address, dead) == {str(offset): 1 for offset in range(0, RECORDS, 7)}
    assert letters_of(address, retries) == {str(offset): 1 for offset in range(1, RECORDS, 7)}


# Handles all at once but the record STUCK: it waits there for a file, and then fails.
ZOMBIE = """
import os, sys, time
from headrace.parallel import ParallelConsumer, Reject, Retry
from tests.parallel.handlers import Writer

address, topic, transactional, stuck, path = sys.argv[1:]
write = Writer(path)

def handle(record):
    if record.offset == int(stuck):
        open(path + ".stuck", "x").close()
        while not os.path.exists(path + ".go"):
            time.sleep(0.001)
        raise Reject("late")
    write(record)

ParallelConsumer(handle, topics=[topic], group=topic, order="none", workers=4, commit_every_s=0.05,
    config={"bootstrap.servers": address, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 200},
    retry=Retry(dead_letters=topic + ".dead"), transactional=transactional == "yes").run()
"""
STUCK = 30


@contextlib.contextmanager
def zombie(address: str, topic: str, path: str, *, transactional: bool) -> Iterator[Any]:
    yes = "yes" if transactional else "no"
    arguments = [sys.executable, "-c", ZOMBIE, address, topic, yes, str(STUCK), path]
    with subprocess.Popen(arguments) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "plain"])
def test_what_a_stopped_member_brings_late_is_not_committed_over_the_newer(
    address: str, new_topic: Callable[..., str], tmp_path: Path, transactional: bool
) -> None:
    """No session is short: a machine that stalls would end those of members who run, too."""
    topic, path = new_topic(1), str(tmp_path / "handled")
    make_topic(address, f"{topic}.dead", 1)
    fill(address, topic, 100)
    handled: Counter[int] = Counter()

    def handle(record: Any) -> None:
        handled[record.offset] += 1
        if record.offset == STUCK:
            raise Reject("in time")

    def committed() -> tuple[int, str]:
        return commits(address, topic, topic, 1).get(0, (0, ""))

    with zombie(address, topic, path, transactional=transactional) as process:
        eventually(lambda: len(lines(path)) == 99 and Path(f"{path}.stuck").exists(), "all but the stuck one")
        eventually(lambda: decode_finished(*committed()) == [(STUCK + 1, 100)], "their commit")
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        remove_all(address, topic)
        heir = ParallelConsumer(
            handle,
            topics=[topic],
            group=topic,
            config=config(address, **{"heartbeat.interval.ms": 200}),
            order="none",
            workers=4,
            retry=Retry(dead_letters=f"{topic}.dead"),
            transactional=transactional,
            commit_every_s=0.05,
        )
        heir.start()
        fill(address, topic, 100)
        eventually(lambda: committed() == (200, ""), "that another has taken over")
        assert handled == dict.fromkeys((STUCK, *range(100, 200)), 1)
        Path(f"{path}.go").touch()
        process.send_signal(signal.SIGCONT)
        offsets: list[int] = []

        def look() -> tuple[int, str]:
            found = committed()
            offsets.append(found[0])
            return found

        eventually(lambda: look() and members(address, topic) == 2, "that the stopped one is back")
        stop(heir)
        fill(address, topic, 100)
        eventually(lambda: look() == (300, ""), "that it goes on, now alone")
    assert offsets == sorted(offsets), "an older commit over a newer one"
    by_zombie = Counter(offset for _, offset, *_ in lines(path))
    assert set(handled + by_zombie) == set(range(300))
    # What its last fetch had brought it may begin before it hears that it is out: that is handled twice, and dropped.
    twice = {offset for offset, times in (handled + by_zombie).items() if times > 1}
    assert twice <= set(range(100, 200))
    letters = letters_of(address, f"{topic}.dead")
    assert set(letters) == {str(STUCK)}
    # Without transactions the late letter may have been written before the member heard that it was out.
    assert letters[str(STUCK)] == 1 or not transactional


def remove_all(address: str, group: str) -> None:
    """As the end of their sessions does."""
    with Admin({"bootstrap.servers": address}) as admin:
        admin.remove_members(group).all()


def members(address: str, group: str) -> int:
    with Admin({"bootstrap.servers": address}) as admin:
        return len(admin.describe_groups([group]).all()[group].members)
