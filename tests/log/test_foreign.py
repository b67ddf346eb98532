"""What somebody else keeps in a log directory is neither read, written, moved nor removed, whatever its name."""

from __future__ import annotations

import logging

import pytest
from tests.log.making import append_one

from headrace.errors import KafkaStorageError
from headrace.log import LogConfig, LogDirectories, LogFate
from headrace.log.foreign import is_log_file, strangers
from headrace.runtime.simulated import Host
from headrace.topics import TopicPartition

from .making import NOW_MS, batch, make_host

A, B = "/data/a", "/data/b"
APP = TopicPartition("app", 1)
TOPIC_ID = bytes([7]) * 16
MINE = f"{A}/app-1/main.py"


def opened(host: Host, *paths: str, fate: LogFate = LogFate.OPENED) -> LogDirectories:
    directories = LogDirectories.open(host.runtime, paths or (A,))
    directories.open_logs(lambda topic: LogConfig(), lambda partition, topic_id: fate, bring_back=True)
    return directories


def with_program() -> Host:
    host = make_host()
    host.disk.makedirs(f"{A}/app-1")
    host.disk.replace_file(MINE, b"print()")
    return host


def is_untouched(host: Host) -> bool:
    return host.disk.listdir(f"{A}/app-1") == ["main.py"] and host.disk.read_file(MINE) == b"print()"


@pytest.mark.parametrize("fate", list(LogFate))
def test_a_directory_without_a_log_is_left_alone(fate: LogFate, caplog: pytest.LogCaptureFixture) -> None:
    host = with_program()
    directories = opened(host, fate=fate)
    assert directories.logs == {}
    assert directories.scan() == []
    assert directories.clean_up(NOW_MS * 2) == 0
    directories.close()
    assert is_untouched(host)
    (line,) = (record.getMessage() for record in caplog.records if "left alone" in record.getMessage())
    assert "app-1" in line
    assert A in line


@pytest.mark.parametrize("name", ["app-1.backup-delete", "app-1.backup-future", "app-1.backup-stray"])
def test_not_either_when_its_name_says_that_it_may_be_removed(name: str) -> None:
    host = make_host()
    host.disk.makedirs(f"{A}/{name}")
    host.disk.replace_file(f"{A}/{name}/notes", b"mine")
    directories = opened(host)
    directories.clean_up(NOW_MS * 2)
    directories.close()
    assert host.disk.read_file(f"{A}/{name}/notes") == b"mine"


def test_an_empty_directory_of_nobody_stays() -> None:
    host = make_host()
    host.disk.makedirs(f"{A}/app-1")
    directories = opened(host, fate=LogFate.SET_ASIDE)
    directories.clean_up(NOW_MS * 2)
    directories.close()
    assert "app-1" in host.disk.listdir(A)


def test_a_topic_of_that_name_is_refused_there_and_deleting_it_moves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    host = with_program()
    directories = opened(host)
    with pytest.raises(KafkaStorageError, match="app-1 is not a log, and is left alone: move it elsewhere"):
        directories.create(APP, LogConfig(), TOPIC_ID)
    directories.delete(APP)
    directories.clean_up(NOW_MS * 2)
    assert is_untouched(host)


def test_a_file_of_that_name_is_left_alone_too() -> None:
    host = make_host()
    host.disk.makedirs(A)
    host.disk.replace_file(f"{A}/app-1", b"mine")
    directories = opened(host)
    with pytest.raises(KafkaStorageError, match="is not a log"):
        directories.create(APP, LogConfig(), TOPIC_ID)
    assert host.disk.read_file(f"{A}/app-1") == b"mine"


def test_a_log_is_not_moved_to_where_it_is_in_the_way() -> None:
    host = with_program()
    directories = opened(host, A, B)
    directories.create(APP, LogConfig(), TOPIC_ID, path=B)
    with pytest.raises(KafkaStorageError, match="is not a log"):
        directories.start_move(APP, A)
    assert is_untouched(host)


def test_deleting_a_log_leaves_what_else_is_in_its_directory(caplog: pytest.LogCaptureFixture) -> None:
    host = make_host()
    directories = opened(host)
    log = directories.create(APP, LogConfig(), TOPIC_ID)
    append_one(log, batch(), leader_epoch=0, now_ms=NOW_MS)
    host.disk.replace_file(f"{A}/app-1/notes", b"mine")
    directories.delete(APP)
    assert directories.clean_up(NOW_MS * 2) == 1
    (left,) = (name for name in host.disk.listdir(A) if name.startswith("app-1"))
    assert host.disk.listdir(f"{A}/{left}") == ["notes"]
    assert f"{A}/{left}" in caplog.text
    directories.close()
    opened(host).clean_up(NOW_MS * 2)
    assert host.disk.read_file(f"{A}/{left}/notes") == b"mine"


def test_what_kafka_writes_is_known_by_its_name() -> None:
    offset = "0" * 19 + "7"
    endings = ("log", "index", "timeindex", "txnindex", "snapshot", "log.deleted", "index.cleaned", "log.swap")
    assert all(is_log_file(f"{offset}.{ending}") for ending in endings)
    assert is_log_file("leader-epoch-checkpoint")
    assert is_log_file("partition.metadata")
    assert not any(map(is_log_file, ("main.py", "0.log", "app.log", f"{offset}", "checkpoint", "notes.log.swap")))


def test_a_directory_is_strange_that_has_something_and_nothing_of_a_brokers() -> None:
    host = with_program()
    assert strangers(host.disk, A) == ["app-1"]
    assert strangers(host.disk, "/nowhere") == []
    host.disk.makedirs(f"{B}/lost+found")
    host.disk.replace_file(f"{B}/.lock", b"")
    assert strangers(host.disk, B) == []
    host.disk.makedirs(f"{A}/t-0")
    host.disk.replace_file(f"{A}/t-0/{'0' * 20}.log", b"")
    assert strangers(host.disk, A) == []


def test_one_with_an_identity_is_a_brokers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    host = with_program()
    LogDirectories.open(host.runtime, (A,)).close()
    assert strangers(host.disk, A) == []
