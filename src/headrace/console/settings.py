"""What a console is started with: clusters, who may come and what they may do, what is masked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.config import ConfigError
from headrace.console.masking import Mask, masks_of

DEFAULT_PORT = 8080
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """One cluster: how to reach it, by a client's settings, and pages of metrics of what works with it."""

    name: str
    client: Mapping[str, Any] = field(repr=False)
    """There may be secrets among them."""
    metrics: tuple[str, ...] = ()
    registry: str | None = None
    broker_audit: tuple[Path, ...] = ()
    """Audit logs of the brokers, on this machine: of Headrace, or `kafka-authorizer.log`."""

    @property
    def servers(self) -> str:
        return str(self.client["bootstrap.servers"])


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    clusters: tuple[ClusterSettings, ...]
    host: str = LOOPBACK
    port: int = DEFAULT_PORT
    allow_changes: bool = False
    token: str | None = field(default=None, repr=False)
    """What has to be shown before anything is; needed where others than this machine can reach it."""
    host_names: tuple[str, ...] = ()
    """Under which names it is reached, beside loopback addresses."""
    masks: tuple[Mask, ...] = ()
    audit_file: Path | None = None


def read_file(path: Path) -> tuple[tuple[ClusterSettings, ...], tuple[Mask, ...]]:
    """Clusters and masks of a TOML file:

    [clusters.production]
    "bootstrap.servers" = "kafka1:9092,kafka2:9092"
    "security.protocol" = "SASL_SSL"
    metrics = ["http://app1:9405/metrics"]
    audit = ["/var/lib/headrace/audit.jsonl"]

    [[masks]]
    topics = "orders.*"
    fields = ["value.card.number", "headers.authorization"]
    """
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError({"--config": f"--config {path} cannot be read: {error}"}) from error
    problems = {name: f"{path}: nobody knows [{name}]" for name in found.keys() - {"clusters", "masks"}}
    clusters = []
    for name, values in found.get("clusters", {}).items():
        if not isinstance(values, dict) or not isinstance(values.get("bootstrap.servers"), str):
            problems[name] = f'{path}: [clusters.{name}] needs "bootstrap.servers"'
            continue
        values = dict(values)
        metrics = tuple(map(str, values.pop("metrics", ())))
        registry = values.pop("schema.registry.url", None)
        audit = tuple(Path(str(one)) for one in values.pop("audit", ()))
        clusters.append(ClusterSettings(name, values, metrics, registry, audit))
    if not clusters and not problems:
        problems["clusters"] = f'{path} names no cluster: [clusters.NAME] with "bootstrap.servers"'
    masks: tuple[Mask, ...] = ()
    try:
        masks = masks_of(found.get("masks", []))
    except ValueError as error:
        problems["masks"] = f"{path}: {error}"
    if problems:
        raise ConfigError(problems)
    return tuple(clusters), masks
