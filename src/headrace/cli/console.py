"""`headrace console`: the console for any Kafka, until Ctrl-C."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.console_beside import end_with_parent
from headrace.cli.options import Target, targeted, unreachable
from headrace.cli.output import CommandError, note, usage
from headrace.cli.start import is_loopback

TOKEN_VARIABLE = "HEADRACE_CONSOLE_TOKEN"
_PROBE_S = 1.0


@targeted
def command(
    host: Annotated[str, typer.Option("--host", help="Where to listen; others need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0: any free one.")] = 8080,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let it create, delete, produce, reset; else it only shows.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Several clusters, and masks, in a TOML file.", dir_okay=False),
    ] = None,
    host_name: Annotated[
        list[str] | None, typer.Option("--host-name", help="A name that it is reached by; several times.")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics", metavar="URL", help="A page of metrics of parallel consumers or Spark; several times."
        ),
    ] = None,
    schema_registry: Annotated[
        str | None, typer.Option("--schema-registry", metavar="URL", help="Show messages by their schemas.")
    ] = None,
    audit_log: Annotated[
        Path | None, typer.Option("--audit-log", metavar="FILE", help="Write every change to this file.")
    ] = None,
    broker_audit: Annotated[
        list[Path] | None,
        typer.Option(
            "--broker-audit",
            metavar="FILE",
            help="A broker's audit log, or kafka-authorizer.log: what was refused; several times.",
        ),
    ] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
    name: Annotated[str, typer.Option("--name", help="What the cluster is called on the pages.")] = "kafka",
    *,
    target: Target,
) -> None:
    """Show a Kafka in the browser: brokers, topics, messages, groups with lag and history, transactions.

    It only looks, unless --allow-changes lets it change something. On another host than a loopback address it needs a
    token, from HEADRACE_CONSOLE_TOKEN or made up and printed.
    """
    try:
        from headrace.console.serving import address_of, bind, serve
    except ModuleNotFoundError as error:
        raise CommandError(f"the console needs {error.name}: pip install 'headrace[console]'") from error
    from headrace.console.settings import ClusterSettings, ConsoleSettings, read_file

    clusters, masks = ((), ()) if config is None else read_file(config)
    if config is None or target.is_named:
        own = ClusterSettings(
            name,
            {**target.settings, "bootstrap.servers": target.servers},
            tuple(metrics or ()),
            schema_registry,
            tuple(broker_audit or ()),
        )
        clusters = (own, *clusters)
    if len({one.name for one in clusters}) < len(clusters):
        raise usage(f"two clusters have the name {name!r}: give --name another")
    if with_parent:
        threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
        note(f"the token for this time: {token}")
    settings = ConsoleSettings(
        clusters,
        host,
        port,
        allow_changes=allow_changes,
        token=token,
        host_names=(*(host_name or ()), *([] if is_loopback(host) else [host])),
        masks=masks,
        audit_file=audit_log,
    )
    try:
        listening = bind(settings)
    except OSError as error:
        raise CommandError(
            f"the console cannot listen on {host}:{port}: {error.strerror}. Name another --port"
        ) from error
    print(f"the console is at {address_of(settings, listening)}", flush=True)
    for one in clusters:
        away = unreachable(one.servers, _PROBE_S, one.name)
        state = f"; no broker can be reached now: {', '.join(away)}" if away else ""
        note(f"  {one.name}: {one.servers}{'' if allow_changes else ' (read-only)'}{state}")
    serve(settings, listening)
