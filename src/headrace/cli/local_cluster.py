"""Several brokers on this machine, each a process of its own: started, looked at, hurt and stopped from any terminal.

What is known of them is in one file of the cluster's directory, so commands need no process that watches over them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from importlib import import_module
from pathlib import Path

from headrace.cli.console_beside import check_installed
from headrace.cli.console_beside import command as command_of_console
from headrace.cli.options import CONFIG_VARIABLE, admin_for, plain_kernels, unreachable
from headrace.cli.options_of_start import settings_as_options
from headrace.cli.output import CommandError, usage
from headrace.cli.secured_cluster import DIRECTORY, PROTOCOL, client_config, client_file, is_secure
from headrace.cli.start import default_directory
from headrace.errors import HeadraceError
from headrace.runtime.processes import process_info
from headrace.secret_files import append_privately, write_secret
from headrace.words import some

BROKERS_MAX = 32
PORT_MAX = 65_535
_STATE_FILE = "cluster.json"
_PARTS = ("metadata", "zookeeper", DIRECTORY)
"""What brokers share, in the cluster's directory."""
_CONSOLE_LOG = "console.log"
_PROBE_S = 3.0
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_LOOK_S = 0.02
_MEMBERS_TIMEOUT_S = 10.0
_PORT_TIMEOUT_S = 2.0
_LOG_LINES_SHOWN = 15


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""Those that this very process started: they are waited for when they end."""


class Health(Enum):
    """What the operating system knows of a broker's process."""

    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


@dataclass(slots=True)
class LocalBroker:
    """One broker: where it listens, where its data is, and the process that it is or was."""

    id: int
    port: int
    pid: int = 0
    started: int = 0
    """When that process began, as the kernel counts: another one may get its number."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def health(self) -> Health:
        found = process_info(self.pid)
        if found is None or found.began != self.started or found.has_ended:
            return Health.DEAD
        return Health.PAUSED if found.is_stopped else Health.RUNNING


@dataclass(slots=True)
class LocalCluster:
    """The brokers of a directory."""

    directory: Path
    brokers: list[LocalBroker] = field(default_factory=list)
    zookeeper: str | None = None
    """`zookeeper.connect`; without it they share a directory."""
    zookeeper_pid: int = 0
    zookeeper_started: int = 0
    console_pid: int = 0
    console_started: int = 0
    overrides: dict[str, str] = field(default_factory=dict)
    adopts: bool = False
    """Whether the brokers may keep their data beside what is not theirs."""

    @staticmethod
    def default_directory() -> Path:
        return default_directory().with_name(f"{default_directory().name}-cluster")

    @classmethod
    def load(cls, directory: Path) -> LocalCluster:
        """The cluster of that directory; a clear error where none was ever started."""
        try:
            document = json.loads((directory / _STATE_FILE).read_text("utf-8"))
        except FileNotFoundError:
            raise CommandError(
                f"there is no cluster in {directory}: start one with `{cls(directory).command('start')}`, or name its "
                "directory with --dir"
            ) from None
        document["brokers"] = [LocalBroker(**entry) for entry in document["brokers"]]
        return cls(directory, **document)

    @classmethod
    def exists(cls, directory: Path) -> bool:
        return (directory / _STATE_FILE).exists()

    def save(self) -> None:
        document = asdict(self)
        del document["directory"]
        path = self.directory / _STATE_FILE
        # Among the settings that were given there may be secrets.
        write_secret(path, json.dumps(document, indent=2) + "\n")

    def command(self, text: str) -> str:
        """A command of `headrace cluster` for this cluster, as it is to be typed."""
        option = "" if self.directory == self.default_directory() else f" --dir {shlex.quote(str(self.directory))}"
        return f"headrace cluster {text}{option}"

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def client(self) -> dict[str, str]:
        """The settings of a client that may do everything. It asks only those that run: one that is paused takes
        connections, and never answers."""
        running = ",".join(broker.address for broker in self.brokers if broker.health is Health.RUNNING)
        return {**client_config(self.directory), "bootstrap.servers": running or self.bootstrap}

    def broker(self, node_id: int) -> LocalBroker:
        for broker in self.brokers:
            if broker.id == node_id:
                return broker
        raise usage(f"there is no broker {node_id}; there are {', '.join(str(broker.id) for broker in self.brokers)}")

    def log_path(self, broker: LocalBroker) -> Path:
        return self.directory / f"broker-{broker.id}.log"

    # --- starting and stopping ----------------------------------------------------------------------------------------

    def check_place(self) -> None:
        """Before it is started for the first time: its directory must not be somebody else's."""
        path = self.directory
        if not path.is_dir():
            return
        own = {_STATE_FILE, *_PARTS, *(name for broker in self.brokers for name in self._names(broker))}
        found = sorted(name for name in os.listdir(path) if not name.startswith(".") and name != "lost+found")
        if others := [name for name in found if name not in own]:
            what = "is a broker's own directory" if "meta.properties" in others else "is not empty"
            raise usage(
                f"{path} {what} ({some(others)}). Name another with --dir, or add --adopt to keep a cluster beside that"
            )

    def _names(self, broker: LocalBroker) -> tuple[str, str, str]:
        return f"broker-{broker.id}", self.log_path(broker).name, f"broker-{broker.id}.secrets"

    def remove(self) -> list[str]:
        """Delete its data; gives the names of what else is in its directory, which stays, and the directory too."""
        for name in (
            *_PARTS,
            _CONSOLE_LOG,
            *(name for broker in self.brokers for name in self._names(broker)),
            _STATE_FILE,
        ):
            path = self.directory / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        left = sorted(os.listdir(self.directory))
        if not left:
            self.directory.rmdir()
        return left

    def check_ports(self) -> None:
        """A port number has 16 bits."""
        first, last = self.brokers[0].port, max(broker.port for broker in self.brokers)
        if last > PORT_MAX:
            raise usage(
                f"{len(self.brokers)} brokers from port {first} on need ports up to {last}, and the last that there is "
                f"is {PORT_MAX}: begin with --port {PORT_MAX - (last - first)} or a lower one"
            )

    def check_zookeeper(self) -> None:
        """Say at once when the ZooKeeper that was named is not there: a broker would wait for it, and so would we."""
        servers = (self.zookeeper or "").partition("/")[0]
        if problems := unreachable(servers, _PROBE_S, "--zookeeper"):
            raise CommandError(
                f"no ZooKeeper can be reached at {', '.join(problems)}. Start it, name another with --zookeeper, or "
                "let --with-zookeeper start one"
            )

    def start_zookeeper(self) -> None:
        """A real ZooKeeper, from the jars of pyspark."""
        try:
            zookeeper = import_module("headrace.testing.zookeeper").ZooKeeperProcess(self.directory / "zookeeper")
            zookeeper.start()
        except RuntimeError as error:
            raise CommandError(str(error)) from error
        self.zookeeper, self.zookeeper_pid = zookeeper.address, zookeeper.pid
        self.zookeeper_started = _began(zookeeper.pid)
        _CHILDREN[self.zookeeper_pid] = zookeeper.let_go()

    def start(self, brokers: Sequence[LocalBroker]) -> float:
        """Start these and wait until clients see them all; gives the seconds that it took."""
        began = time.monotonic()
        for broker in brokers:
            _check_is_free(broker)
        for broker in brokers:
            self._spawn(broker)
        self.save()
        for broker in brokers:
            self._await_listening(broker, began + _START_TIMEOUT_S)
        self._await_members(brokers, began + _START_TIMEOUT_S)
        return time.monotonic() - began

    def _spawn(self, broker: LocalBroker) -> None:
        if broker.health is Health.DEAD:
            _await_end(broker, _STOP_TIMEOUT_S)  # others may have killed it
        settings = self._settings(broker)
        command = [sys.executable, "-m", "headrace.cli", "start"]
        command += ["--dir", str(self.directory / f"broker-{broker.id}"), "--listen", broker.address]
        command += ["--adopt"] if self.adopts else []
        command += settings_as_options(settings, self.directory / f"broker-{broker.id}.secrets")
        with append_privately(self.log_path(broker)) as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "NO_COLOR": "1"},
                # It outlives this command, and a Ctrl-C in this terminal is not for it.
                start_new_session=True,
            )
        _CHILDREN[process.pid] = process
        broker.pid = process.pid
        broker.started = _began(process.pid)

    def _settings(self, broker: LocalBroker) -> Mapping[str, str]:
        copies = str(min(3, len(self.brokers)))
        shared = (
            {"zookeeper.connect": self.zookeeper}
            if self.zookeeper
            else {"headrace.metadata.dir": str(self.directory / "metadata")}
        )
        return {
            "node.id": str(broker.id),
            **({"listeners": f"{PROTOCOL}://{broker.address}"} if is_secure(self.directory) else {}),
            **shared,
            "default.replication.factor": copies,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": str(min(2, int(copies))),
            **{key: value.replace("{id}", str(broker.id)) for key, value in self.overrides.items()},
        }

    def _await_members(self, brokers: Sequence[LocalBroker], deadline: float) -> None:
        """On a busy machine a broker may listen before the controller counts on it, and replicas would lack a place."""
        if any("listener" in name or "authorizer" in name for name in self.overrides):
            return  # settings of the user's own, which may want another login: that they listen has to be enough
        config = self.client() | {"bootstrap.servers": ",".join(broker.address for broker in brokers)}
        numbers = {broker.id for broker in brokers}
        with contextlib.suppress(HeadraceError), plain_kernels(), admin_for(config, _MEMBERS_TIMEOUT_S) as admin:
            while time.monotonic() < deadline and not numbers <= {node.id for node in admin.describe_cluster().nodes}:
                time.sleep(_LOOK_S)

    def _await_listening(self, broker: LocalBroker, deadline: float) -> None:
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", broker.port), timeout=1):
                return
            if broker.health is Health.DEAD:
                _await_end(broker, _STOP_TIMEOUT_S)
                break
            time.sleep(_LOOK_S)
        log = self.log_path(broker)
        said = log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        raise CommandError("\n".join([f"broker {broker.id} did not start; the end of {log}:", *said]))

    def stop(self, brokers: Sequence[LocalBroker]) -> list[int]:
        """Stop these cleanly, one after the other: each hands over what it leads. Gives those that had to be killed."""
        killed = []
        for broker in brokers:
            self.signal(broker, signal.SIGCONT)
            self.signal(broker, signal.SIGTERM)
            if not _await_end(broker, _STOP_TIMEOUT_S):
                self.kill(broker)
                killed.append(broker.id)
        return killed

    def stop_zookeeper(self) -> None:
        """The one that was started with the brokers, if there is one."""
        if self.zookeeper_started and _began(self.zookeeper_pid) == self.zookeeper_started:
            os.kill(self.zookeeper_pid, signal.SIGKILL)
            child = _CHILDREN.pop(self.zookeeper_pid, None)
            if child is not None:
                child.wait()

    def start_console(self, port: int, *, allow_changes: bool) -> None:
        """A console in the browser beside the brokers."""
        check_installed()
        self.stop_console()
        file = client_file(self.directory)
        audit_logs = sorted(self.directory.glob("broker-*/audit.jsonl"))
        with append_privately(self.directory / _CONSOLE_LOG) as log:
            process = subprocess.Popen(
                command_of_console(
                    self.bootstrap, port, allow_changes=allow_changes, with_parent=False, audit_logs=audit_logs
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | ({CONFIG_VARIABLE: str(file)} if is_secure(self.directory) else {}),
                start_new_session=True,
            )
        _CHILDREN[process.pid] = process
        self.console_pid = process.pid
        self.console_started = _began(process.pid)
        self.save()

    def stop_console(self) -> None:
        """The one that was started with the brokers, if there is one."""
        if self.console_started and _began(self.console_pid) == self.console_started:
            os.kill(self.console_pid, signal.SIGTERM)
            child = _CHILDREN.pop(self.console_pid, None)
            if child is not None:
                child.wait()
        self.console_pid = 0

    def signal(self, broker: LocalBroker, number: signal.Signals) -> None:
        if broker.health is not Health.DEAD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(broker.pid, number)

    def kill(self, broker: LocalBroker) -> None:
        """As a crash does; gives back when it is gone."""
        self.signal(broker, signal.SIGKILL)
        _await_end(broker, _STOP_TIMEOUT_S)


def _check_is_free(broker: LocalBroker) -> None:
    """Whoever listens there already would be taken for the broker, which cannot start, and be written to.

    A process that was killed counts as dead when its first thread is; until all are, its port is still taken.
    """
    deadline = time.monotonic() + _PORT_TIMEOUT_S
    while (error := _listening_error(broker.port)) is not None:
        if time.monotonic() > deadline:
            raise CommandError(
                f"broker {broker.id} cannot listen on {broker.address} ({error.strerror}): stop what listens there, or "
                "begin elsewhere with --port and another --dir"
            ) from error
        time.sleep(_LOOK_S)


def _listening_error(port: int) -> OSError | None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as error:
            return error
    return None


def _await_end(broker: LocalBroker, timeout_s: float) -> bool:
    """Whether it ends within that time. One that this process started is gone when it was waited for."""
    child = _CHILDREN.get(broker.pid)
    if child is not None:
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        del _CHILDREN[broker.pid]
        return True
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if broker.health is Health.DEAD:
            return True
        time.sleep(_LOOK_S)
    return False


def _began(pid: int) -> int:
    """When a process began; 0 when it is gone."""
    found = process_info(pid)
    return 0 if found is None else found.began
