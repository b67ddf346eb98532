"""Options that several commands share, and the connection that they describe."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.output import CommandError, usage
from headrace.client.admin import Admin
from headrace.client.configs import parse_address
from headrace.config import ConfigError, parse_properties
from headrace.records.kernels import ENVIRONMENT

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_PROBE_S = 3.0

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="HEADRACE_BOOTSTRAP",
        metavar="HOST:PORT,…",
        help="Brokers to ask first.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to wait for answers.")]
ClientConfig = Annotated[
    Path | None,
    typer.Option(
        "--client-config",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Properties for the client (security.protocol, ssl.* …).",
    ),
]
DEFAULT_TIMEOUT_S = 15.0


def client_config(bootstrap: str, timeout_s: float, properties: Path | None) -> dict[str, Any]:
    """A client's configuration; also makes sure that someone listens, so that a wrong address is said at once."""
    config: dict[str, Any] = {} if properties is None else dict(parse_properties(properties.read_text("utf-8")))
    config["bootstrap.servers"] = bootstrap
    config.setdefault("client.id", "headrace-cli")
    check_reachable(bootstrap, min(timeout_s, _PROBE_S))
    return config


def check_reachable(bootstrap: str, timeout_s: float) -> None:
    """Raise when none of the servers takes a connection."""
    problems = []
    for server in filter(None, (part.strip() for part in bootstrap.split(","))):
        try:
            host, port = parse_address(server)
        except (ConfigError, ValueError):
            raise usage(f"--bootstrap-server {server!r} is not HOST:PORT") from None
        try:
            socket.create_connection((host, port), timeout=timeout_s).close()
        except OSError as error:
            problems.append(f"{server} ({error.strerror or 'no answer'})")
        else:
            return
    raise CommandError(
        f"no broker can be reached at {', '.join(problems)}. Start one with `headrace start`, or name another "
        "with --bootstrap-server (-b) or HEADRACE_BOOTSTRAP"
    )


@contextlib.contextmanager
def connect(bootstrap: str, timeout_s: float, properties: Path | None = None) -> Iterator[Admin]:
    """An Admin for one command."""
    config = client_config(bootstrap, timeout_s, properties)
    with Admin(config, default_api_timeout_ms=int(timeout_s * 1000)) as admin:
        yield admin


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


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise usage(f"{option} {text!r} is not KEY=VALUE")
        found[name.strip()] = value
    return found
