"""Who may read what a broker writes, and partition directories that are links to others."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
from tests.broker import raw
from tests.broker.raw import RawClient
from tests.waiting import eventually

from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.testing import broker

SETTINGS = {"log.segment.delete.delay.ms": "0"}


def test_files_are_as_open_as_the_umask_says(tmp_path: Path) -> None:
    """As Apache Kafka's: whoever wants them closed starts the broker with `umask 077`."""
    before = os.umask(0o077)
    try:
        with broker(str(tmp_path / "data"), SETTINGS) as kafka, RawClient(kafka.port) as client:
            client.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
            client.request(raw.produce_request("t", 0, raw.batch([b"secret"])), raw.PRODUCE_VERSION)
    finally:
        os.umask(before)
    written = list((tmp_path / "data").rglob("*"))
    assert any(path.suffix == ".log" for path in written)
    open_to_others = [path for path in written if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert open_to_others == []


def test_a_linked_partition_is_served_and_its_deletion_takes_the_link_alone(
    tmp_path: Path, failures: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Links are followed, as Apache Kafka follows them: who can make one in a log directory has the data anyway. What
    they lead to is not the broker's, and stays."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with broker(str(data), SETTINGS) as kafka, RawClient(kafka.port) as client:
        client.request(raw.create_topics_request({"t": 1, "other": 1}), raw.CREATE_TOPICS_VERSION)
        client.request(raw.produce_request("t", 0, raw.batch([b"one"])), raw.PRODUCE_VERSION)
    shutil.move(data / "t-0", elsewhere)
    (data / "t-0").symlink_to(elsewhere)
    with broker(str(data), SETTINGS) as kafka, RawClient(kafka.port) as client:
        read = client.request(raw.fetch_request("t", 0, 0), raw.FETCH_VERSION)
        assert raw.values_of(raw.fetched(read).records) == [(0, b"one")]
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=60_000)
        assert client.request(deletion, 6).responses[0].error_code == 0
        eventually(lambda: not [name for name in os.listdir(data) if name.startswith(("t-0", "t."))])
        answer = client.request(raw.produce_request("other", 0, raw.batch([b"two"])), raw.PRODUCE_VERSION)
        assert raw.produced(answer).error_code == 0
    assert any(elsewhere.glob("*.log"))
    assert failures == []
