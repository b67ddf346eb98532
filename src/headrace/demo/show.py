"""`headrace demo --spark`: a million clicks through Spark, exactly once, while a member of a group, the driver and a
broker are killed.

Everything that is said is measured in the run: the duplicates of the at-least-once sink too, which runs beside the
exactly-once one in the same driver and dies of the same kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.app import Interrupted
from headrace.cli.console_beside import console_beside
from headrace.cli.group import group_documents
from headrace.cli.output import CommandError, count, size
from headrace.client.admin import Admin, NewTopic, OffsetSpec
from headrace.client.consumer.blocking import Consumer
from headrace.client.producer.blocking import Producer
from headrace.demo.brokers import BROKERS, Brokers, is_whole, leaders
from headrace.demo.show_driver import CLEAN, DEAD, PLAIN, PLAIN_PARTITIONS, SOURCE
from headrace.demo.tour import Tour, bars
from headrace.runtime.free_ports import free_ports
from headrace.spark.pipelines.auditing import headline
from headrace.topics import TopicPartition

PARTITIONS = 4
GROUP = "readers"
MEMBERS = ("anna", "ben", "cleo")
SESSION_TIMEOUT_MS = 1_500
_STAY_PAUSE_S = 0.05
_DEADLINE_S = 240.0
_POLL_S = 0.3
_POLL_FAST_S = 0.05  # a micro-batch is in the middle for a moment only
_PLAIN_WRITTEN = (0.05, 0.85, 0.97)  # of the at-least-once sink's only micro-batch: the middle, its end, too late
_SEND_ROWS = 20_000
_USERS = 20_000
_EVENTS = (b"view", b"view", b"view", b"click", b"click", b"search", b"buy")
_PAGES = (b"/", b"/shop", b"/cart", b"/help", b"/sale", b"/news")
_PICTURE_WIDTH = 60
_BESIDE_PICTURE = len("  at least once  " + "  1,000,000/s at most")
_GO_ON = (
    ("headrace cluster start", "three brokers, in the background"),
    ("headrace cluster status --watch", "who leads; try `headrace cluster kill 2`"),
    ("headrace pipeline list", "pipelines that are ready to run"),
    ("headrace pipeline run activity --help", "what this one takes"),
    ("headrace pipeline run audit --help", "check topics of any Kafka"),
    ("headrace pipeline status", "how far pipelines are"),
    ("headrace demo", "the short tour, without Spark"),
    ("docs/pipelines.md, docs/spark.md", "how it works, and from Python"),
)


def missing_for_spark() -> str | None:
    """What the show lacks on this machine, in a sentence; None when nothing."""
    try:
        import numpy  # noqa: F401  # only whether they are there
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        return f"The show needs Spark, and {error.name} is not installed: pip install 'headrace[spark]'."
    from headrace.spark.java import JavaNotFoundError, find_java

    try:
        find_java()
    except JavaNotFoundError as error:
        return f"The show needs Spark: {error}."
    return None


@dataclass(slots=True)
class Samples:
    """How many records topics had, over time."""

    times: list[float] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    plain: list[int] = field(default_factory=list)

    def rates(self, numbers: list[int], width: int) -> list[float]:
        """Records a second in `width` equal spans of time."""
        if len(self.times) < 2:
            return []
        start, end = self.times[0], self.times[-1]
        edges = [start + (end - start) * at / width for at in range(width + 1)]
        at_edge = [numbers[min(bisect_left(self.times, edge), len(numbers) - 1)] for edge in edges]
        span = (end - start) / width
        return [max(0, after - before) / span for before, after in pairwise(at_edge)]

    def column(self, moment: float, width: int) -> int:
        start, end = self.times[0], self.times[-1]
        return min(width - 1, int((moment - start) / max(end - start, 1e-9) * width))


class Driver:
    """The Spark driver as a child. Killed as a whole: Python and its JVM."""

    def __init__(self, servers: str, directory: Path, events: int, *flags: str) -> None:
        self._log = directory / "driver.log"
        command = [sys.executable, "-m", "headrace.demo.show_driver", servers, str(directory), str(events), *flags]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        self.pid = self._process.pid
        self.said: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.said.append(json.loads(line))

    def events_at(self, at: str) -> list[dict[str, Any]]:
        return [one for one in self.said if one["at"] == at]

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def check(self) -> None:
        """Raise if it ended although it should not have."""
        if self._process.poll() not in (None, 0):
            lines = self._log.read_text(errors="replace").strip().splitlines()
            raise CommandError("the Spark driver failed; it said at the end:\n" + "\n".join(lines[-15:]))

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def wait(self) -> None:
        self._process.wait()
        self._reader.join()
        self.check()


class Show(Tour):
    """The steps, in order; what can happen at the same time does."""

    def __init__(self, console: Console, directory: Path, events: int, *, stays: bool = False) -> None:
        super().__init__(console)
        self._stays = stays
        self._directory = directory
        self._events = events
        self._brokers = Brokers(directory / "cluster")
        self._drivers: list[Driver] = []
        self._members: dict[str, subprocess.Popen[bytes]] = {}
        self._samples = Samples()
        self._plain_events = 0
        self._killed_at: list[float] = []
        self._left = 0

    def run(self) -> None:
        self._title(f"{count(self._events)} clicks, exactly once.")
        try:
            self._start()
            with self._brokers.admin() as admin:
                self._produce(admin)
                self._drivers[-1].go()
                self._rebalance(admin)
                self._kill_driver(admin)
                self._kill_broker(admin)
                self._catch_up(admin)
                self._audit(admin)
            if self._stays:
                self._stay()
        finally:
            for member in self._members.values():
                member.kill()
                member.wait()
            for driver in self._drivers:
                driver.kill()
            self._brokers.kill()
        self._farewell(_GO_ON)

    def _wait_for(self, condition: Callable[[], bool], what: str, poll_s: float = _POLL_S) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            for driver in self._drivers[-1:]:
                driver.check()
            if time.monotonic() > deadline:
                raise CommandError(f"the show waited {_DEADLINE_S:.0f} s for {what}, and gave up")
            time.sleep(poll_s)

    # --- 1, 2: brokers, and clicks

    def _start(self) -> None:
        self._step("1  Three brokers, and Spark")
        took = self._brokers.start()
        ports = ", ".join(map(str, self._brokers.ports))
        self._say(f"Three brokers, ports {ports}, after {took:.1f} s. Spark is starting beside.")
        with self._brokers.admin() as admin:
            admin.create_topics([NewTopic(name, PARTITIONS) for name in (SOURCE, CLEAN, PLAIN)]).all()
            admin.create_topics([NewTopic(DEAD, 1)]).all()
            shown = _who_leads(leaders(admin, CLEAN))
        self._say("Each partition is led by one broker, and copied by the two others.")
        self._say(f"  {CLEAN}: {shown}")
        self._drivers.append(self._driver("--wait"))

    def _driver(self, *flags: str) -> Driver:
        return Driver(self._brokers.addresses, self._directory, self._events, *flags)

    def _produce(self, admin: Admin) -> None:
        self._step(f"2  {count(self._events)} clicks")
        rng = random.Random(2026)
        # Zipf: the n-th user clicks 1/n as often as the first.
        weights = list(accumulate(1 / rank for rank in range(1, _USERS + 1)))
        rates: list[float] = []
        total = 0
        at_ms = int(time.time() * 1000) - self._events
        began = time.monotonic()
        with Producer(
            {"bootstrap.servers": self._brokers.addresses, "compression.type": "lz4", "linger.ms": 5}
        ) as producer:
            waiting = []
            for start in range(0, self._events, _SEND_ROWS):
                sent_at = time.monotonic()
                numbers = range(start, min(start + _SEND_ROWS, self._events))
                users = rng.choices(range(_USERS), cum_weights=weights, k=len(numbers))
                keys = [b"user-%d" % user for user in users]
                values = [_click(number, at_ms, user) for number, user in zip(numbers, users)]
                waiting.append(producer.send_batch(SOURCE, values, keys))
                if len(waiting) > 3:
                    waiting.pop(0).result(60)
                total += sum(map(len, values))
                rates.append(len(numbers) / (time.monotonic() - sent_at))
            for one in waiting:
                one.result(60)
        took = time.monotonic() - began
        self._say("Keyed by user, a few of whom click most (Zipf); idempotent, acks=all, lz4. The first:")
        self._say(f"  {_click(0, at_ms, users[0]).decode()}")
        said = f"  {count(round(self._events / took))} records/s, {size(round(total / took))}/s, with one core"
        self._say(Text.assemble("acknowledged  ", (bars(rates), "green"), said))
        ends = self._ends(admin, SOURCE, committed=True)
        self._plain_events = sum(ends[TopicPartition(SOURCE, number)] for number in PLAIN_PARTITIONS)

    # --- 3: a member dies

    def _rebalance(self, admin: Admin) -> None:
        self._step(f"3  The group {GROUP}: a member is killed")
        for name in MEMBERS:
            command = [sys.executable, "-m", "headrace.demo.show_member", self._brokers.addresses, GROUP, SOURCE, name]
            self._members[name] = subprocess.Popen([*command, str(SESSION_TIMEOUT_MS)], stderr=subprocess.DEVNULL)
        self._wait_for(lambda: len(self._owners(admin)) == len(MEMBERS), "the group's members")
        before = self._owners(admin)
        victim = max(before, key=lambda name: len(before[name]))
        killed_at = time.monotonic()
        self._members[victim].kill()
        self._wait_for(lambda: victim not in (now := self._owners(admin)) and _all(now) == PARTITIONS, "the rebalance")
        took = time.monotonic() - killed_at
        after = self._owners(admin)
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("MEMBER", "BEFORE", "", "AFTER"):
            shown.add_column(title)
        for name in sorted(before):
            gone = name == victim
            now = Text("kill -9", style="red") if gone else Text(", ".join(after.get(name, [])), style="green")
            shown.add_row(name, ", ".join(before[name]), "→", now)
        self._say(shown)
        self._say(f"Missed and replaced after {took:.1f} s (session.timeout.ms={SESSION_TIMEOUT_MS}).")
        for member in self._members.values():
            member.kill()
            member.wait()

    def _owners(self, admin: Admin) -> dict[str, list[str]]:
        documents, _ = group_documents(admin, [GROUP])
        members = documents[0]["members"] if documents else []
        return {one["client"]: one["partitions"] for one in members if one["partitions"]}

    # --- 4: the driver dies

    def _kill_driver(self, admin: Admin) -> None:
        self._step("4  The pipeline `activity`, exactly once: the Spark driver is killed")
        first = self._drivers[-1]
        self._wait_for(lambda: bool(first.events_at("ready")), "Spark")
        ready = first.events_at("ready")[0]
        self._say(f"Spark {ready['spark']} was ready after {ready['seconds']:.1f} s. Raw clicks → typed rows, in")
        self._say("large transactions; beside it half of them go through the at-least-once sink.")
        # In the middle of a micro-batch of both: some of it is written, and nobody has noted that.
        self._wait_for(lambda: self._is_in_the_middle(admin), "the middle of a micro-batch", _POLL_FAST_S)
        first.kill()
        killed_at = time.monotonic()
        ends, stable = self._ends(admin, CLEAN, committed=False), self._ends(admin, CLEAN, committed=True)
        left = sum(ends.values()) - sum(stable.values())
        self._say(
            Text.assemble(
                ("kill -9 ", "red"), f"{first.pid}: {count(self._sample(admin)[0])} rows are committed, "
                + (f"{count(left)} more lie in a transaction that nobody will end." if left
                   else "and nothing more is written yet."),
            )
        )  # fmt: skip
        self._drivers.append(self._driver())
        self._killed_at.append(killed_at)
        self._left = left

    # --- 5: a broker dies

    def _kill_broker(self, admin: Admin) -> None:
        self._step("5  Spark goes on from its checkpoint: a broker is killed")
        driver = self._drivers[-1]
        before = self._sample(admin)[0]
        # In the middle of a transaction that is not the first one's remainder.
        self._wait_for(
            lambda: bool(driver.events_at("done")) or self._writes_beyond(admin, before), "a transaction", _POLL_FAST_S
        )
        if driver.events_at("done"):
            raise CommandError("the pipeline was done before a broker could be killed: try again with more --events")
        if self._left:
            self._say(f"The transaction that was left open is fenced: its {count(self._left)} rows are aborted.")
        self._killed_at.append(time.monotonic())
        done = self._brokers.kill_leader(admin, CLEAN)
        led = f"it led {done.led} of {PARTITIONS} partitions of {CLEAN}"
        self._say(Text.assemble(("kill -9 ", "red"), f"{done.pid}: broker {done.killed}, {led}."))
        self._say(f"{done.leaders_s:.2f} s later others lead: {_who_leads(done.leaders)}.")
        back_s = self._brokers.restart(done.killed)
        self._say(f"Broker {done.killed} is started again, after {back_s:.1f} s it is there. Spark goes on writing.")

    def _writes_beyond(self, admin: Admin, before: int) -> bool:
        committed, _ = self._sample(admin)
        return committed > before and sum(self._ends(admin, CLEAN, committed=False).values()) > committed + 100

    def _catch_up(self, admin: Admin) -> None:
        driver = self._drivers[-1]

        def is_done() -> bool:
            self._sample(admin)
            return bool(driver.events_at("done"))

        self._wait_for(is_done, "the pipeline to catch up")
        took = time.monotonic() - self._killed_at[0]
        self._say(f"{took:.0f} s after the first kill all is done; the second needed no hand on Spark.")
        self._wait_for(lambda: all(is_whole(admin, name) for name in (SOURCE, CLEAN, PLAIN)), "all replicas in sync")
        self._say(f"All {BROKERS} copies of everything are in sync again.")
        self._picture()

    def _is_in_the_middle(self, admin: Admin) -> bool:
        committed, plain = self._sample(admin)
        has_open = sum(self._ends(admin, CLEAN, committed=False).values()) > committed + 100
        if plain >= self._plain_events or committed >= self._events:
            raise CommandError("the pipeline was done before it could be killed: try again with more --events")
        # Both at once is the better show; when its time runs out, the one that the comparison needs will do.
        least, enough, most = _PLAIN_WRITTEN
        written = plain / self._plain_events
        return least < written < most and (has_open or written > enough)

    def _ends(self, admin: Admin, topic: str, *, committed: bool) -> dict[TopicPartition, int]:
        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(PARTITIONS)}
        level = "read_committed" if committed else "read_uncommitted"
        return {one: info.offset for one, info in admin.list_offsets(wanted, isolation_level=level).all().items()}

    def _sample(self, admin: Admin) -> tuple[int, int]:
        """How many records are committed, and how many the other sink has written; noted for the picture."""
        committed = sum(self._ends(admin, CLEAN, committed=True).values())
        plain = sum(self._ends(admin, PLAIN, committed=True).values())
        self._samples.times.append(time.monotonic())
        self._samples.committed.append(committed)
        self._samples.plain.append(plain)
        return committed, plain

    def _picture(self) -> None:
        samples, width = self._samples, min(_PICTURE_WIDTH, self._console.width - _BESIDE_PICTURE)
        seconds = samples.times[-1] - samples.times[0]
        self._say("")
        for name, numbers, style in (
            ("exactly once ", samples.committed, "green"),
            ("at least once", samples.plain, "yellow"),
        ):
            rates = samples.rates(numbers, width)
            self._say(
                Text.assemble(
                    f"  {name}  ", (bars(rates, width, floor=0), style), f"  {count(round(max(rates)))}/s at most"
                )
            )
        axis = ["─"] * width
        for moment in self._killed_at:
            axis[samples.column(moment, width)] = "✗"
        self._say(Text.assemble("  records/s      ", ("".join(axis), "dim"), f"  {seconds:.0f} s, ✗ kill -9"))

    # --- at last: looking

    def _stay(self) -> None:
        """Leave it all running, with a click now and then, until Ctrl-C; and a console to look at it."""
        self._step("7  Look around")
        (port,) = free_ports(1)
        rng = random.Random(7)
        number = self._events
        with console_beside(self._brokers.addresses, port, allow_changes=True):
            shown = Text.assemble("The console is at ", (f"http://127.0.0.1:{port}/", "bold"), "  (Ctrl-C ends it all)")
            self._say(shown)
            settings = {"bootstrap.servers": self._brokers.addresses}
            with contextlib.suppress(Interrupted), Producer(settings) as producer:
                while True:
                    user = rng.randrange(_USERS)
                    producer.send(SOURCE, _click(number, int(time.time() * 1000), user), key=b"user-%d" % user)
                    number += 1
                    time.sleep(_STAY_PAUSE_S)

    # --- 6: the audit

    def _audit(self, admin: Admin) -> None:
        self._step("6  The audit: every click, in and out")
        driver = self._drivers[-1]
        out, again = self._count_plain(admin)
        self._wait_for(lambda: bool(driver.events_at("audit")), "the audit")
        driver.wait()
        once = driver.events_at("audit")[0]["document"]
        lost = self._plain_events - (out - again)
        other = f"in {self._plain_events:,} · out {out:,} · lost {lost:,} · duplicated {again:,}"
        self._say(Text.assemble("  exactly once  ", (headline(once), "bold green")))
        self._say(Text.assemble("  at least once ", (other, "yellow")))
        log = once["logs"]["against"]
        self._say(
            f"The {count(again)} duplicates are what the driver's death cost the at-least-once sink.\n"
            f"The other's {count(log['aborted_records'])} unfinished records were aborted, and no reader sees them."
        )
        groups = [group for group in admin.list_groups() if group.group_id.startswith("activity-")]
        documents, _ = group_documents(admin, [group.group_id for group in groups])
        for document in documents:
            self._say(f"Lag, as any Kafka tool shows it: group {document['group']}, {count(document['lag'])} records.")
        if once["lost"] or once["duplicated"] or once["rows_in"] != self._events:
            raise CommandError("exactly once was not: " + headline(once))

    def _count_plain(self, admin: Admin) -> tuple[int, int]:
        """How many records the at-least-once sink wrote, and how many of them again: a plain consumer reads them."""
        ends = self._ends(admin, PLAIN, committed=True)
        config = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "max.poll.records": _SEND_ROWS}
        seen = bytearray(self._events)
        out = again = 0
        deadline = time.monotonic() + _DEADLINE_S
        with Consumer({"bootstrap.servers": self._brokers.addresses, **config}) as consumer:
            consumer.assign(list(ends))
            while out < sum(ends.values()) and time.monotonic() < deadline:
                for record in consumer.poll(1.0):
                    number = _number(record.value)
                    out += 1
                    again += seen[number]
                    seen[number] = 1
        return out, again


def _who_leads(by_partition: dict[int, int]) -> str:
    return ", ".join(f"{partition} by broker {node}" for partition, node in sorted(by_partition.items()))


def _all(owners: dict[str, list[str]]) -> int:
    return sum(map(len, owners.values()))


def _click(number: int, at_ms: int, user: int) -> bytes:
    mixed = number * 2_654_435_761 & 0xFFFFFFFF
    return b'{"id":"%d","at":%d,"event":"%b","user":"user-%d","page":"%b","duration_ms":%d}' % (
        number, at_ms + number, _EVENTS[mixed % 7], user, _PAGES[mixed // 7 % 6], mixed % 30_000,
    )  # fmt: skip


def _number(click: bytes) -> int:
    """The id that `_click` gave it."""
    start = len(b'{"id":"')
    return int(click[start : click.index(b'"', start)])
