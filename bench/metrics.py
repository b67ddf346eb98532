"""What metrics and viewers cost a broker: small requests with and without them, in the same run.

    python -m bench.metrics [--seconds 2] [--rounds 7] [--connections 64] [--viewers 10]

Two brokers take turns: one plain, one whose metrics are scraped every five seconds. The median of the rounds counts.
At last ten pages of the console look at the plain one: what CPU time it spends on them.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.broker import PARTITIONS, make_topic
from bench.requests import KINDS, TOPIC, Target, build_load
from headrace.testing.processes import BrokerProcess
from headrace.testing.server_process import free_port

SCRAPE_S = 5.0


@contextlib.contextmanager
def scraped(port: int) -> Iterator[list[float]]:
    """Scrape for as long as this lasts; gives how long each took."""
    stop, took = threading.Event(), []

    def scrape() -> None:
        while not stop.wait(SCRAPE_S):
            began = time.perf_counter()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                answer.read()
            took.append(time.perf_counter() - began)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield took
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def _broker(directory: Path, **settings: str) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(directory / "data", {"num.partitions": str(PARTITIONS), **settings})
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def viewers_cpu(broker: BrokerProcess, viewers: int, seconds: float) -> float:
    """The share of a core that a broker spends on so many pages that look at groups and the overview."""
    from tests.console.serving import console

    with console(broker.address) as running, contextlib.ExitStack() as stack:
        for number in range(viewers):
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
            stack.callback(connection.close)
            connection.request("GET", f"/api/c/kafka/live/{('overview', 'groups')[number % 2]}")
            answer = connection.getresponse()
            answer.readline()
        time.sleep(3)
        process = psutil.Process(broker.pid)
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(seconds)
        return (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--viewers", type=int, default=10)
    options = parser.parse_args()
    options.versions, options.idempotent = "new", False
    with contextlib.ExitStack() as stack:
        load = build_load(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-load-"))))
        port = free_port()
        places = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-metrics-"))) for _ in range(2)]
        plain = stack.enter_context(_broker(places[0]))
        counting = stack.enter_context(_broker(places[1], **{"headrace.metrics.port": str(port)}))
        targets = []
        for broker in (plain, counting):
            make_topic(broker.address, TOPIC)
            targets.append(Target(broker.address, [broker.pid]))
        heads = (
            ("plain CPU µs", 14),
            ("scraped CPU µs", 16),
            ("ratio", 8),
            ("plain req/s", 14),
            ("scraped", 10),
            ("ratio", 8),
        )
        print(f"{'':12}" + "".join(f"{head:>{width}}" for head, width in heads))
        took = stack.enter_context(scraped(port))
        for kind in KINDS:
            pairs: list[tuple[dict[str, float], dict[str, float]]] = []
            for _ in range(options.rounds):
                one = targets[0].measure(load, kind, options.connections, options)
                pairs.append((one, targets[1].measure(load, kind, options.connections, options)))
            cpu = [statistics.median(pair[which]["cpu"] for pair in pairs) for which in (0, 1)]
            rate = [statistics.median(pair[which]["rate"] for pair in pairs) for which in (0, 1)]
            print(
                f"{kind:12}{cpu[0]:14.2f}{cpu[1]:16.2f}{cpu[1] / cpu[0]:8.3f}"
                f"{rate[0]:14,.0f}{rate[1]:10,.0f}{rate[1] / rate[0]:8.3f}",
                flush=True,
            )
        print(f"a scrape under this load takes {statistics.median(took) * 1000:.1f} ms")
        share = viewers_cpu(plain, options.viewers, 20)
        print(f"{options.viewers} viewers cost the broker {share * 100:.2f} % of a core")


if __name__ == "__main__":
    main()
