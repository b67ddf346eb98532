"""Handlers that fail, hang, cannot read a record; restarts, rebalances and signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.parallel.churn import PARTITIONS, run_churn
from tests.parallel.helpers import Seen, commits, config, fill, make_topic, stop
from tests.waiting import eventually

from headrace import Consumer, Producer, metrics
from headrace.parallel import Model, ParallelConsumer, Pool, Ranges, Reject, RetriesExhaustedError, Retry, Window
from headrace.parallel.retries import ATTEMPT, DUE_MS, ERROR, ORIGIN_OFFSET, ORIGIN_TOPIC, REASON, header
from headrace.runtime.signals import ECHO_S

pytestmark = pytest.mark.slow

QUICK = Retry(local=1, backoff_s=(0.01, 0.02))


def read_all(address: str, topic: str, count: int) -> list[Any]:
    found: list[Any] = []
    with Consumer(config(address)) as consumer:
        consumer.assign([(topic, view.index) for view in consumer.partitions_for(topic)])
        eventually(lambda: found.extend(consumer.poll(0.2)) or len(found) >= count, f"{count} records of {topic}")
    return found


@pytest.mark.parametrize("model", [Pool(), Window(slot=5, slots=10), Ranges(size=10)], ids=lambda m: type(m).__name__)
def test_a_failing_record_goes_round_the_retry_topic_and_then_to_the_dead_letters(
    address: str, new_topic: Callable[..., str], model: Model
) -> None:
    topic = new_topic(1)
    retries, dead = f"{topic}.retry", f"{topic}.dead"
    make_topic(address, retries, 1)
    fill(address, topic, 50)
    tries: Counter[int] = Counter()
    early: list[int] = []
    seen = Seen()

    def handle(record: Any) -> None:
        due = header(record.headers, DUE_MS)
        if due is not None and time.time() * 1000 < int(due) - 1:
            early.append(record.offset)
        if record.value in (b"7", b"23"):
            tries[int(record.value)] += 1
            if record.value == b"7" or record.topic == topic:
                raise ValueError(f"no {record.value.decode()}")
        seen(record)

    retry = Retry(1, (0.01, 0.02), retries, attempts=2, topic_backoff_s=(0.3, 0.3), dead_letters=dead)
    consumer = ParallelConsumer(
        handle, topics=[topic], group=topic, config=config(address), model=model, order="none", workers=4, retry=retry
    )
    consumer.start()
    eventually(lambda: consumer.snapshot().counters.dead_letters == 1, "the dead letter")
    eventually(lambda: len(seen.order) >= 49, "the others, one of them in a second round")
    stop(consumer)
    assert not early
    # Two tries each on the topic itself and on both rounds; 23 is well in its first round.
    assert tries == {7: 6, 23: 3}
    letters = read_all(address, dead, 1)
    assert [letter.value for letter in letters] == [b"7"]
    headers = letters[0].headers
    assert header(headers, ATTEMPT) == "2"
    assert header(headers, ERROR) == "no 7"
    assert header(headers, REASON) == "failed"
    assert (header(headers, ORIGIN_TOPIC), header(headers, ORIGIN_OFFSET)) == (topic, "7")
    assert commits(address, topic, topic, 1)[0] == (50, "")
    assert commits(address, topic, retries, 1)[0] == (3, "")


def test_poison_goes_to_the_dead_letters_as_the_bytes_it_was(address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    with Producer({"bootstrap.servers": address}) as producer:
        for value in (b'{"n": 1}', b"not json \xff", b'{"n": 2}'):
            producer.send(topic, value, key=b"k")
    seen: list[Any] = []
    consumer = ParallelConsumer(
        lambda record: seen.append(record.value),
        topics=[topic],
        group=topic,
        config=config(address, **{"value.deserializer": "json"}),
        retry=Retry(local=3, topic=f"{topic}.retry", dead_letters=f"{topic}.dead"),
    )
    consumer.start()
    eventually(lambda: len(seen) == 2 and consumer.snapshot().counters.dead_letters == 1, "both and the dead letter")
    stop(consumer)
    assert seen == [{"n": 1}, {"n": 2}]
    assert consumer.snapshot().counters.poison == 1
    (letter,) = read_all(address, f"{topic}.dead", 1)
    assert (letter.key, letter.value, header(letter.headers, REASON)) == (b"k", b"not json \xff", "poison")


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "async"])
@pytest.mark.parametrize("model", [Pool(stall_s=0.3), Window(slot=5, slots=10, stall_s=0.3)], ids=["pool", "window"])
def test_a_handler_that_hangs_for_ever_is_given_up_and_the_rest_goes_on(
    address: str, new_topic: Callable[..., str], model: Model, is_async: bool
) -> None:
    topic = new_topic(2)
    fill(address, topic, 200)
    seen, for_ever = Seen(), threading.Event()

    def handle(record: Any) -> None:
        if record.value == b"20":
            for_ever.wait()
        seen(record)

    async def handle_async(record: Any) -> None:
        if record.value == b"20":
            import asyncio

            await asyncio.Event().wait()
        seen(record)

    consumer = ParallelConsumer(
        handle_async if is_async else handle,
        topics=[topic],
        group=topic,
        config=config(address),
        model=model,
        workers=4,
        retry=Retry(local=1, backoff_s=(0.01, 0.01), dead_letters=f"{topic}.dead"),
    )
    consumer.start()
    eventually(lambda: consumer.snapshot().counters.dead_letters == 1, "the dead letter")
    eventually(lambda: seen.distinct() == 199, "all others")
    stop(consumer)
    assert consumer.snapshot().counters.stalls == 2
    assert sum(offset for offset, _ in commits(address, topic, topic, 2).values()) == 200
    (letter,) = read_all(address, f"{topic}.dead", 1)
    assert header(letter.headers, REASON) == "stalled"
    for_ever.set()


def test_without_a_place_for_it_a_failing_record_stops_consuming_before_it(
    address: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    fill(address, topic, 100)

    def handle(record: Any) -> None:
        if record.value == b"42":
            raise ValueError("no")

    consumer = ParallelConsumer(
        handle, topics=[topic], group=topic, config=config(address), order="partition", retry=QUICK
    )
    consumer.start()
    with pytest.raises(RetriesExhaustedError, match="offset 42"):
        consumer.wait(30)
    assert commits(address, topic, topic, 1)[0][0] == 42


def test_a_rejected_record_is_not_tried_again(address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    fill(address, topic, 10)
    tries: Counter[bytes] = Counter()

    def handle(record: Any) -> None:
        tries[record.value] += 1
        if record.value == b"4":
            raise Reject("not for us")

    consumer = ParallelConsumer(
        handle, topics=[topic], group=topic, config=config(address), retry=Retry(5, dead_letters=f"{topic}.dead")
    )
    consumer.start()
    eventually(lambda: consumer.snapshot().counters.dead_letters == 1 and len(tries) == 10, "all")
    stop(consumer)
    assert tries[b"4"] == 1


def test_a_restart_repeats_only_what_was_unfinished(address: str, new_topic: Callable[..., str]) -> None:
    """The 0-99 / 100-199 case: a worker is stuck in the first slot, the second is done, the process goes."""
    topic = new_topic(1)
    fill(address, topic, 200)
    first, gate = Seen(), threading.Event()

    def stuck(record: Any) -> None:
        if record.offset < 100:
            gate.wait()
        first(record)

    model = Window(slot=100, slots=4, stall_s=None)
    options: dict[str, Any] = {
        "topics": [topic], "group": topic, "config": config(address), "model": model, "order": "none", "workers": 4
    }  # fmt: skip
    consumer = ParallelConsumer(stuck, drain_s=0.2, commit_every_s=0.05, **options)
    consumer.start()
    eventually(lambda: first.distinct() == 100, "the second slot")
    eventually(lambda: commits(address, topic, topic, 1).get(0, (1, ""))[1] != "", "its note")
    assert commits(address, topic, topic, 1)[0][0] == 0, "nothing above 0 may be committed"
    stop(consumer)
    second = Seen()
    heir = ParallelConsumer(second, **options)
    heir.start()
    eventually(lambda: second.distinct() == 100, "the first slot")
    eventually(lambda: heir.snapshot().partitions[0].start == 200, "the end")
    stop(heir)
    gate.set()
    assert sorted(offset for _, offset, _ in second.order) == list(range(100))
    assert heir.snapshot().counters.restored == 100
    assert commits(address, topic, topic, 1)[0] == (200, "")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_members_come_and_go_without_a_stall_or_a_lost_record(
    address: str, new_topic: Callable[..., str], strategy: str
) -> None:
    run_churn(address, new_topic(PARTITIONS), 5.0, strategy)


SCRIPT = """
import sys, time
from headrace.parallel import ParallelConsumer
from headrace.runtime import signals
signals.ECHO_S = float(sys.argv[4])
def handle(record):
    print("begun", flush=True)
    time.sleep(float(sys.argv[3]))
    print("ended", flush=True)
consumer = ParallelConsumer(handle, topics=[sys.argv[2]], group=sys.argv[2], workers=1,
    config={"bootstrap.servers": sys.argv[1], "auto.offset.reset": "earliest"})
plain_stop = consumer.stop
def stop():
    plain_stop()
    print("stopping", flush=True)
consumer.stop = stop
consumer.run()
print("through", flush=True)
"""


@contextmanager
def interrupted(address: str, topic: str, seconds: float, echo_s: float = ECHO_S) -> Iterator[subprocess.Popen[str]]:
    """A consumer whose handler takes so long, and had begun when Ctrl-C came; for `echo_s` any further is an echo."""
    fill(address, topic, 1)
    arguments = [sys.executable, "-c", SCRIPT, address, topic, str(seconds), str(echo_s)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        # Two that come before the first is heard would be one.
        assert process.stdout.readline() == "stopping\n"
        yield process


@pytest.mark.slow
def test_ctrl_c_drains_commits_and_leaves(address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    with interrupted(address, topic, 0.5) as process:
        output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == ("ended\nthrough\n", 0), errors
    assert commits(address, topic, topic, 1)[0] == (1, "")


@pytest.mark.slow
def test_an_echo_of_ctrl_c_is_not_a_second_one(address: str, new_topic: Callable[..., str]) -> None:
    with interrupted(address, new_topic(1), 0.5, echo_s=600.0) as process:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == ("ended\nthrough\n", 0), errors


@pytest.mark.slow
def test_a_second_ctrl_c_ends_it_at_once(address: str, new_topic: Callable[..., str]) -> None:
    with interrupted(address, new_topic(1), 600.0, echo_s=0.0) as process:
        process.send_signal(signal.SIGINT)
        # Far less than the handler takes.
        output, errors = process.communicate(timeout=60)
    assert output == ""
    assert "KeyboardInterrupt" in errors
    assert process.returncode != 0


def test_metrics_are_prometheus_text(address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    fill(address, topic, 10)
    seen = Seen()
    consumer = ParallelConsumer(seen, topics=[topic], group='my "group"', config=config(address))
    consumer.start()
    eventually(lambda: consumer.snapshot().counters.handled == 10, "all")
    text = metrics.text(consumer)
    stop(consumer)
    assert 'headrace_parallel_handled_total{group="my \\"group\\""} 10' in text
    assert f'headrace_parallel_partition_window_end{{group="my \\"group\\"",partition="0",topic="{topic}"}} 10' in text
    for line in text.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ", "headrace_parallel_")), line
