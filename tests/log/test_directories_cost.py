"""Many logs in a directory: what is the same for all of them is done once, and nothing is weaker for it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import pytest
from tests.log.making import append_one

from headrace.log import Log, LogConfig, LogDirectories, checkpoints, partition_metadata
from headrace.runtime import Runtime
from headrace.runtime.simulated import Host, SimulatedCrash, Simulation, run_simulation
from headrace.topics import TopicPartition

from .making import NOW_MS, batch, make_host

A = "/data/a"
CONFIG = LogConfig()
TOPIC_ID = bytes(range(16))
FIRST = "0" * 20


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def opened(host: Host) -> LogDirectories:
    directories = LogDirectories.open(host.runtime, [A])
    directories.open_logs(lambda topic: CONFIG)
    return directories


def write(log: Log, count: int = 3) -> None:
    for _ in range(count):
        append_one(log, batch(b"value"), leader_epoch=0, now_ms=NOW_MS)


def operations(host: Host, work: Callable[[], object]) -> Counter[tuple[str, str]]:
    """What `work` does to the disk: how often each operation on each path."""
    begin, counted = host.disk.begin, Counter[tuple[str, str]]()

    def counting(operation: str, path: str, *details: str | int) -> None:
        counted[operation, path] += 1
        begin(operation, path, *details)

    host.disk.begin = counting  # type: ignore[method-assign]  # for this work alone
    try:
        work()
    finally:
        host.disk.begin = begin  # type: ignore[method-assign]  # as it was
    return counted


def lose_power(host: Host) -> None:
    host.kill(power_loss=True)
    host.restart()


@pytest.mark.parametrize("was_killed", [False, True])
def test_logs_without_records_cost_a_stop_nothing(was_killed: bool) -> None:
    def stop(count: int) -> Counter[str]:
        host = make_host()
        directories = opened(host)
        for number in range(count):
            directories.create(tp(number), CONFIG, TOPIC_ID).begin_epoch(0)
        if was_killed:
            host.kill(power_loss=False)
            host.restart()
            directories = opened(host)
        return Counter(operation for operation, _ in operations(host, directories.close))

    assert stop(20) == stop(1)


def test_a_log_that_is_found_without_records_is_not_looked_into() -> None:
    host = make_host()
    directories = opened(host)
    directories.create(tp(0), CONFIG, TOPIC_ID)
    directories.close()
    counted = operations(host, lambda: opened(host))
    home = f"{A}/{tp(0)}"
    assert {operation: count for (operation, path), count in counted.items() if path.startswith(home)} == {
        "read": 1,  # partition.metadata
        "is_dir": 2,
        "listdir": 1,
        "size": 1,
    }


def test_the_first_record_of_a_log_makes_its_identity_durable_also_after_a_clean_stop() -> None:
    host = make_host()
    directories = opened(host)
    directories.create(tp(0), CONFIG, TOPIC_ID)
    directories.close()
    log = opened(host).logs[tp(0)]
    assert log.recovery.clean
    write(log)
    log.sync()
    lose_power(host)
    found = opened(host).logs[tp(0)]
    assert (found.topic_id, found.end_offset) == (TOPIC_ID, 3)


def test_a_log_without_records_that_is_lost_after_a_clean_stop_is_made_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    for seed in range(50):
        host = make_host(seed)
        directories = opened(host)
        directories.create(tp(0), CONFIG, TOPIC_ID)
        write(directories.create(tp(1), CONFIG, TOPIC_ID))
        directories.close()
        lose_power(host)
        directories = opened(host)
        assert directories.logs[tp(1)].end_offset == 3
        log = directories.create(tp(0), CONFIG, TOPIC_ID)
        if log.topic_id is None:
            directories.identify(log, TOPIC_ID)
        write(log, 1)
        directories.close()
        lose_power(host)
        found = opened(host).logs[tp(0)]
        assert (found.topic_id, found.end_offset) == (TOPIC_ID, 1), seed


def test_a_stop_syncs_each_file_once_and_the_directory_of_all_logs_not_for_each() -> None:
    def stop(count: int) -> Counter[tuple[str, str]]:
        host = make_host()
        directories = opened(host)
        for number in range(count):
            write(directories.create(tp(number), CONFIG, TOPIC_ID))
        counted = operations(host, directories.close)
        return Counter({key: times for key, times in counted.items() if "sync" in key[0]})

    syncs = stop(20)
    assert syncs["sync_dir", A] == stop(1)["sync_dir", A]
    for name in (f"{FIRST}.log", f"{FIRST}.index", f"{FIRST}.timeindex", partition_metadata.FILE_NAME):
        assert [syncs["sync", f"{A}/{tp(number)}/{name}"] for number in range(20)] == [1] * 20, name


def test_a_crash_at_any_moment_of_a_stop_loses_nothing_that_was_synced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    for moment in range(400):
        host = make_host(moment)
        directories = opened(host)
        synced, other = (directories.create(tp(number), CONFIG, TOPIC_ID) for number in range(2))
        write(synced)
        synced.sync()
        write(synced)
        write(other)
        host.disk.crash_after(moment)
        try:
            directories.close()
        except SimulatedCrash:
            is_stopped = False
        else:
            is_stopped = True
        lose_power(host)
        logs = opened(host).logs
        ends = [logs[tp(number)].end_offset if tp(number) in logs else 0 for number in range(2)]
        assert ends[0] in range(3, 7), moment
        assert ends[1] in range(4), moment
        assert logs[tp(0)].topic_id == TOPIC_ID
        if is_stopped:
            assert ends == [6, 3], moment
            assert logs[tp(1)].topic_id == TOPIC_ID
            return
    raise AssertionError("the stop never came to its end")


def test_what_a_topic_is_set_to_is_asked_once_and_checkpoints_are_read_once() -> None:
    asked: list[str] = []

    def config_of(topic: str) -> LogConfig:
        asked.append(topic)
        return CONFIG

    async def main(host: Host, runtime: Runtime) -> Counter[tuple[str, str]]:
        directories = LogDirectories.open(runtime, [A])
        for number in range(40):
            write(directories.create(tp(number), CONFIG, TOPIC_ID))
        directories.close()
        directories = LogDirectories.open(runtime, [A])
        begin, counted = host.disk.begin, Counter[tuple[str, str]]()

        def counting(operation: str, path: str, *details: str | int) -> None:
            counted[operation, path] += 1
            begin(operation, path, *details)

        host.disk.begin = counting  # type: ignore[method-assign]  # the host is not used any more afterwards
        logs = await directories.open_logs_in_parallel(config_of)
        assert {log.end_offset for log in logs.values()} == {3}
        return counted

    async def on_a_host(simulation: Simulation) -> Counter[tuple[str, str]]:
        host = simulation.host()
        return await host.start(main(host, host.runtime))

    counted = run_simulation(on_a_host, 1).value
    assert asked == ["t"]
    for name in (checkpoints.RECOVERY_POINT, checkpoints.LOG_START, checkpoints.HIGH_WATERMARK, checkpoints.CLEANER):
        assert counted["read", f"{A}/{name}"] == 1, name
    for number in range(40):
        assert counted["read", f"{A}/{tp(number)}/{partition_metadata.FILE_NAME}"] == 1
