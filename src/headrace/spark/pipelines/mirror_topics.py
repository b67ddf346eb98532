"""The topics of a mirror: which of the source's, under which names, with which partitions and configs at the target."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.client.admin import Admin, ConfigResource, ConfigSource, NewTopic, ResourceType
from headrace.errors import HeadraceError, TopicAlreadyExistsError
from headrace.spark.pipelines.declaring import WrongOptionError
from headrace.words import plural

TEMPLATE = "{topic}"
_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")

NOT_COPIED = frozenset(
    {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        # Depends on how many brokers the target has.
        "min.insync.replicas",
        "unclean.leader.election.enable",
        # The target must keep the timestamps that it is given.
        "message.timestamp.type",
        "message.timestamp.difference.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
    }
)
"""Topic configs that say something about the source's own brokers, or would change records."""


@dataclass(frozen=True, slots=True)
class Naming:
    """Names of topics at the target, by a template with `{topic}` in it."""

    template: str = TEMPLATE

    def __post_init__(self) -> None:
        if self.template.count(TEMPLATE) != 1 or not _LEGAL.fullmatch(self.template.replace(TEMPLATE, "t")):
            raise WrongOptionError(
                f"--rename is a name with {TEMPLATE} in it once, such as eu.{TEMPLATE}: {self.template!r}"
            )

    @property
    def is_same(self) -> bool:
        return self.template == TEMPLATE

    def target(self, topic: str) -> str:
        return self.template.replace(TEMPLATE, topic)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as a mirror sees it: how many partitions, and which configs were set for it."""

    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """What the target lacks."""

    create: dict[str, Topic] = field(default_factory=dict)
    enlarge: dict[str, int] = field(default_factory=dict)
    configs: dict[str, dict[str, str | None]] = field(default_factory=dict)


def compare(source: Mapping[str, Topic], target: Mapping[str, Topic], *, with_configs: bool = True) -> TopicChanges:
    """What to do so that the target's topics are like the source's (both by the target's names). Pure.

    Partitions are never taken away. A config that is not set at the source is taken back at the target.
    """
    changes = TopicChanges()
    for name, wanted in source.items():
        there = target.get(name)
        if there is None:
            changes.create[name] = wanted
            continue
        if there.partitions < wanted.partitions:
            changes.enlarge[name] = wanted.partitions
        if with_configs and dict(there.configs) != dict(wanted.configs):
            different: dict[str, str | None] = {
                key: value for key, value in wanted.configs.items() if there.configs.get(key) != value
            }
            different.update({key: None for key in there.configs if key not in wanted.configs})
            changes.configs[name] = different
    return changes


def look(admin: Admin, names: Iterable[str], *, with_configs: bool = True) -> dict[str, Topic]:
    """Those of the topics that exist."""
    # Asked by name, a topic that is not there would be waited for: it may be about to appear.
    there = admin.list_topics()
    wanted = sorted({name for name in names if name in there})
    if not wanted:
        return {}
    described = admin.describe_topics(wanted).all()
    configs: dict[str, dict[str, str]] = {}
    if with_configs:
        found = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in described]).all()
        for resource in found:
            configs[resource.name] = {
                entry.name: entry.value
                for entry in found[resource].values()
                if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
                and entry.value is not None
                and entry.name not in NOT_COPIED
            }
    return {name: Topic(len(described[name].partitions), configs.get(name, {})) for name in described}


def apply(admin: Admin, changes: TopicChanges, *, replication_factor: int = -1) -> list[str]:
    """Make the changes; what was done, in words. Somebody else may have created a topic meanwhile."""
    done: list[str] = []
    if changes.create:
        wanted = [
            NewTopic(name, num_partitions=one.partitions, replication_factor=replication_factor, configs=one.configs)
            for name, one in changes.create.items()
        ]
        for name, error in admin.create_topics(wanted).errors.items():
            if not isinstance(error, TopicAlreadyExistsError):
                raise _about(error, f"the topic {name} could not be created at the target")
        done += [f"created {name} with {plural(one.partitions, 'partition')}" for name, one in changes.create.items()]
    if changes.enlarge:
        for name, error in admin.create_partitions(changes.enlarge).errors.items():
            raise _about(error, f"the topic {name} could not be given more partitions at the target")
        done += [f"gave {name} {plural(count, 'partition')}" for name, count in changes.enlarge.items()]
    if changes.configs:
        resources = {ConfigResource(ResourceType.TOPIC, name): keys for name, keys in changes.configs.items()}
        for resource, error in admin.incremental_alter_configs(resources).errors.items():
            raise _about(error, f"the configs of {resource.name} could not be set at the target")
        done += [f"set {', '.join(sorted(keys))} of {name}" for name, keys in changes.configs.items()]
    return done


def _about(error: HeadraceError, what: str) -> HeadraceError:
    return WrongOptionError(f"{what}: {error}") if not isinstance(error, WrongOptionError) else error
