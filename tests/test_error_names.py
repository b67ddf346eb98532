"""Errors have one name each: no two classes share one, and the names of earlier versions are the same classes."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import headrace
from headrace import errors, parallel, testing

SOURCES = sorted((Path(__file__).parent.parent / "src" / "headrace").rglob("*.py"))
EARLIER_NAMES = [
    (headrace, "BufferExhausted", "BufferExhaustedError"),
    (headrace, "ClientClosed", "ClientClosedError"),
    (headrace, "DeliveryTimeout", "DeliveryTimeoutError"),
    (headrace, "OffsetsOutOfRangeError", "OffsetOutOfRangeError"),
    (headrace, "ProducerFenced", "ProducerFencedError"),
    (headrace, "TransactionTimeout", "TransactionTimeoutError"),
    (parallel, "BatchFailed", "BatchFailedError"),
    (parallel, "Damaged", "DamagedBatchError"),
    (parallel, "HandlerStalled", "HandlerStalledError"),
    (parallel, "Poison", "UnreadableRecordError"),
    (parallel, "RetriesExhausted", "RetriesExhaustedError"),
    (parallel, "TooManyHangingHandlers", "TooManyHangingHandlersError"),
    (parallel, "WorkerDied", "WorkerDiedError"),
    (testing, "BrokerDidNotStart", "BrokerDidNotStartError"),
    (testing, "NoZooKeeper", "ZooKeeperNotFoundError"),
]


@pytest.mark.parametrize(("module", "earlier", "name"), EARLIER_NAMES, ids=lambda given: str(given))
def test_the_name_of_an_earlier_version_is_the_same_class(module: object, earlier: str, name: str) -> None:
    assert getattr(module, earlier) is getattr(module, name)
    assert earlier in module.__all__  # type: ignore[attr-defined]  # all of them are modules with one


def test_pages_name_errors_as_they_are_called_now() -> None:
    root = Path(__file__).parent.parent
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        text = page.read_text("utf-8")
        assert [earlier for _, earlier, _ in EARLIER_NAMES if f"`{earlier}`" in text] == [], page.name


def test_a_fenced_producer_is_one_error_whoever_noticed_it() -> None:
    answered = errors.error_for(errors.ErrorCode.PRODUCER_FENCED)
    assert type(answered) is headrace.ProducerFencedError
    assert isinstance(answered, headrace.FatalTransactionError)
    assert isinstance(answered, headrace.KafkaError)


@pytest.mark.slow
def test_no_two_errors_share_a_name() -> None:
    names = Counter(
        node.name
        for path in SOURCES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
