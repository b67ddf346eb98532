"""`headrace start`: a broker in the foreground, until Ctrl-C, SIGTERM or SIGHUP (its terminal was closed).

The options are read with argparse and nothing is drawn with rich, so that a broker is up before a table could be.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import ipaddress
import logging
import logging.handlers
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace._version import __version__
from headrace.cli import console_beside
from headrace.cli.exits import Exit
from headrace.config import ConfigError, RawValue, parse_properties
from headrace.runtime.collecting import keep_frozen
from headrace.runtime.signals import Asked, StopRequests, stop_signals
from headrace.words import some, visible

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.cluster.broker_config import BrokerConfig

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_REGISTRY = "127.0.0.1:8081"
LEVELS = ("debug", "info", "warning", "error")
# Threads look into batches and unpack them; how long the event loop, which everyone waits for, waits for one of them.
SWITCH_INTERVAL_S = 0.0005
_ANY_ADDRESS = ("", "0.0.0.0", "::")


def default_directory() -> Path:
    """`headrace` in the user's data directory: the same data from wherever the command is run."""
    base = os.environ.get("XDG_DATA_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "headrace"


def start(arguments: Sequence[str]) -> int:
    """Run a broker with these options; gives the exit code."""
    options = parser().parse_args(list(arguments))
    set_up_logging(options.log_level)
    try:
        settings = read_settings(options)
        if not options.adopt:
            check_directories(settings)
    except ConfigError as error:
        return _refuse(error)
    port = options.console
    if options.console_changes and port is None:
        port = console_beside.DEFAULT_PORT
    return run_broker(settings, registry=options.registry, console=port, console_changes=options.console_changes)


def parser() -> argparse.ArgumentParser:
    """The options of `headrace start`."""
    found = argparse.ArgumentParser(
        prog="headrace start",
        description="Start a broker and keep it in the foreground. Ctrl-C, SIGTERM or a terminal that is closed "
        "(SIGHUP; not under nohup) stop it cleanly; Ctrl-C a second time ends it at once (the next start then checks "
        "the logs).",
        epilog="Values are taken from --override first, then from --dir and --listen, then from --config, then from "
        "the defaults of Kafka. Exit codes: 0 stopped cleanly, 1 could not start (directory locked, port in use, "
        "disk) or another broker took its number, 2 a wrong option or value.",
    )
    found.add_argument("--dir", metavar="DIR", help=f"where the data is kept (default: {default_directory()})")
    found.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"address to listen on (default: {DEFAULT_LISTEN}; 0.0.0.0 for every address, port 0 for any free one)",
    )
    found.add_argument("--config", metavar="FILE", help="a server.properties, as Kafka's")
    found.add_argument(
        "--override",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a broker setting, over the file's; may be given several times",
    )
    found.add_argument(
        "--adopt", action="store_true", help="keep the data beside what else is in the directory, which is left alone"
    )
    found.add_argument(
        "--metrics-port", metavar="PORT", help="serve /metrics for Prometheus on this port of 127.0.0.1 (0: a free one)"
    )
    found.add_argument(
        "--registry",
        metavar="HOST:PORT",
        nargs="?",
        const=DEFAULT_REGISTRY,
        help=f"a schema registry beside the broker, which keeps its schemas in it (at {DEFAULT_REGISTRY} unless said)",
    )
    found.add_argument(
        "--console",
        metavar="PORT",
        nargs="?",
        type=int,
        const=console_beside.DEFAULT_PORT,
        help="a console in the browser beside the broker, which only looks (at port "
        f"{console_beside.DEFAULT_PORT} of 127.0.0.1 unless said)",
    )
    found.add_argument("--console-changes", action="store_true", help="a console that may change things, too")
    found.add_argument("--log-level", choices=LEVELS, default="info", help="what is worth a line (default: info)")
    return found


# --- settings ---------------------------------------------------------------------------------------------------------


def read_settings(options: argparse.Namespace) -> dict[str, RawValue]:
    """Kafka's settings from the file and the options; a `ConfigError` names what is wrong."""
    settings: dict[str, RawValue] = {}
    if options.config is not None:
        settings.update(_read_file(options.config))
    overrides = dict(_override(text) for text in options.override)
    _warn_of_secrets(overrides)
    given = settings | overrides
    if options.dir is not None:
        settings.pop("log.dir", None)
        settings["log.dirs"] = options.dir
    elif "log.dirs" not in given and "log.dir" not in given:
        settings["log.dirs"] = str(default_directory())
    if options.listen is not None or "listeners" not in given:
        settings["listeners"] = _listener(options.listen or DEFAULT_LISTEN)
    if options.metrics_port is not None:
        settings["headrace.metrics.port"] = options.metrics_port
    settings.update(overrides)
    if "advertised.listeners" not in settings:
        _advertise(settings)
    return settings


def check_directories(settings: Mapping[str, RawValue]) -> None:
    """Refuse directories that hold things, and none of them a broker's: a wrong one is easily named."""
    from headrace.cluster.broker_config import BrokerConfig

    config = BrokerConfig.parse(settings)
    apart = config["metadata.log.dir"]
    for path in (*config.log_dirs, *([str(apart)] if apart else [])):
        check_directory(Path(path), "--dir")


def check_directory(path: Path, option: str) -> None:
    """Raise if a directory has something in it, and nothing of a broker's."""
    from headrace.log.foreign import strangers
    from headrace.runtime import DiskError
    from headrace.runtime.real_disk import RealDisk

    try:
        found = strangers(RealDisk(), str(path.absolute()))
    except DiskError:
        return  # the broker says what is wrong with it
    if found:
        raise ConfigError(
            {
                option: f"{path} is not empty, and has no data of a broker in it, but {some(found)}. Name another "
                "directory, or add --adopt to keep the data beside that"
            }
        )


def _read_file(path: str) -> dict[str, str]:
    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError({"--config": f"--config {path} cannot be read: {reason}"}) from error


def _override(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise ConfigError({"--override": f"--override {text!r} is not KEY=VALUE"})
    return name.strip(), value


def _warn_of_secrets(overrides: Mapping[str, str]) -> None:
    from headrace.cluster.broker_config import is_secret

    for name in overrides:
        if is_secret(name):
            logging.getLogger("headrace").warning(
                "everybody on this machine can see command lines: put %s into a file that only its owner can read, "
                "and name that with --config",
                name,
            )


def _listener(text: str) -> str:
    """`listeners` for what `--listen` said: HOST:PORT, :PORT, PORT or [IPv6]:PORT."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535 or (":" in bare and bare == host):
        raise ConfigError({"--listen": f"--listen {text!r} is not HOST:PORT (an IPv6 address goes into [brackets])"})
    return f"PLAINTEXT://{host}:{port}"


def _advertise(settings: dict[str, RawValue]) -> None:
    """Listening on every address names none: clients are then told this machine's name, if it resolves."""
    text = settings["listeners"]
    if not isinstance(text, str):
        return
    advertised = []
    for listener in text.split(","):
        name, separator, address = listener.strip().partition("://")
        host, colon, port = address.rpartition(":")
        if not separator or not colon:
            return  # malformed: the broker says what is wrong with it
        if host.strip("[]") in _ANY_ADDRESS:
            host = public_host_name()
        advertised.append(f"{name}://{host}:{port}")
    settings["advertised.listeners"] = ",".join(advertised)


def public_host_name() -> str:
    """This machine's name if others could look it up as we can, else localhost."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return "localhost"
    return name


# --- running ----------------------------------------------------------------------------------------------------------


def run_broker(
    settings: dict[str, RawValue],
    *,
    registry: str | None = None,
    console: int | None = None,
    console_changes: bool = False,
) -> int:
    """Run until a signal; every way that a start can fail is one line on stderr."""
    from headrace.errors import HeadraceError
    from headrace.runtime import ListenFailedError

    try:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        if console is not None:
            console_beside.check_installed()
        asyncio.run(_serve(settings, registry, console, console_changes=console_changes))
    except ListenFailedError as error:
        hint = ". Stop what listens there, or choose another address with --listen" if _in_use(error) else ""
        return _fail(f"{error}{hint}")
    except ConfigError as error:
        return _refuse(error)
    except (HeadraceError, OSError) as error:
        return _fail(str(error))
    return Exit.OK


def _in_use(error: BaseException) -> bool:
    import errno

    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE


async def _serve(
    settings: dict[str, RawValue], registry: str | None, console: int | None, *, console_changes: bool
) -> None:
    # First of all: what is imported below takes long enough for somebody to press Ctrl-C.
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    requests = StopRequests(loop.time)
    numbers = stop_signals()
    for number in numbers:
        loop.add_signal_handler(number, _on_signal, number, stopping, requests)
    from headrace.broker.broker import Broker
    from headrace.broker.metadata.identity import ReplacedError
    from headrace.broker.metadata.store_patience import StartGivenUpError
    from headrace.cluster.broker_config import BrokerConfig
    from headrace.log.cleaner_process import InProcess
    from headrace.runtime import raise_descriptor_limit, real_runtime

    raise_descriptor_limit()
    runtime = real_runtime(io_threads=BrokerConfig.parse(settings).get_int("num.io.threads"))
    try:
        audit_log = write_audit_log(BrokerConfig.parse(settings))
        broker = Broker.from_settings(runtime, settings, compaction_worker=InProcess())
        starting = loop.create_task(broker.start())
        waiting = loop.create_task(_until_over(stopping, broker))
        collecting: asyncio.Task[None] | None = None
        await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
        try:
            if stopping.is_set():
                # Whatever it does goes on to its end: half a recovery would have to be done again. What it waits for
                # is not waited for.
                broker.give_up_start()
            with contextlib.suppress(StartGivenUpError):
                await starting
            if not stopping.is_set():
                warn_of_everyone(broker)
                collecting = loop.create_task(keep_frozen(lambda: len(broker.replicas.partitions)))
                print(banner(broker), flush=True)
                with console_beside.console_beside(
                    _plain_address(broker),
                    console,
                    allow_changes=console_changes,
                    audit_logs=[] if audit_log is None else [audit_log],
                    metrics=_open_metrics(broker),
                ):
                    async with _registry_beside(broker, registry):
                        await waiting
            await waiting
        finally:
            if collecting is not None:
                collecting.cancel()
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            await broker.stop()
    finally:
        await runtime.close()
    for number in numbers:
        # Nothing is left to interrupt: a signal that comes now must not turn a clean end into a traceback.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    logging.getLogger("headrace").info("stopped cleanly")
    if broker.identity.replaced is not None:
        raise ReplacedError(broker.identity.replaced)


def _open_metrics(broker: Broker) -> list[str]:
    """Where the broker's figures are, if nobody has to show a token there."""
    address = broker.metrics_address
    return [] if address is None or broker.started_with["headrace.metrics.token"] is not None else [address]


def _plain_address(broker: Broker) -> str | None:
    """Where a console reaches the broker without being asked who it is."""
    for setting in broker.listener_settings:
        if setting.protocol == "PLAINTEXT":
            return _joined(setting.advertised_host, setting.public_port)
    logging.getLogger("headrace").warning(
        "no console: every listener asks who one is. Start it with `headrace console --command-config FILE`"
    )
    return None


@contextlib.asynccontextmanager
async def _registry_beside(broker: Broker, listen: str | None) -> AsyncIterator[None]:
    """A schema registry on a thread of its own, for as long as the broker serves."""
    if listen is None:
        yield
        return
    from headrace.registry.thread import running_registry

    host, port = broker.addresses[0]
    own = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    settings: dict[str, RawValue] = {
        "kafkastore.bootstrap.servers": _joined(own, port),
        "listeners": f"http://{listen}",
    }
    running = running_registry(settings)
    server = await asyncio.to_thread(running.__enter__)
    print(f"  schemas        {server.url}", flush=True)
    try:
        yield
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


async def _until_over(stopping: asyncio.Event, broker: Broker) -> None:
    """Until this process is asked to stop, or another has its broker's number."""
    ends = [asyncio.ensure_future(event.wait()) for event in (stopping, broker.identity.was_replaced)]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()


def _on_signal(number: int, stopping: asyncio.Event, requests: StopRequests) -> None:
    asked = requests.classify()
    if asked is Asked.AGAIN and number == signal.SIGINT:
        sys.stderr.write("headrace: ended at once; the next start checks the logs\n")
        sys.stderr.flush()
        # Exits without closing anything, as asked: the log recovers from that.
        os._exit(Exit.INTERRUPTED)
    if asked is Asked.FIRST:
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        again = " (Ctrl-C again ends at once)" if number == signal.SIGINT else ""
        logging.getLogger("headrace").info("%s: shutting down%s", name, again)
        stopping.set()


def banner(broker: Broker) -> str:
    """What a person wants to know of a broker that has just started."""
    setting = broker.listener_settings[0]
    address = _joined(setting.advertised_host, setting.public_port)
    listening = ", ".join(_joined(s.host or "*", s.port) for s in broker.listener_settings)
    option = "" if address == DEFAULT_LISTEN else f" -b {address}"
    lines = [
        f"Headrace {__version__}, a Kafka broker in Python",
        "",
        f"  listening on   {listening}",
        f"  data           {', '.join(broker.directories.online_paths)}",
        f"  node           {broker.node_id}, cluster {broker.cluster_id}",
        f"  topics         {len(broker.image.topics)}, partitions {len(broker.replicas.partitions)}",
        *([f"  metrics        {broker.metrics_address}"] if broker.metrics_address else []),
        "",
        f"  clients        bootstrap.servers={address}",
        f"  try            headrace topic create events --partitions 3{option}",
        f"                 headrace produce events{option}",
        f"                 headrace consume events --follow{option}",
        "",
        "  Ctrl-C stops it.",
    ]
    return "\n".join(lines)


def warn_of_everyone(broker: Broker) -> None:
    from headrace.cluster.acl_authorizer import is_authorized

    for setting in broker.listener_settings:
        asks_nobody = setting.protocol == "PLAINTEXT" or (
            setting.protocol == "SSL"
            and broker.started_with.listener_value(setting.name, "ssl.client.auth") != "required"
        )
        if asks_nobody and not is_loopback(setting.host):
            may = "do what the rules allow to User:ANONYMOUS" if is_authorized(broker.started_with) else "do everything"
            logging.getLogger("headrace").warning(
                "%s is open to everyone who can reach this machine: nobody has to show who they are, and all may %s. "
                "For this machine alone: --listen 127.0.0.1:%d",
                _joined(setting.host or "*", setting.port),
                may,
                setting.port,
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine itself can reach that address."""
    if host in _ANY_ADDRESS:
        return False
    try:
        found = socket.getaddrinfo(host.strip("[]"), None)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refuse(error: ConfigError) -> int:
    for problem in error.problems.values():
        sys.stderr.write(f"headrace: {problem}\n")
    return Exit.USAGE


def _fail(text: str) -> int:
    sys.stderr.write(f"headrace: {text}\n")
    return Exit.FAILED


# --- logging ----------------------------------------------------------------------------------------------------------

_COLOURS = {"WARNING": "33", "ERROR": "31", "CRITICAL": "31;1", "DEBUG": "2"}


class _Lines(logging.Formatter):
    """`12:30:01.123 WARNING broker: what happened`, in colour on a terminal."""

    def __init__(self, *, coloured: bool) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(room)s: %(message)s", "%H:%M:%S")
        self._coloured = coloured

    def formatMessage(self, record: logging.LogRecord) -> str:
        # One line for one event, whatever clients call themselves.
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return visible(super().formatException(ei), lines=True)

    def format(self, record: logging.LogRecord) -> str:
        record.room = record.name.removeprefix("headrace.")
        line = super().format(record)
        colour = _COLOURS.get(record.levelname) if self._coloured else None
        return line if colour is None else f"\x1b[{colour}m{line}\x1b[0m"


AUDIT_FILE_BYTES_MAX = 10 * 1024 * 1024
AUDIT_FILES_MAX = 5


def write_audit_log(config: BrokerConfig) -> Path | None:
    """Lines of the audit log go to a file of their own, which only its owner can read; older ones are kept for a while.
    Gives that file. Without one they go nowhere: not between the lines for people.
    """
    audit = logging.getLogger("headrace.audit")
    audit.propagate = False
    audit.handlers.clear()
    name = config["headrace.audit.file"]
    if name is None and config["authorizer.class.name"]:
        name = os.path.join(config.log_dirs[0], "audit.jsonl")
    if not name:
        audit.addHandler(logging.NullHandler())
        return None
    path = Path(str(name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.chmod(0o600)
        handler = _OwnersFile(path, maxBytes=AUDIT_FILE_BYTES_MAX, backupCount=AUDIT_FILES_MAX, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            {"headrace.audit.file": f"the audit log {path} cannot be written: {error.strerror}"}
        ) from error
    handler.setFormatter(logging.Formatter("%(message)s"))
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    return path


class _OwnersFile(logging.handlers.RotatingFileHandler):
    def _open(self) -> io.TextIOWrapper:
        return cast(io.TextIOWrapper, open(self.baseFilename, self.mode, encoding=self.encoding, opener=_owners))


def _owners(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def set_up_logging(level: str) -> None:
    """Lines on stderr that a person can read."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(coloured=sys.stderr.isatty() and not os.environ.get("NO_COLOR")))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # asyncio's own debug lines say nothing about a broker.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
