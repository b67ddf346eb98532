"""Clients and forks: who hears of one, what a child may close, and a fork at any moment of other threads."""

from __future__ import annotations

import builtins
import os
import random
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from headrace import Admin, Consumer, NewTopic, Producer
from headrace.client.consumer.errors import ConsumerForkedError
from headrace.client.errors import ClientClosedError
from headrace.client.forks import ignore_forks, watch_forks
from headrace.late_imports import late_import
from headrace.net.sasl.oauthbearer import Token, TokenSource
from headrace.testing import broker

CHILD_S = 120.0


def in_a_child(work: Callable[[], None]) -> str:
    """What went wrong there; empty if nothing did. A child that hangs is ended, and said to hang."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        words = ""
        try:
            work()
        except BaseException:  # noqa: BLE001  # told to the parent, whose assertion shows it
            words = traceback.format_exc()
        finally:
            os.write(writer, words.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        ended, _, _ = select.select([pipe], [], [], CHILD_S)
        if not ended:
            os.kill(child, signal.SIGKILL)
        words = pipe.read().decode() if ended else "the child hangs"
    os.waitpid(child, 0)
    return words


class Failing:
    def _after_fork(self) -> None:
        raise AttributeError("half made")


class Told:
    pid = 0

    def _after_fork(self) -> None:
        self.pid = os.getpid()


def test_a_client_that_fails_in_the_child_does_not_keep_the_fork_from_the_others() -> None:
    # Sixteen, because a set has no order: some come after the failing one, whatever it is.
    failing, told = [Failing() for _ in range(8)], [Told() for _ in range(16)]
    for client in [*failing, *told]:
        watch_forks(client)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, b"%d" % sum(client.pid == os.getpid() for client in told))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"16"
    os.waitpid(child, 0)
    for client in [*failing, *told]:
        ignore_forks(client)


def test_an_admin_that_is_closed_in_a_child_goes_on_in_its_parent() -> None:
    with broker() as kafka, Admin(bootstrap_servers=kafka.address) as admin:
        for _ in range(3):
            admin.list_topics()
        assert in_a_child(admin.close) == ""
        for _ in range(3):
            admin.within(20).list_topics()


def test_an_admin_is_of_use_in_a_child_whatever_its_parent_was_doing() -> None:
    with broker() as kafka, Admin(bootstrap_servers=kafka.address) as admin:
        admin.list_topics()
        with admin._runner._lock:

            def work() -> None:
                admin.list_topics()
                admin.close()

            assert in_a_child(work) == ""
            assert in_a_child(admin.close) == ""


def test_a_token_is_fetched_in_a_child_while_the_parent_fetches_one() -> None:
    is_fetching, may_end = threading.Event(), threading.Event()

    def slowly() -> Token:
        if threading.current_thread() is thread:
            is_fetching.set()
            may_end.wait(CHILD_S)
        return Token("token")

    source = TokenSource(slowly)
    thread = threading.Thread(target=source.refresh)
    thread.start()
    assert is_fetching.wait(CHILD_S)
    assert in_a_child(source.refresh) == ""
    may_end.set()
    thread.join()


def test_a_child_does_not_wait_for_what_only_its_parent_learns() -> None:
    """Nor is anybody called back there: that is the parent's to do."""
    called = []
    with (
        broker() as kafka,
        Producer(bootstrap_servers=kafka.address, linger_ms=600_000) as producer,
        Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=600_000) as alone,
    ):
        handles = []
        for one in (producer, alone):
            note = {"on_delivery": lambda *_: called.append(os.getpid())}
            handles.append(one.send("t", b"one", **note))
            handles.append(one.send_batch("t", [b"many"] * 10, **note))
            handles.append(one.send_batch("t", [b"many"] * 10, timestamps=[None] * 10, **note))
        for one, where in ((producer, "incomplete"), (alone, "held")):

            def is_drained(one: Any = one, where: str = where) -> bool:
                accumulator = one._core.accumulator
                return getattr(accumulator, where) and not (accumulator.pending or accumulator.taken)

            eventually(is_drained, where)

        def wait() -> None:
            for handle in handles:
                assert handle.done()
                with pytest.raises(ClientClosedError, match="before the fork"):
                    handle.result()
            assert not called
            producer.send("t", b"from the child")
            producer.flush(CHILD_S)

        assert in_a_child(wait) == ""
        producer.flush(CHILD_S)
        alone.close(0)
        assert [handle.exception() is None for handle in handles] == [True] * 3 + [False] * 3
        assert called == [os.getpid()] * 6


@pytest.mark.slow
def test_a_fork_at_any_moment_of_other_threads(often_switching: None) -> None:
    """Threads produce, consume and ask; children that are forked meanwhile do the same with what is theirs to use."""
    seed = int(os.environ.get("SEED", "7"))
    rng = random.Random(seed)
    stop = threading.Event()
    with broker() as kafka:
        servers = kafka.address
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic("t", 2)]).all()
        producer, admin = Producer(bootstrap_servers=servers), Admin(bootstrap_servers=servers)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        failures: list[BaseException] = []

        def again(work: Callable[[], object]) -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:  # noqa: BLE001  # shown by the assertion
                failures.append(error)

        def come_and_go() -> None:
            """Clients that are made and closed while others fork."""
            with Producer(bootstrap_servers=servers) as one:
                one.send("t", b"x").result(CHILD_S)
            with Consumer(bootstrap_servers=servers, group_id="other", auto_offset_reset="earliest") as two:
                two.subscribe(["t"])
                two.poll(0.05)

        works: list[Callable[[], object]] = [
            lambda: producer.send("t", b"x").result(CHILD_S),
            lambda: consumer.poll(0.01),
            admin.list_topics,
            come_and_go,
        ]
        threads = [threading.Thread(target=again, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        eventually(lambda: consumer._closed or consumer._heartbeat_thread is not None, "a member", CHILD_S)

        def work() -> None:
            producer.send("t", b"from a child").result(CHILD_S / 4)
            producer.close()
            with pytest.raises(ConsumerForkedError):
                consumer.poll(0)
            consumer.close()
            admin.within(30).list_topics()
            admin.close()

        said = []
        for _ in range(int(os.environ.get("FORKS", "6"))):
            time.sleep(rng.random() * 0.02)
            said.append(in_a_child(work))
        stop.set()
        for thread in threads:
            thread.join(CHILD_S)
        assert [words for words in said if words] == []
        assert failures == []
        producer.close()
        consumer.close()
        admin.close()


def test_a_fork_waits_for_what_another_thread_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the module stays locked in the child, which waits for it for ever."""
    (tmp_path / "slow_module.py").write_text("import builtins\nbuiltins.slow_import()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    begun, go, forked = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(builtins, "slow_import", lambda: (begun.set(), go.wait(CHILD_S)), raising=False)
    importing = threading.Thread(target=late_import, args=("slow_module",))
    importing.start()
    assert begun.wait(CHILD_S)
    said: list[str] = []

    def fork() -> None:
        said.append(in_a_child(lambda: late_import("slow_module")))
        forked.set()

    forking = threading.Thread(target=fork)
    forking.start()
    assert not forked.wait(0.2)
    go.set()
    forking.join(CHILD_S)
    importing.join(CHILD_S)
    assert said == [""]
