"""For tests of pipelines: a second cluster, and what a run notes of itself kept out of the user's home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.keeping import KEEP_RECORDS

from headrace.testing import BrokerProcess


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("other") / "data", KEEP_RECORDS) as running:
        yield running


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "state"))
