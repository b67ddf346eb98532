"""`transactional=True`: a poison record becomes one dead letter, whenever the process is killed; zombies are fenced."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.parallel.helpers import Seen, commits, config, fill, make_topic, stop
from tests.waiting import eventually

from headrace import Consumer, Producer
from headrace.client.offsets import OffsetAndMetadata
from headrace.config import ConfigError
from headrace.parallel import Consumers, Model, ParallelConsumer, Pool, Ranges, Reject, Retry, Window
from headrace.parallel.retries import ORIGIN_OFFSET, header
from headrace.parallel.transactions import TransactionOutcome, Transactions
from headrace.runtime.real import RealClock
from headrace.topics import TopicPartition

pytestmark = pytest.mark.slow

POISON = 7
RECORDS = 210

# Dies by SIGKILL at a stage of its second transaction (or, without transactions, after its second dead letter).
VICTIM = """
import os, signal, sys, threading, time
from headrace import Producer
from headrace.parallel import ParallelConsumer, Pool, Reject, Retry

address, topic, stage, transactional = sys.argv[1:]
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
calls = {"offsets": 0, "commit": 0}
plain_offsets, plain_commit = Producer.send_offsets_to_transaction, Producer.commit_transaction

def send_offsets(self, *rest):
    calls["offsets"] += 1
    if stage == "records" and calls["offsets"] == 2:
        self.flush(5)
        die()
    plain_offsets(self, *rest)
    if stage == "offsets" and calls["offsets"] == 2:
        die()

def commit(self, *rest):
    calls["commit"] += 1
    if stage == "committing" and calls["commit"] == 2:
        threading.Timer(0.003, die).start()
    plain_commit(self, *rest)
    if stage == "committed" and calls["commit"] == 2:
        die()

Producer.send_offsets_to_transaction, Producer.commit_transaction = send_offsets, commit

def handle(record):
    time.sleep(0.003)
    if int(record.value) % 7 == 0:
        raise Reject("seven")

consumer = ParallelConsumer(handle, topics=[topic], group=topic, model=Pool(), order="key", workers=2,
    config={"bootstrap.servers": address, "auto.offset.reset": "earliest", "group.instance.id": "victim"},
    retry=Retry(dead_letters=topic + ".dead"), transactional=transactional == "yes", commit_every_s=60)
consumer.start()
while not consumer.has_ended(0.005):
    if transactional == "no" and stage != "none" and consumer.snapshot().counters.dead_letters >= 2:
        die()
    partitions = consumer.snapshot().partitions
    if partitions and sum(one.start or 0 for one in partitions) >= int(os.environ["RECORDS"]):
        consumer.stop()
"""


def letters_of(address: str, topic: str) -> Counter[str | None]:
    """How many dead letters there are of each offset, for one who reads committed."""
    found: Counter[str | None] = Counter()
    with Consumer(config(address, **{"isolation.level": "read_committed"})) as reader:
        partition = TopicPartition(topic, 0)
        reader.assign([partition])
        end = reader.end_offsets([partition])[partition]
        while reader.position(partition) < end:
            found.update(header(record.headers, ORIGIN_OFFSET) for record in reader.poll(0.2))
    return found


def run_victims(address: str, topic: str, stages: list[str], *, transactional: bool) -> Counter[str | None]:
    make_topic(address, f"{topic}.dead", 1)
    fill(address, topic, RECORDS)
    for stage in [*stages, "none"]:
        arguments = [sys.executable, "-c", VICTIM, address, topic, stage, "yes" if transactional else "no"]
        ended = subprocess.run(arguments, timeout=60, env={"RECORDS": str(RECORDS)}, check=False)
        assert ended.returncode == (0 if stage == "none" else -9), stage
    assert commits(address, topic, topic, 1)[0] == (RECORDS, "")
    return letters_of(address, f"{topic}.dead")


@pytest.mark.slow
def test_a_poison_record_is_one_dead_letter_wherever_the_process_is_killed(
    address: str, new_topic: Callable[..., str]
) -> None:
    stages = ["records", "offsets", "committing", "committed"]
    found = run_victims(address, new_topic(1), stages, transactional=True)
    assert found == {str(offset): 1 for offset in range(0, RECORDS, POISON)}


@pytest.mark.slow
def test_without_transactions_the_same_kills_show_some_letters_twice(
    address: str, new_topic: Callable[..., str]
) -> None:
    found = run_victims(address, new_topic(1), ["a", "b"], transactional=False)
    assert set(found) == {str(offset) for offset in range(0, RECORDS, POISON)}
    assert max(found.values()) > 1


@pytest.mark.parametrize(
    "model", [Pool(), Window(slot=5, slots=10), Ranges(size=20), Consumers()], ids=lambda m: type(m).__name__
)
def test_retries_and_dead_letters_go_with_the_offsets_that_pass_them(
    address: str, new_topic: Callable[..., str], model: Model
) -> None:
    topic = new_topic(2)
    retries, dead = f"{topic}.retry", f"{topic}.dead"
    make_topic(address, retries, 1)
    make_topic(address, dead, 1)
    fill(address, topic, 40)
    seen = Seen()

    def handle(record: Any) -> None:
        if int(record.value) % 10 == 3 and record.topic == topic:
            raise ValueError("once")
        if int(record.value) % 10 == 5:
            raise Reject("never")
        seen(record)

    order = "none" if isinstance(model, Ranges) else "partition"
    consumer = ParallelConsumer(
        handle,
        topics=[topic],
        group=topic,
        config=config(address),
        model=model,
        order=order,
        workers=2,
        retry=Retry(local=0, topic=retries, topic_backoff_s=(0.05, 0.05), dead_letters=dead),
        transactional=True,
    )
    consumer.start()
    eventually(lambda: consumer.snapshot().counters.dead_letters == 4, "the dead letters")
    eventually(lambda: len(seen.order) == 36, "all others")
    stop(consumer)
    assert sum(letters_of(address, dead).values()) == 4
    assert sum(offset for offset, _ in commits(address, topic, topic, 2).values()) == 40
    counters = consumer.snapshot().counters
    assert (counters.retry_topic, counters.handled) == (4, 36)


def test_a_member_that_the_group_has_given_up_writes_nothing(address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    partition = TopicPartition(topic, 0)
    with Consumer(config(address, **{"group.id": topic, "enable.auto.commit": False})) as consumer:
        consumer.subscribe([topic])
        eventually(lambda: bool(consumer.poll(0.05) or consumer.assignment()), "the assignment")
        identity = consumer.group_metadata()
    transactions = Transactions({"bootstrap.servers": address, "transactional.id": f"{topic}-zombie"}, RealClock())
    transactions.begin([(topic, b"late", None, [])], {partition: OffsetAndMetadata(5, "")}, identity)
    assert transactions.settle(20) is TransactionOutcome.ABORTED
    transactions.begin([(topic, b"well", None, [])], {}, identity)
    assert transactions.settle(20) is TransactionOutcome.COMMITTED
    transactions.close()
    with Consumer(config(address, **{"isolation.level": "read_committed"})) as reader:
        reader.assign([partition])
        found: list[Any] = []
        eventually(lambda: bool(found.extend(reader.poll(0.1)) or found), "what was committed")
    assert [record.value for record in found] == [b"well"]
    assert commits(address, topic, topic, 1) == {}


def test_a_letter_that_the_topic_refuses_does_not_hold_up_other_commits(
    address: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(1)
    make_topic(address, f"{topic}.dead", 1)
    fill(address, topic, 50)
    refused = threading.Event()
    plain = Producer.send

    def send(self: Producer, to: str, value: Any, *rest: Any, **more: Any) -> Any:
        if to == f"{topic}.dead" and value == b"3" and not refused.is_set():
            # As a record that is larger than the topic takes: its delivery fails, and the transaction with it.
            value = b"x" * 2_000_000
        return plain(self, to, value, *rest, **more)

    monkeypatch.setattr(Producer, "send", send)

    def handle(record: Any) -> None:
        if record.value in (b"3", b"4"):
            raise Reject("no")

    consumer = ParallelConsumer(
        handle,
        topics=[topic],
        group=topic,
        config=config(address),
        order="none",
        retry=Retry(dead_letters=f"{topic}.dead"),
        transactional=True,
        commit_every_s=0.05,
    )
    consumer.start()
    eventually(lambda: consumer.snapshot().counters.dead_letters == 1, "the other letter")
    eventually(lambda: consumer.snapshot().counters.produce_failures >= 2, "that it is refused again")
    eventually(lambda: commits(address, topic, topic, 1)[0][0] == 3, "the commit up to the refused one")
    refused.set()
    eventually(lambda: commits(address, topic, topic, 1)[0] == (50, ""), "all")
    stop(consumer)
    assert letters_of(address, f"{topic}.dead") == {"3": 1, "4": 1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give Retry a topic"),
        ({"retry": Retry(dead_letters="d"), "config": {"isolation.level": "read_uncommitted"}}, "read_committed"),
    ],
)
def test_what_transactions_cannot_do_without_is_said_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ParallelConsumer(print, topics=["t"], group="g", transactional=True, **options)
