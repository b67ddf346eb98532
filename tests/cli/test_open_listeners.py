"""A broker that others reach and that asks nobody who they are says so when it starts."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from headrace import testing
from headrace.cli import start

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}


@pytest.mark.parametrize(
    ("host", "more", "words"),
    [("127.0.0.1", {}, None), ("0.0.0.0", {}, "do everything"), ("0.0.0.0", AUTHORIZER, "User:ANONYMOUS")],
)
def test_it_says_who_may_do_what(
    host: str, more: dict[str, Any], words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with testing.broker(overrides={"listeners": f"PLAINTEXT://{host}:0", **more}) as kafka, caplog.at_level("WARNING"):
        logging.getLogger("headrace").propagate = True
        start.warn_of_everyone(kafka.broker)
    told = [record.getMessage() for record in caplog.records if "open to everyone" in record.getMessage()]
    assert [words in line for line in told] == ([] if words is None else [True])
