"""What a real Kafka 4.3.1 broker answered (tests/reference/behaviour), asked of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
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
    "share/offsets/describe": "a partition that does not exist is told at once; Kafka waits for it for half a minute",
}

QUICK = ("metadata.jsonl", "produce.jsonl", "offsets_by_time.jsonl")
LARGE = ("odd.jsonl", "fields.jsonl")
"""By themselves: they need nothing of the others."""
CONSUMER_GROUPS = ("groups_kip848.jsonl", "groups_kip848_more.jsonl")
SHARE_GROUPS = ("share_groups.jsonl",)
# Played side by side, as they sleep most of the time.
CONSUMER_AREAS = ("life", "regex/syntax", "regex/works", "regex/new", "migration/", "offsets/", "admin/", "static")
STREAMS_GROUPS = ("streams_groups.jsonl",)
STREAMS_AREAS = ("streams/life", "streams/epochs", "streams/refused", "streams/status", "streams/internal")
SHARE_AREAS = ("heartbeat/", "fetch/", "acks/", "lock-expiry")
WITH_SETTINGS = {
    "fast": "fast/",
    "migration-disabled": "migration/",
    "migration-downgrade": "migration/",
    "migration-upgrade": "migration/",
}


def as_large_as_kafkas() -> AbstractContextManager[object]:
    """The topics of coordinators are, and nobody has set that."""
    defaults = {name: value for name, value in embedded.TEST_DEFAULTS.items() if not name.endswith("num.partitions")}
    return mock.patch.object(embedded, "TEST_DEFAULTS", defaults)


@pytest.fixture(scope="module")
def kafka() -> Iterator[testing.EmbeddedBroker]:
    with as_large_as_kafkas(), testing.broker(overrides=SETTINGS) as running:
        yield running


def start_replay(address: str, *names: str, only: str = "", left_out: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, str(BEHAVIOUR / "replay.py"), address, *(str(BEHAVIOUR / name) for name in names)]
    for text in (*LEFT_OUT, *left_out):
        command += ["-x", text]
    if only:
        command += ["-k", only]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def check_replayed(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=REPLAY_TIMEOUT_S)
    assert process.returncode == 0, output[-6000:]
    passed = int(output.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1])
    assert passed > 0


def replay(address: str, *names: str, only: str = "") -> None:
    check_replayed(start_replay(address, *names, only=only))


@pytest.mark.parametrize("name", QUICK)
def test_answers_as_the_real_broker_did(kafka: testing.EmbeddedBroker, name: str) -> None:
    replay(kafka.address, name)


@pytest.mark.slow
@pytest.mark.timeout(REPLAY_TIMEOUT_S + 10)
def test_all_recordings_one_after_the_other(kafka: testing.EmbeddedBroker) -> None:
    # In one run and in this order: a case of `groups` finds a group that one of `group_offsets` left behind.
    names = sorted(path.name for path in BEHAVIOUR.glob("*.jsonl"))
    replay(
        kafka.address,
        *(name for name in names if name not in (*LARGE, *CONSUMER_GROUPS, *SHARE_GROUPS, *STREAMS_GROUPS)),
    )


@pytest.mark.slow
@pytest.mark.timeout(REPLAY_TIMEOUT_S + 10)
@pytest.mark.parametrize("name", LARGE)
def test_odd_requests_are_answered_as_the_real_broker_did(name: str) -> None:
    with as_large_as_kafkas(), testing.broker(overrides=SETTINGS) as fresh:  # where no topic of a coordinator is yet
        replay(fresh.address, name)


@pytest.mark.slow
@pytest.mark.timeout(REPLAY_TIMEOUT_S + 10)
@pytest.mark.parametrize(
    ("names", "areas"),
    [(CONSUMER_GROUPS, CONSUMER_AREAS), (SHARE_GROUPS, SHARE_AREAS), (STREAMS_GROUPS, STREAMS_AREAS)],
)
def test_newer_groups_answer_as_the_real_brokers_do(
    kafka: testing.EmbeddedBroker, names: Sequence[str], areas: Sequence[str]
) -> None:
    running = [start_replay(kafka.address, *names, only=area) for area in areas]
    running.append(start_replay(kafka.address, *names, left_out=areas))
    for process in running:
        check_replayed(process)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_groups_answer_as_the_real_brokers_do_with_other_settings(name: str) -> None:
    lines = (BEHAVIOUR / "with_settings" / f"{name}.properties").read_text().split()
    settings = dict(line.split("=", 1) for line in lines)
    with as_large_as_kafkas(), testing.broker(overrides=SETTINGS | settings) as running:
        replay(running.address, f"with_settings/{name}.jsonl", only=WITH_SETTINGS[name])
