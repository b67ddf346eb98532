"""What a real Kafka 4.3.1 with StandardAuthorizer answered (security.jsonl), asked of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import testing

from . import principals

AREAS = ("rights/", "acls/", "implied/", "operations/", "precedence/", "quotas/")
QUICK = ("precedence/",)


@pytest.fixture(scope="module")
def kafka() -> Iterator[testing.EmbeddedBroker]:
    with principals.broker() as running:
        yield running


def replay(kafka: testing.EmbeddedBroker, areas: tuple[str, ...]) -> int:
    arguments = [part for area in areas for part in ("-k", area)]
    last_line = principals.replay(kafka.address, arguments)
    return int(last_line.split(" passed", 1)[0])


def test_rules_decide_as_the_real_authorizer_did(kafka: testing.EmbeddedBroker) -> None:
    assert replay(kafka, QUICK) == 23


@pytest.mark.slow
@pytest.mark.timeout(principals.REPLAY_TIMEOUT_S + 10)
def test_requests_are_refused_as_by_the_real_broker(kafka: testing.EmbeddedBroker) -> None:
    assert replay(kafka, AREAS) > 300
