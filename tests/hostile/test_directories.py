"""Who may read what a broker writes, and partition directories that are links to others."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from tests.broker import raw
from tests.broker.raw import RawClient

from headrace.runtime import real_runtime
from headrace.testing import broker


def test_only_the_owner_can_read_what_a_broker_writes(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with broker(str(tmp_path / "data")) as kafka, RawClient(kafka.port) as client:
            client.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
            client.request(raw.produce_request("t", 0, raw.batch([b"secret"])), raw.PRODUCE_VERSION)
    finally:
        os.umask(before)
    written = list((tmp_path / "data").rglob("*"))
    assert any(path.suffix == ".log" for path in written)
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    open_to_others = [path for path in written if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert open_to_others == []


def test_only_the_owner_can_look_into_a_shared_directory_of_metadata(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with broker(str(tmp_path / "data"), overrides={"headrace.metadata.dir": str(tmp_path / "metadata")}):
            modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "metadata", *tmp_path.rglob("*"))}
    finally:
        os.umask(before)
    assert modes <= {0o700, 0o600}


def test_a_linked_partition_is_served(tmp_path: Path, failures: list[str]) -> None:
    """As Apache Kafka serves it: who can make a link in a log directory has the data anyway."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with broker(str(data)) as kafka, RawClient(kafka.port) as client:
        client.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        client.request(raw.produce_request("t", 0, raw.batch([b"one"])), raw.PRODUCE_VERSION)
    shutil.move(data / "t-0", elsewhere)
    (data / "t-0").symlink_to(elsewhere)
    with broker(str(data)) as kafka, RawClient(kafka.port) as client:
        read = client.request(raw.fetch_request("t", 0, 0), raw.FETCH_VERSION)
        assert raw.values_of(raw.fetched(read).records) == [(0, b"one")]
    assert failures == []


def test_of_a_link_the_link_alone_is_deleted(tmp_path: Path) -> None:
    """What it leads to is not the broker's."""
    elsewhere, link, plain = tmp_path / "elsewhere", tmp_path / "t-0", tmp_path / "t-1"
    for directory in (elsewhere, plain):
        directory.mkdir()
        (directory / "0.log").write_bytes(b"data")
    link.symlink_to(elsewhere)
    disk = real_runtime().disk
    for directory in (link, plain):
        disk.rmtree(str(directory))
        assert not os.path.lexists(directory)
    assert (elsewhere / "0.log").read_bytes() == b"data"
