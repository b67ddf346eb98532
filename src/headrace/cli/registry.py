"""`headrace registry`: a schema registry in the foreground, until Ctrl-C, SIGTERM or SIGHUP."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import CommandError
from headrace.config import ConfigError, RawValue, parse_properties
from headrace.runtime.signals import stop_signals

app = typer.Typer(no_args_is_help=True)

DEFAULT_LISTEN = "127.0.0.1:8081"


@app.callback()
def registry() -> None:
    """A schema registry that speaks Confluent's interface."""


@app.command()
def start(
    bootstrap_server: Annotated[
        str | None,
        typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT", help="The Kafka whose topic keeps the schemas."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help=f"Address to listen on (default: {DEFAULT_LISTEN}).")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A schema-registry.properties, as Confluent's.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting, over the file's; may be repeated.")
    ] = None,
) -> None:
    """Start a registry and keep it in the foreground. Several with the same Kafka elect the one that writes."""
    settings = _settings(bootstrap_server, listen, config, override or [])
    from headrace.cli.start import set_up_logging

    set_up_logging("info")
    logging.getLogger("headrace").setLevel(logging.INFO)
    asyncio.run(_serve(settings))


def _settings(
    servers: str | None, listen: str | None, config: Path | None, overrides: list[str]
) -> dict[str, RawValue]:
    settings: dict[str, RawValue] = {}
    if config is not None:
        try:
            settings.update(parse_properties(config.read_text("utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError({"--config": f"--config {config} cannot be read: {error}"}) from error
    if servers is not None:
        settings["kafkastore.bootstrap.servers"] = servers
    if listen is not None or "listeners" not in settings:
        settings["listeners"] = f"http://{listen or DEFAULT_LISTEN}"
    for text in overrides:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigError({"--override": f"--override {text!r} is not KEY=VALUE"})
        settings[name.strip()] = value
    if "kafkastore.bootstrap.servers" not in settings:
        raise CommandError("which Kafka keeps the schemas? Give --bootstrap-server, or --config with a file that says")
    return settings


async def _serve(settings: dict[str, RawValue]) -> None:
    from headrace.registry.server import RegistryServer

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stopping.set)
    server = RegistryServer(settings)
    starting = loop.create_task(server.start())
    waiting = loop.create_task(stopping.wait())
    try:
        await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            sys.stdout.write(f"Schema registry at {server.url}\n")
            sys.stdout.flush()
            await waiting
        else:
            starting.cancel()
    finally:
        waiting.cancel()
        await asyncio.gather(starting, waiting, return_exceptions=True)
        await server.stop()
        for number in stop_signals():
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
