"""The code on the pages runs, and the tables that are made from the code have everything."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.keeping import KEEP_RECORDS

from headrace import Admin, NewTopic
from headrace.testing import EmbeddedBroker, broker

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```$", re.S | re.M)
_RUN = ["index.md", "clients.md", "configuration.md", "errors.md", "migrating.md"]
_ENDLESS = re.compile(r"^run\(", re.M)
_OTHERS = {"confluent_kafka": "confluent-kafka", "kafka": "kafka-python", "aiokafka": "aiokafka"}


def blocks(page: Path) -> list[str]:
    return [textwrap.dedent(code) for _, code in _BLOCK.findall(page.read_text("utf-8"))]


def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("headrace_docs_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker(overrides=KEEP_RECORDS) as embedded, Admin(bootstrap_servers=embedded.address) as admin:
        admin.create_topics([NewTopic(name, num_partitions=1) for name in ("orders", "events")]).all()
        yield embedded


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_python_on_a_page_is_python(page: Path) -> None:
    for code in blocks(page):
        # Signatures in the pages on design are no programs.
        if "…" not in code and page.name != "architecture.md":
            compile(code, str(page), "exec")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("page", _RUN)
def test_the_code_of_a_page_runs_in_order(kafka: EmbeddedBroker, page: str, capfd: pytest.CaptureFixture[str]) -> None:
    done = 0
    for code in blocks(DOCS / page):
        other = next((name for name in _OTHERS if re.search(rf"^(from|import) {name}\b", code, re.M)), None)
        if other is not None:
            pytest.importorskip(other, reason=f"{_OTHERS[other]} is not installed")
        if "spark" in code or _ENDLESS.search(code):
            continue  # run by the tests of Spark and of consuming in parallel
        names: dict[str, Any] = {"__name__": "pasted"}
        exec(compile(code.replace("127.0.0.1:9092", kafka.address), page, "exec"), names)
        done += 1
    assert done


@pytest.mark.slow
def test_every_mark_on_a_page_is_filled() -> None:
    made = hooks()
    for page in DOCS.rglob("*.md"):
        text = made.on_page_markdown(page.read_text("utf-8"))
        assert "<!-- from the code" not in text, page
        assert not re.search(r"^!\[.*\.svg\)$", text, re.M), page


def test_every_setting_says_what_it_means() -> None:
    made = hooks()
    for client in ("common", "producer", "consumer", "admin"):
        for row in made.config(client).splitlines()[2:]:
            assert row.split(" | ")[-1].strip(" |"), row


def test_every_option_of_consuming_in_parallel_says_what_it_means() -> None:
    made = hooks()
    tables = [made.options("headrace.parallel.ParallelConsumer")]
    tables += [made.fields(f"headrace.parallel.{name}") for name in ("Retry", "Limits", "Ranges", "Pool", "Window")]
    for row in "\n".join(tables).splitlines():
        assert row.split(" | ")[-1].strip(" |"), row


def test_every_command_is_on_its_page() -> None:
    from headrace.cli.app import COMMANDS
    from headrace.spark.pipelines import PIPELINES

    text = hooks().commands()
    for name in COMMANDS:
        assert f"## headrace {name}\n" in text
    for name in PIPELINES:
        assert f"#### headrace pipeline run {name}\n" in text
    assert "headrace group remove-members" in text
    assert str(Path.home()) not in text


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M))
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} == listed
