"""`headrace start` as a process: banner, signals, and every way not to start in one line."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.cli import start as start_module
from headrace.cli.start import default_directory, parser, read_settings
from headrace.client.admin import Admin
from headrace.config import ConfigError
from headrace.testing import BrokerProcess

pytestmark = pytest.mark.slow


_HEADRACE = (sys.executable, "-m", "headrace.cli")


def start(
    *arguments: str, environment: dict[str, str] | None = None, program: Sequence[str] = _HEADRACE
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*program, "start", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )


@contextlib.contextmanager
def started(*arguments: str, program: Sequence[str] = _HEADRACE) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker that is ready, and its banner; killed at the end if it still runs."""
    process = start(*arguments, program=program)
    assert process.stdout is not None
    banner = ""
    try:
        while "Ctrl-C stops it" not in banner:
            line = process.stdout.readline()
            assert line, f"it ended: {process.communicate()[1]}"
            banner += line
        yield process, banner
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finished(process: subprocess.Popen[str], timeout_s: float = 60) -> tuple[int, str]:
    _, err = process.communicate(timeout=timeout_s)
    return process.returncode, err


def test_the_banner_says_where_and_how(tmp_path: Path) -> None:
    with started("--dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0") as (process, banner):
        port = re.search(r"listening on +127\.0\.0\.1:(\d+)", banner)
        assert port is not None
        address = f"127.0.0.1:{port[1]}"
        assert f"bootstrap.servers={address}" in banner
        assert str(tmp_path / "d") in banner
        assert "node           1, cluster " in banner
        with Admin(bootstrap_servers=address) as admin:
            assert admin.list_topics() == {}
        process.send_signal(signal.SIGTERM)
        code, err = finished(process)
    assert code == 0
    assert "SIGTERM: shutting down" in err
    assert "stopped cleanly" in err


def test_ctrl_c_stops_cleanly(tmp_path: Path) -> None:
    with started("--dir", str(tmp_path), "--listen", "127.0.0.1:0") as (process, _):
        process.send_signal(signal.SIGINT)
        assert finished(process)[0] == 0
    # A clean stop: the next start does not check the logs.
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_terminal_that_is_closed_stops_it_cleanly(tmp_path: Path) -> None:
    # The tests themselves may run under nohup, which a child would inherit.
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGHUP, inherited)
        process, _ = stack.enter_context(started("--dir", str(tmp_path), "--listen", "127.0.0.1:0"))
        process.send_signal(signal.SIGHUP)
        code, err = finished(process)
    assert code == 0
    assert "SIGHUP: shutting down" in err
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_under_nohup_it_stays(tmp_path: Path) -> None:
    with started(
        "--dir", str(tmp_path), "--listen", "127.0.0.1:0", program=["nohup", sys.executable, "-m", "headrace.cli"]
    ) as (process, _):
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        code, err = finished(process)
    assert code == 0
    assert "SIGHUP" not in err


def test_the_same_directory_twice_is_refused_in_one_line(tmp_path: Path) -> None:
    with started("--dir", str(tmp_path), "--listen", "127.0.0.1:0") as (process, _):
        code, err = finished(start("--dir", str(tmp_path), "--listen", "127.0.0.1:0"))
        assert code == 1
        assert f"process {process.pid} holds it" in err
        assert err.startswith("headrace: ")
        assert len(err.splitlines()) == 1


def test_a_port_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err = finished(start("--dir", str(tmp_path), "--listen", f"127.0.0.1:{port}"))
    assert code == 1
    assert err.splitlines() == [
        f"headrace: listening on 127.0.0.1:{port} failed: Address already in use. "
        "Stop what listens there, or choose another address with --listen"
    ]


def test_a_directory_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, err = finished(start("--dir", str(tmp_path / "file" / "data"), "--listen", "127.0.0.1:0"))
    assert code == 1
    assert err.splitlines()[-1].startswith("headrace: ")
    assert "Not a directory" in err
    assert "Traceback" not in err


def test_wrong_values_are_told_one_line_each(tmp_path: Path) -> None:
    code, err = finished(
        start("--dir", str(tmp_path), "--override", "num.partitions=none", "--override", "log.retention.ms=x")
    )
    assert code == 2
    assert len(err.splitlines()) == 2
    assert "num.partitions" in err
    assert "log.retention.ms" in err


def test_unknown_keys_are_warned_of_and_ignored(tmp_path: Path) -> None:
    with started("--dir", str(tmp_path), "--listen", "127.0.0.1:0", "--override", "num.partitons=3") as (process, _):
        process.terminate()
        code, err = finished(process)
    assert code == 0
    assert re.search(r"WARNING +broker: unknown setting num\.partitons is ignored; did you mean num\.partitions\?", err)


def test_a_killed_broker_starts_again_with_what_it_had(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        from headrace.client.admin import NewTopic

        with Admin(bootstrap_servers=broker.address) as admin:
            admin.create_topics([NewTopic("kept", 2)]).all()
        broker.kill()
        broker.start()
        with Admin(bootstrap_servers=broker.address) as admin:
            assert list(admin.list_topics()) == ["kept"]


# A shutdown that never ends, so that the second signal always finds it under way.
_HELD_SHUTDOWN = """
import asyncio
from headrace.broker.broker import Broker
from headrace.cli import main
from headrace.runtime import signals

async def held(self):
    print("shutdown is held", flush=True)
    await asyncio.Event().wait()

Broker.stop = held
signals.ECHO_S = 0.0  # however soon the second comes, it is meant
main()
"""


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    program = [sys.executable, "-c", _HELD_SHUTDOWN]
    with started("--dir", str(tmp_path), "--listen", "127.0.0.1:0", program=program) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "shutdown is held\n"
        process.send_signal(signal.SIGINT)
        code, err = finished(process)
    assert code == 130
    assert "ended at once" in err


_INTERRUPTED_WHILE_IT_LOADS = """
import os, signal, sys

# A shell lets what it runs in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Presses())
from headrace.cli import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize(("loading", "said"), [("argparse", ""), ("headrace.broker.broker", "stopped cleanly")])
def test_ctrl_c_while_it_loads_is_no_traceback(loading: str, said: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", _INTERRUPTED_WHILE_IT_LOADS, loading]
    code, err = finished(start("--dir", str(tmp_path), "--listen", "127.0.0.1:0", program=program))
    assert code == (0 if said else 130), err
    assert "Traceback" not in err
    assert said in err


# --- settings ---------------------------------------------------------------------------------------------------------


def settings(*arguments: str) -> dict[str, object]:
    return dict(read_settings(parser().parse_args(list(arguments))))


def test_options_come_before_the_file_and_overrides_before_both(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("# as Kafka's\nlisteners=PLAINTEXT://:9999\nlog.dirs=/a\nnum.partitions=4\n")
    given = settings("--config", str(path))
    assert (given["listeners"], given["log.dirs"], given["num.partitions"]) == ("PLAINTEXT://:9999", "/a", "4")
    given = settings("--config", str(path), "--dir", "/b", "--listen", "localhost:1", "--override", "num.partitions=5")
    assert (given["listeners"], given["log.dirs"], given["num.partitions"]) == ("PLAINTEXT://localhost:1", "/b", "5")
    assert settings("--dir", "/b", "--override", "log.dirs=/c")["log.dirs"] == "/c"


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    given = settings()
    assert given["log.dirs"] == str(tmp_path / "headrace") == str(default_directory())
    assert given["listeners"] == given["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9092"


def test_every_address_is_advertised_by_a_name_that_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_module.socket, "gethostname", lambda: "localhost")
    assert settings("--listen", "0.0.0.0:1234")["advertised.listeners"] == "PLAINTEXT://localhost:1234"
    monkeypatch.setattr(start_module.socket, "gethostname", lambda: "no-such-host.invalid")

    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(start_module.socket, "getaddrinfo", unknown)
    assert settings("--listen", "[::]:1")["advertised.listeners"] == "PLAINTEXT://localhost:1"
    assert settings("--listen", ":7")["advertised.listeners"] == "PLAINTEXT://localhost:7"


@pytest.mark.parametrize("text", ["host", "host:port", "host:99999", "::1:9092", "host:"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        settings("--listen", text)


def test_an_override_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not KEY=VALUE"):
        settings("--override", "num.partitions")


def test_num_io_threads_is_how_many_disk_threads_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def real_runtime(io_threads: int) -> None:
        asked.append(io_threads)
        raise ConfigError({"x": "enough"})

    monkeypatch.setattr("headrace.runtime.real_runtime", real_runtime)
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    assert start_module.run_broker({**settings, "num.io.threads": "3"}) == 2
    assert start_module.run_broker({**settings}) == 2
    assert asked == [3, 8]
