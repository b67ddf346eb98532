"""The console in a real browser: every screen, both themes, wide and narrow; on Apache Kafka where one is named."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.console.conftest import stock
from tests.console.serving import Console, console
from tests.console.test_other_screens import CHANGED, LOGIN, OURS

from headrace import metrics
from headrace.parallel import Counters, PartitionState, Snapshot
from headrace.topics import TopicPartition

CHROMIUM = os.environ.get("HEADRACE_TEST_CHROMIUM") or shutil.which("chromium") or ""
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
AXE = Path(__file__).parent.parent / "reference" / "axe" / "axe.min.js.gz"
SCREENS = (
    "overview",
    "topics",
    "topics/orders",
    "topics/orders/configs",
    "topics/orders/groups",
    "topics/orders/messages",
    "topics/binary/messages",
    "groups",
    "groups/billing",
    "groups/billing/lag",
    "groups/billing/history",
    "groups/billing/what-if",
    "groups/billing/reset",
    "transactions",
    "workers",
    "moves",
    "rights",
    "audit",
    "brokers/1",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium (Debian's package), named by HEADRACE_TEST_CHROMIUM or PATH"),
    pytest.mark.timeout(300),
]
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class Viewer:
    """A page of the browser, and what went wrong on it."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self._url = url
        self.wrong: list[str] = []
        self.expected: tuple[str, ...] = ()
        page.on("pageerror", lambda error: self.wrong.append(f"error {error}"))
        page.on("console", lambda one: self._said(one.type, one.text))
        page.on("request", lambda request: self._asked(request.url))
        page.on("dialog", lambda dialog: (self.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(one in text for one in self.expected):
            self.wrong.append(f"{kind} {text}")

    def _asked(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self._url).netloc and not url.startswith("data:"):
            self.wrong.append(f"asked {url}")

    def go(self, screen: str) -> None:
        """To a screen, until it shows something."""
        self.page.goto(f"{self._url}#/kafka/{screen}")
        self.page.wait_for_selector("main h1")
        self.page.locator(
            "main .live:not(.off), main table, main .empty, main .problem, main form.panel"
        ).first.wait_for()
        # What comes a moment later: one screen shows figures, another disks.
        self.page.wait_for_load_state()


@pytest.fixture
def viewer(browser: Any) -> Iterator[Callable[..., Viewer]]:
    contexts = []

    def open_page(url: str, *, width: int = 1440, theme: str = "light") -> Viewer:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
        )
        context.set_default_timeout(30_000)
        contexts.append(context)
        return Viewer(context.new_page(), url)

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module", params=["headrace", "kafka"])
def everywhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console of a broker of ours, and of an Apache Kafka."""
    partitions = [PartitionState(TopicPartition("orders", 0), 3, 9, 6, 2, 0, 1.5, False)]
    counters = Counters(handled=7, failures=1)
    with metrics.serve(0, Snapshot("billing", 8, 2, 6, 900, counters, partitions)) as exporter:
        pages = (exporter.address,)
        if request.param == "headrace":
            audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
            audit.write_text("".join(json.dumps(one) + "\n" for one in (OURS, CHANGED, LOGIN)))
            missing = audit.with_name("none.jsonl")
            with console(request.getfixturevalue("shop"), metrics=pages, broker_audit=(audit, missing)) as running:
                yield running
            return
        address = os.environ.get("HEADRACE_TEST_KAFKA")
        if not address:
            pytest.skip("HEADRACE_TEST_KAFKA names no Apache Kafka")
        stock(address)
        with console(address, metrics=pages) as running:
            yield running


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (400, "dark")])
def test_every_screen_is_whole_and_everybody_can_use_it(
    everywhere: Console, viewer: Callable[..., Viewer], width: int, theme: str
) -> None:
    seen = viewer(everywhere.url, width=width, theme=theme)
    script = gzip.decompress(AXE.read_bytes()).decode()
    found = []
    for screen in SCREENS:
        seen.go(screen)
        over = seen.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if over > 0:
            found.append(f"{screen} is {over} pixels wider than the window")
        # As an isolated script, which the content security policy of the page does not have to allow.
        seen.page.evaluate(script)
        for violation in seen.page.evaluate("axe.run().then((found) => found.violations)"):
            where = [node["html"][:120] for node in violation["nodes"][:2]]
            found.append(f"{screen}: {violation['id']} ({violation['help']}): {where}")
    assert not found, "\n".join(found)
    assert not seen.wrong


def test_a_message_is_text_whatever_is_in_it(shown: Console, viewer: Callable[..., Viewer]) -> None:
    seen = viewer(shown.url)
    seen.go("topics/orders/messages")
    seen.page.get_by_text("<script>document.title").first.wait_for()
    seen.page.get_by_text("<script>document.title").first.click()
    seen.page.get_by_role("heading", name="Value").wait_for()
    assert "owned" not in seen.page.title()
    assert seen.page.locator("main img").count() == 0
    assert not seen.wrong


def test_messages_are_searched_opened_and_gone_through(shown: Console, viewer: Callable[..., Viewer]) -> None:
    seen = viewer(shown.url)
    page = seen.page
    seen.go("topics/orders/messages")
    page.get_by_label("Filter").fill("value.amount == 590")
    page.get_by_role("button", name="Show", exact=True).click()
    page.get_by_text("1 shown").wait_for()
    page.locator("tr.pick button").click()
    page.get_by_role("heading", name="Headers").wait_for()
    assert '"amount": 590' in page.locator("pre.body").last.inner_text()
    seen.expected = ("400",)
    page.get_by_label("Filter").fill("value.amount >")
    page.get_by_role("button", name="Show", exact=True).click()
    page.get_by_role("alert").get_by_text("cannot be read").wait_for()
    assert not seen.wrong


def test_what_is_written_appears_and_can_be_paused(changing: Console, viewer: Callable[..., Viewer]) -> None:
    seen = viewer(changing.url)
    page = seen.page
    seen.go("topics/paid/messages")
    with page.expect_response(lambda response: "/tail" in response.url):
        page.get_by_role("button", name="Watch live").click()
    page.get_by_text("What is written from now on").wait_for()
    changing.change("produce", topic="paid", value="first of all")
    page.get_by_text("first of all").wait_for()
    page.get_by_role("button", name="Pause").click()
    changing.change("produce", topic="paid", value="while it was paused")
    page.get_by_role("button", name="Go on (1 waiting)").wait_for()
    assert page.get_by_text("while it was paused").count() == 0
    page.get_by_role("button", name="Go on (1 waiting)").click()
    page.get_by_text("while it was paused").wait_for()
    assert not seen.wrong


def test_a_topic_is_made_written_to_and_deleted_by_hand(changing: Console, viewer: Callable[..., Viewer]) -> None:
    seen = viewer(changing.url)
    page = seen.page
    seen.go("topics")
    page.get_by_role("button", name="Create a topic").click()
    page.get_by_label("Name").fill("by-hand")
    page.get_by_label("Partitions (empty").fill("2")
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("heading", name="by-hand").wait_for()
    page.get_by_role("link", name="Messages").click()
    page.get_by_role("button", name="Produce").click()
    page.get_by_label("Value", exact=True).fill('{"by": "hand"}')
    page.get_by_role("button", name="Send").click()
    page.get_by_text("written at partition").wait_for()
    page.get_by_role("link", name="Partitions").click()
    page.get_by_role("button", name="Delete the topic").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    assert page.locator("dialog").is_visible(), "its name has to be typed"
    page.locator("dialog input[name=confirm]").fill("by-hand")
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("heading", name="Topics").wait_for()
    page.get_by_label("Search").fill("by-hand")
    page.get_by_text("No topic is called that").wait_for()
    assert not seen.wrong


def test_a_read_only_console_says_so(shown: Console, viewer: Callable[..., Viewer]) -> None:
    seen = viewer(shown.url)
    for screen, name in (("topics", "Create a topic"), ("topics/orders", "Delete the topic")):
        seen.go(screen)
        button = seen.page.get_by_role("button", name=name)
        button.wait_for()
        assert button.is_disabled()
        assert "--allow-changes" in button.get_attribute("title")
    assert not seen.wrong


def test_the_keyboard_is_enough(shown: Console, viewer: Callable[..., Viewer]) -> None:
    seen = viewer(shown.url)
    page = seen.page
    seen.go("overview")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.get_by_role("link", name="Groups").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Groups").wait_for()
    page.get_by_role("link", name="billing").wait_for()
    page.get_by_role("button", name="Group", exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("th[aria-sort=ascending]")
    assert page.evaluate("document.activeElement.dataset.focus") == "sort-group", "it stays where it was"
    assert not seen.wrong


def test_the_theme_that_was_chosen_stays(shown: Console, viewer: Callable[..., Viewer]) -> None:
    seen = viewer(shown.url, theme="light")
    seen.go("overview")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = seen.page.evaluate(ground)
    seen.page.get_by_role("button", name="Switch between light and dark").click()
    dark = seen.page.evaluate(ground)
    seen.page.reload()
    seen.page.wait_for_selector("main h1")
    assert light != dark
    assert seen.page.evaluate(ground) == dark


def test_a_token_is_asked_for(shop: str, viewer: Callable[..., Viewer]) -> None:
    with console(shop, token="open sesame") as running:
        seen = viewer(running.url)
        seen.expected = ("401",)
        seen.page.goto(running.url)
        seen.page.get_by_label("Token").fill("wrong")
        seen.page.get_by_role("button", name="Come in").click()
        seen.page.get_by_text("that is not the console's token").wait_for()
        seen.page.get_by_label("Token").fill("open sesame")
        seen.page.get_by_role("button", name="Come in").click()
        seen.page.get_by_role("heading", name="Overview").wait_for()
        assert "open sesame" not in json.dumps(seen.page.context.storage_state())
        assert not seen.wrong


def test_a_broker_that_is_gone_is_said_and_noticed_when_it_is_back(viewer: Callable[..., Viewer]) -> None:
    from headrace.testing.embedded import broker

    with broker() as kafka:
        port = kafka.port
        running = console(kafka.address)
        shown = running.__enter__()
        seen = viewer(shown.url)
        seen.go("overview")
        seen.page.get_by_text("healthy").wait_for()
    try:
        seen.page.locator(".live.broken").wait_for(timeout=60_000)
        with broker(port=port):
            seen.page.locator(".live:not(.broken)").wait_for(timeout=60_000)
            seen.page.get_by_text("healthy").wait_for()
    finally:
        running.__exit__(None, None, None)
