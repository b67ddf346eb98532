"""What a secured Apache Kafka 4.3.1 answered to logins of every kind, asked of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.broker.test_recordings import BEHAVIOUR, as_large_as_kafkas

from headrace import testing

from .settings import of_the_recordings

REPLAY_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def kafka() -> Iterator[testing.EmbeddedBroker]:
    with as_large_as_kafkas(), testing.broker(overrides=of_the_recordings()) as running:
        yield running


def replay(
    kafka: testing.EmbeddedBroker, *cases: str, has_authorizer: bool = False, file: str = "security.jsonl"
) -> None:
    sasl, anonymous, reauth = (f"{host}:{port}" for host, port in kafka.broker.addresses)
    command = [sys.executable, str(BEHAVIOUR / "replay.py"), str(BEHAVIOUR / file)]
    command += ["--sasl", sasl, "--anonymous", anonymous, "--reauth", reauth]
    command += [] if has_authorizer else ["--without", "authorizer"]
    for case in cases:
        command += ["-k", case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=REPLAY_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert int(done.stdout.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("area", ["sasl/", "scram/", "reauth/", "oauth/"])
def test_logins_go_as_at_the_real_broker(kafka: testing.EmbeddedBroker, area: str) -> None:
    replay(kafka, area)


@pytest.fixture(scope="module")
def with_rules() -> Iterator[testing.EmbeddedBroker]:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    rules = {"authorizer.class.name": authorizer, "super.users": "User:admin"}
    with as_large_as_kafkas(), testing.broker(overrides=of_the_recordings() | rules) as running:
        yield running


@pytest.mark.slow
def test_delegation_tokens_are_as_at_the_real_broker(with_rules: testing.EmbeddedBroker) -> None:
    replay(with_rules, "tokens/", has_authorizer=True)


@pytest.mark.slow
@pytest.mark.timeout(REPLAY_TIMEOUT_S + 10)
def test_all_rights_of_a_kind_open_what_they_open_at_the_real_broker(with_rules: testing.EmbeddedBroker) -> None:
    """Also what is asked for with nothing in it, by who may do nothing, and by who has not logged in."""
    replay(with_rules, has_authorizer=True, file="more_rights.jsonl")
