"""What a real Kafka 4.3.1 broker answered (tests/reference/behaviour), asked of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import pytest

from headrace import testing
from headrace.testing import embedded

BEHAVIOUR = Path(__file__).parents[1] / "reference" / "behaviour"
REPLAY_TIMEOUT_S = 300

# Recorded settings beside Kafka's defaults (see the README there).
SETTINGS = {"num.partitions": "4"}

# Cases that belong to what is not served yet, or to KRaft itself; docs/not-done.md says why.
LEFT_OUT = {
    "api_versions/v1": "lists every key of Kafka, also those that are not served here",
    "api_versions/v2": "as v1",
    "features": "levels of KRaft's own features",
    "telemetry": "client telemetry is not served",
    "kip848": "the newer group protocol is not served",
    "share": "share groups are not served",
}
LATER_FILES = {"groups_kip848.jsonl": "the newer group protocol is not served"}

QUICK = ("metadata.jsonl", "produce.jsonl", "offsets_by_time.jsonl")
LARGE = ("odd.jsonl", "fields.jsonl")
"""By themselves: they need nothing of the others."""


def as_large_as_kafkas() -> AbstractContextManager[object]:
    """The topics of coordinators are, and nobody has set that."""
    defaults = {name: value for name, value in embedded.TEST_DEFAULTS.items() if not name.endswith("num.partitions")}
    return mock.patch.object(embedded, "TEST_DEFAULTS", defaults)


@pytest.fixture(scope="module")
def kafka() -> Iterator[testing.EmbeddedBroker]:
    with as_large_as_kafkas(), testing.broker(overrides=SETTINGS) as running:
        yield running


def replay(address: str, *names: str) -> None:
    command = [sys.executable, str(BEHAVIOUR / "replay.py"), address, *(str(BEHAVIOUR / name) for name in names)]
    for text in LEFT_OUT:
        command += ["-x", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=REPLAY_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = int(done.stdout.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1])
    assert passed > 0


@pytest.mark.parametrize("name", QUICK)
def test_answers_as_the_real_broker_did(kafka: testing.EmbeddedBroker, name: str) -> None:
    replay(kafka.address, name)


@pytest.mark.slow
@pytest.mark.timeout(REPLAY_TIMEOUT_S + 10)
def test_all_recordings_one_after_the_other(kafka: testing.EmbeddedBroker) -> None:
    # In one run and in this order: a case of `groups` finds a group that one of `group_offsets` left behind.
    names = sorted(path.name for path in BEHAVIOUR.glob("*.jsonl"))
    replay(kafka.address, *(name for name in names if name not in LATER_FILES and name not in LARGE))


@pytest.mark.slow
@pytest.mark.timeout(REPLAY_TIMEOUT_S + 10)
@pytest.mark.parametrize("name", LARGE)
def test_odd_requests_are_answered_as_the_real_broker_did(kafka: testing.EmbeddedBroker, name: str) -> None:
    replay(kafka.address, name)
