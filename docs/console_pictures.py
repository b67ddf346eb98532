"""Makes the pictures of the console for its page: python -m docs.console_pictures (needs chromium, playwright, Pillow).

Three brokers with a shop on them: what is bought, a group that keeps up, one that does not, one that comes and goes, a
parallel consumer, and a transaction. The pictures have few colours, so that they stay small.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from tests.console.serving import console

from headrace import Consumer, Producer, metrics
from headrace.client.admin import Admin, NewTopic
from headrace.parallel import ParallelConsumer, Retry
from headrace.testing import cluster

PLACE = Path(__file__).parent / "pictures" / "console"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
COLOURS = 160
#: Screen, file, and of the narrow and the dark one what is wanted: width and theme.
SCREENS = (
    ("overview", "overview"),
    ("topics", "topics"),
    ("topics/orders", "topic"),
    ("topics/orders/messages", "messages"),
    ("groups", "groups"),
    ("groups/billing", "group"),
    ("groups/billing/lag", "lag"),
    ("groups/imports/history", "history"),
    ("groups/billing/what-if", "what-if"),
    ("transactions", "transactions"),
    ("workers", "workers"),
)
LOOKS = (("light", 1440), ("dark", 400))
ALL_LOOKS = (("light", 1440), ("dark", 1440), ("light", 400), ("dark", 400))


def produce(servers: str, stop: threading.Event) -> None:
    rng = random.Random(1)
    with Producer(bootstrap_servers=servers) as producer:
        number = 0
        while not stop.wait(0.02):
            number += 1
            user = f"customer-{rng.randrange(200)}"
            amount = round(rng.random() * 200, 2)
            items = [{"sku": f"A{rng.randrange(40)}", "count": 1 + rng.randrange(3)}]
            order = {"order": number, "customer": user, "amount": amount, "items": items}
            headers = [("source", b"till" if number % 3 else b"web")]
            producer.send("orders", json.dumps(order).encode(), key=user.encode(), headers=headers)
            for _ in range(3):
                producer.send("clicks", f"{user} opened /page/{rng.randrange(30)}".encode(), key=user.encode())
            producer.send("files", f"import-{number}".encode())


def consume(servers: str, group: str, topic: str, client: str, pause_s: float, stop: threading.Event) -> None:
    settings = {"bootstrap.servers": servers, "group.id": group, "client.id": client, "auto.offset.reset": "earliest"}
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])
        while not stop.is_set():
            consumer.poll(0.2, max_records=10)
            stop.wait(pause_s)


def come_and_go(servers: str, stop: threading.Event) -> None:
    settings = {"session.timeout.ms": 6000, "max.poll.interval.ms": 6500, "client.id": "importer-2"}
    settings |= {"bootstrap.servers": servers, "group.id": "imports", "auto.offset.reset": "earliest"}
    with Consumer(settings) as consumer:
        consumer.subscribe(["files"])
        while not stop.is_set():
            for _ in range(10):
                consumer.poll(0.2, max_records=5)
            stop.wait(8)


def main() -> None:
    import sys

    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 50
    stop = threading.Event()
    with cluster(3) as kafka:
        servers = kafka.address
        with Admin(bootstrap_servers=servers) as admin:
            names = ("orders", 6), ("clicks", 12), ("payments", 3), ("files", 4), ("orders.dead", 1)
            topics = [NewTopic(name, count, 3) for name, count in names]
            topics += [NewTopic(f"{team}.events", 3, 3) for team in ("search", "stock", "mail", "returns")]
            admin.create_topics(topics).all()
        work: list[tuple[Any, ...]] = [(produce, servers), (come_and_go, servers)]
        for client, pause_s in (("billing-1", 0.1), ("billing-2", 0.1), ("billing-3", 0.45)):
            work.append((consume, servers, "billing", "orders", client, pause_s))
        work.append((consume, servers, "search-index", "clicks", "indexer-1", 0.0))
        work.append((consume, servers, "reports", "clicks", "reports-1", 1.5))
        work.append((consume, servers, "imports", "files", "importer-1", 0.1))
        threads = [threading.Thread(target=one[0], args=(*one[1:], stop)) for one in work]
        for thread in threads:
            thread.start()
        parallel = ParallelConsumer(
            lambda record: time.sleep(0.02),
            topics=["orders"],
            group="mailer",
            config={"bootstrap.servers": servers, "auto.offset.reset": "earliest"},
            retry=Retry(local=1, dead_letters="orders.dead"),
        )
        parallel.start()
        till = Producer(bootstrap_servers=servers, transactional_id="till-1", transaction_timeout_ms=600_000)
        till.init_transactions()
        till.begin_transaction()
        till.send("payments", b"paid")
        till.flush()
        with metrics.serve(0, parallel) as exporter, console(servers, metrics=(exporter.address,)) as shown:
            with Admin(bootstrap_servers=servers) as admin:
                deadline = time.monotonic() + seconds
                while time.monotonic() < deadline:
                    shown.ask("/api/c/kafka/overview")
                    shown.ask("/api/c/kafka/groups")
                    time.sleep(1)
            take(shown.url)
        till.abort_transaction()
        till.close()
        stop.set()
        parallel.stop()
        parallel.wait()
        for thread in threads:
            thread.join()


def take(url: str) -> None:
    """All pictures of a console."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    PLACE.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        for theme, width in ALL_LOOKS:
            context = browser.new_context(
                viewport={"width": width, "height": 900 if width > 400 else 800},
                color_scheme=theme,
                reduced_motion="reduce",
            )
            page = context.new_page()
            for screen, name in SCREENS:
                if (theme, width) not in LOOKS and name not in ("overview", "history"):
                    continue
                page.goto(f"{url}#/kafka/{screen}")
                page.wait_for_selector("main h1")
                page.wait_for_timeout(3000)
                if name == "what-if":
                    page.get_by_label("Members").fill("4")
                    page.get_by_label("Strategy").select_option("cooperative-sticky")
                    page.get_by_role("button", name="Work it out").click()
                    page.wait_for_timeout(1500)
                if name == "messages":
                    page.locator("tr.pick button").nth(1).click()
                picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                small = picture.quantize(COLOURS, dither=Image.Dither.NONE)
                small.save(PLACE / f"{name}-{theme}-{width}.png", optimize=True)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
