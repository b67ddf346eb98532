"""Options that several commands share, and the cluster that they describe."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.output import CommandError, all_of, note, usage
from headrace.client import reachable
from headrace.client.admin import Admin
from headrace.client.configs import parse_address
from headrace.config import ConfigDefinition, ConfigError, parse_properties
from headrace.errors import HeadraceError, KafkaError, UnknownTopicOrPartitionError
from headrace.records.kernels import ENVIRONMENT
from headrace.words import did_you_mean

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 15.0
BOOTSTRAP_VARIABLE = "HEADRACE_BOOTSTRAP"
CONFIG_VARIABLE = "HEADRACE_COMMAND_CONFIG"
_VARIABLE_PREFIX = "HEADRACE_"
_SECURITY = ("security.", "sasl.", "ssl.")
_SERVERS = "bootstrap.servers"
_PROBE_S = 3.0

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,…",
        help=f"Brokers to ask first.  [default: {DEFAULT_BOOTSTRAP}]",
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to wait for answers.")]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        "--client-config",
        envvar=CONFIG_VARIABLE,
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="A properties file for the client: security.protocol, sasl.jaas.config, ssl.truststore.location …",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-X",
        metavar="KEY=VALUE",
        help="A setting of the client, over the file's; several times. Kafka's names, and librdkafka's.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Needed where there is nobody to ask.")]


# --- the cluster ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that a command talks to, and how: what its options, the environment and a file say together."""

    servers: str
    timeout_s: float
    settings: Mapping[str, str] = field(repr=False)
    """By Kafka's names; there may be secrets among them."""
    is_named: bool = True
    """Whether somebody said which cluster it is; otherwise it is the one that is usual on a machine."""

    @property
    def option(self) -> str:
        """What a command needs that is to talk to the same cluster and is shown to be typed."""
        usual = os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
        return "" if self.servers == usual else f" -b {self.servers}"

    def config(self) -> dict[str, Any]:
        """A client's configuration; also makes sure that someone listens, so that a wrong address is said at once."""
        check_reachable(self.servers, min(self.timeout_s, _PROBE_S))
        return {"client.id": "headrace-cli", **self.settings, _SERVERS: self.servers}

    @contextlib.contextmanager
    def admin(self) -> Iterator[Admin]:
        """An Admin for one command."""
        with admin_for(self.config(), self.timeout_s) as admin:
            yield admin


def names_there(target: Target) -> set[str] | None:
    """The topics that there are; None where that may not be known."""
    try:
        with target.admin() as admin:
            return set(admin.list_topics(list_internal=True))
    except KafkaError:
        return None


def admin_for(config: Mapping[str, Any], timeout_s: float) -> Admin:
    """An Admin by a configuration that may have settings of other clients too."""
    from headrace.client.admin.drivers import ADMIN_CONFIGS

    return Admin(only(config, ADMIN_CONFIGS) | {"default.api.timeout.ms": int(timeout_s * 1000)})


def only(config: Mapping[str, Any], definition: ConfigDefinition) -> dict[str, Any]:
    """What one kind of client knows of a configuration: a file is for producers and consumers alike."""
    from headrace.client.other_names import in_kafkas_words

    words = in_kafkas_words(config, definition)
    return {name: value for name, value in words.items() if name in definition}


def target_of(
    bootstrap: str | None, timeout_s: float, file: Path | None, properties: Sequence[str] | None = None
) -> Target:
    """Settings of `-X` count before those of the environment, and those before the file's."""
    from_file = {} if file is None else read_properties(file)
    given = _settings(properties or ())
    settings = from_file | from_environment(os.environ) | given
    _check_names(given, from_file)
    servers = bootstrap or settings.pop(_SERVERS, None) or settings.pop("metadata.broker.list", None)
    settings.pop(_SERVERS, None)
    return Target(servers or DEFAULT_BOOTSTRAP, timeout_s, settings, is_named=bool(servers))


def targeted(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which cluster it talks to. It takes them as one argument, `target`."""
    signature = inspect.signature(function, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "target"]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter("bootstrap", kind, default=None, annotation=Bootstrap),
        inspect.Parameter("command_config", kind, default=None, annotation=CommandConfig),
        inspect.Parameter("properties", kind, default=None, annotation=Properties),
        inspect.Parameter("timeout", kind, default=DEFAULT_TIMEOUT_S, annotation=Timeout),
    ]

    @functools.wraps(function)
    def run(
        *,
        bootstrap: str | None,
        command_config: Path | None,
        properties: list[str] | None,
        timeout: float,
        **arguments: Any,
    ) -> None:
        target = target_of(bootstrap, timeout, command_config, properties)
        try:
            function(**arguments, target=target)
        except (CommandError, UnknownTopicOrPartitionError) as error:
            raise _with_nearest_topics(error, target) from None

    run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]  # what typer reads
    return run


def _with_nearest_topics(error: HeadraceError, target: Target) -> HeadraceError:
    """The same error; of a topic that there is not it says which is nearest."""
    errors = error.errors if isinstance(error, CommandError) else (error,)
    if not any(_missing_topic(one) for one in errors):
        return error
    try:
        with admin_for(target.config(), _PROBE_S) as admin:
            there = admin.list_topics(list_internal=True)
    except HeadraceError:
        return error
    return all_of([_with_nearest(one, there) for one in errors])


def _with_nearest(error: HeadraceError, there: Iterable[str]) -> HeadraceError:
    name = _missing_topic(error)
    return HeadraceError(f"{error}{did_you_mean(name, there)}") if name else error


def _missing_topic(error: HeadraceError) -> str | None:
    return error.topic if isinstance(error, UnknownTopicOrPartitionError) else None


# --- settings ---------------------------------------------------------------------------------------------------------


def read_properties(path: Path) -> dict[str, str]:
    """A properties file as Kafka's tools take it."""
    try:
        return dict(parse_properties(path.expanduser().read_text("utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise usage(f"{path} cannot be read: {why}") from error


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings of security from variables: HEADRACE_SASL_PASSWORD is sasl.password. Unlike options, no other user of
    the machine sees them."""
    found: dict[str, str] = {}
    for variable, value in environment.items():
        name = variable.removeprefix(_VARIABLE_PREFIX).lower().replace("_", ".")
        if variable.startswith(_VARIABLE_PREFIX) and name.startswith(_SECURITY):
            found[name] = value
    return found


def _settings(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            # Only what looks like a name is shown: the rest may be a password.
            shown = re.match(r"[\w.]*", text.strip())
            raise usage(f"-X takes KEY=VALUE, and {shown[0] if shown else ''}… is not")
        found[name.strip()] = value
    return found


def _check_names(given: Mapping[str, str], from_file: Mapping[str, str]) -> None:
    """Refuse settings of `-X` that no client has, and say so of the file's, which other programs may use too."""
    if not given and not from_file:
        return
    from headrace.client.admin.drivers import ADMIN_CONFIGS
    from headrace.client.configs import has_no_effect
    from headrace.client.consumer.config import CONSUMER_CONFIGS
    from headrace.client.other_names import SAME, equivalent
    from headrace.client.producer.config import PRODUCER_CONFIGS

    definitions = (ADMIN_CONFIGS, CONSUMER_CONFIGS, PRODUCER_CONFIGS)
    problems: dict[str, str] = {}
    for name in {**from_file, **given}:
        if name in SAME or has_no_effect(name) or any(name in definition for definition in definitions):
            continue
        near = next((found for one in definitions if (found := one.nearest(name))), None)
        why = equivalent(name) or (f"; did you mean {near}?" if near else "")
        if name in given:
            problems[name] = f"no client has the setting {name}{why}"
        else:
            note(f"the setting {name} has no effect{why}")
    if problems:
        raise ConfigError(problems)


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise usage(f"{option} {text!r} is not KEY=VALUE")
        found[name.strip()] = value
    return found


# --- checks -----------------------------------------------------------------------------------------------------------


def check_reachable(bootstrap: str, timeout_s: float, flag: str = "--bootstrap-server") -> None:
    """Raise when none of the servers takes a connection. `flag` is the option that they were named by."""
    problems = unreachable(bootstrap, timeout_s, flag)
    if not problems:
        return
    other = f"{flag} (-b) or {BOOTSTRAP_VARIABLE}" if flag == "--bootstrap-server" else flag
    raise CommandError(
        f"no broker can be reached at {', '.join(problems)}. Start one with `headrace start`, or name another "
        f"with {other}"
    )


def unreachable(servers: str, timeout_s: float, flag: str) -> list[str]:
    """Why each of the servers takes no connection; nothing when one does."""
    for server in filter(None, (part.strip() for part in servers.split(","))):
        try:
            parse_address(server)
        except (ConfigError, ValueError):
            raise usage(f"{flag} {server!r} is not HOST:PORT") from None
    return reachable.unreachable(servers, timeout_s)


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """Clients made in here do without compiled kernels: loading those takes a second, more than a small job does."""
    if ENVIRONMENT in os.environ:
        yield
        return
    os.environ[ENVIRONMENT] = "plain"
    try:
        yield
    finally:
        del os.environ[ENVIRONMENT]
