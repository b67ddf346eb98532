"""Configuration of topics, brokers and groups: describe, change key by key, list what has some."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from headrace.client.admin.core import (
    Ask,
    Context,
    Results,
    answers,
    ask_all,
    ask_one,
    forget_controller,
    missing,
    nodes,
    refused,
    retried,
    single,
)
from headrace.client.admin.types import (
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    OpType,
    ResourceType,
)
from headrace.client.cluster.core import ANY_NODE
from headrace.client.flows import Flow
from headrace.config import ConfigType, ConfigValue, format_value
from headrace.errors import HeadraceError, InvalidRequestError
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest

Config = dict[str, ConfigEntry]

# A newer broker may have more of both.
_BROKER = re.compile("[0-9]{1,10}")
_TYPES = {int(kind): kind for kind in ConfigType}
_SOURCES = {int(source): source for source in ConfigSource}


def _by_destination(
    context: Context, resources: Iterable[ConfigResource]
) -> Flow[tuple[dict[int | None, list[ConfigResource]], dict[ConfigResource, HeadraceError]]]:
    """Configuration of one broker is that broker's to tell and to change; the rest is anyone's."""
    grouped: dict[int | None, list[ConfigResource]] = {}
    errors: dict[ConfigResource, HeadraceError] = {}
    for resource in resources:
        own = resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name
        if own and not _BROKER.fullmatch(resource.name):
            errors[resource] = InvalidRequestError(f"a broker is named by its number, not {resource.name!r}")
        else:
            grouped.setdefault(int(resource.name) if own else ANY_NODE, []).append(resource)
    if any(node_id is not None for node_id in grouped):
        known = yield from nodes(context)
        if isinstance(known, HeadraceError):
            return {}, errors | dict.fromkeys((r for found in grouped.values() for r in found), known)
        for node_id in [node_id for node_id in grouped if node_id is not None and node_id not in known]:
            gone = InvalidRequestError(f"there is no broker {node_id}: there are {', '.join(map(str, known))}")
            errors.update(dict.fromkeys(grouped.pop(node_id), gone))
    return grouped, errors


def describe_configs(
    context: Context,
    resources: Iterable[ConfigResource],
    *,
    include_synonyms: bool = False,
    include_documentation: bool = False,
    keys: Sequence[str] | None = None,
) -> Flow[Results[ConfigResource, Config]]:
    """The configuration in effect, by key; `keys` asks for some of it only."""

    def ask(node_id: int | None, group: list[ConfigResource]) -> Ask:
        return Ask(
            node_id,
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=int(resource.type),
                        resource_name=resource.name,
                        configuration_keys=None if keys is None else list(keys),
                    )
                    for resource in group
                ],
                include_synonyms=include_synonyms,
                include_documentation=include_documentation,
            ),
        )

    def attempt(pending: list[ConfigResource]) -> Flow[Mapping[ConfigResource, Config | HeadraceError]]:
        grouped, errors = yield from _by_destination(context, pending)
        outcome: dict[ConfigResource, Config | HeadraceError] = dict(errors)
        replies = yield from ask_all(context, [ask(node_id, group) for node_id, group in grouped.items()])
        for _, response in answers(grouped, replies, outcome):
            for result in response.results:
                resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
                outcome[resource] = refused(result.error_code, result.error_message, str(resource)) or {
                    entry.name: _entry(entry) for entry in result.configs
                }
        return missing(pending, outcome, "DescribeConfigs")

    return (yield from retried(context, resources, attempt))


def _entry(entry: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        entry.name,
        entry.value,
        _source(entry.config_source),
        entry.read_only,
        entry.is_sensitive,
        tuple(ConfigSynonym(s.name, s.value, _source(s.source)) for s in entry.synonyms),
        _TYPES.get(entry.config_type),
        entry.documentation,
    )


def _source(number: int) -> ConfigSource:
    return _SOURCES.get(number, ConfigSource.UNKNOWN)


def incremental_alter_configs(
    context: Context,
    changes: Mapping[ConfigResource, Iterable[AlterConfigOp] | Mapping[str, ConfigValue]],
    *,
    validate_only: bool = False,
) -> Flow[Results[ConfigResource, None]]:
    """Change some keys and leave the rest. A mapping sets keys to values, and takes back those whose value is None."""
    operations = {resource: _operations(change) for resource, change in changes.items()}

    def ask(node_id: int | None, group: list[ConfigResource]) -> Ask:
        return Ask(
            node_id,
            IncrementalAlterConfigsRequest(
                resources=[
                    AlterConfigsResource(
                        resource_type=int(resource.type),
                        resource_name=resource.name,
                        configs=[
                            AlterableConfig(name=op.name, config_operation=int(op.op), value=format_value(op.value))
                            for op in operations[resource]
                        ],
                    )
                    for resource in group
                ],
                validate_only=validate_only,
            ),
        )

    def attempt(pending: list[ConfigResource]) -> Flow[Mapping[ConfigResource, HeadraceError | None]]:
        grouped, errors = yield from _by_destination(context, pending)
        outcome: dict[ConfigResource, HeadraceError | None] = dict(errors)
        replies = yield from ask_all(context, [ask(node_id, group) for node_id, group in grouped.items()])
        for _, response in answers(grouped, replies, outcome):
            for result in response.responses:
                forget_controller(context, result.error_code)
                resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
                outcome[resource] = refused(result.error_code, result.error_message, str(resource))
        return missing(pending, outcome, "IncrementalAlterConfigs")

    return (yield from retried(context, operations, attempt))


def _operations(change: Iterable[AlterConfigOp] | Mapping[str, ConfigValue]) -> list[AlterConfigOp]:
    if isinstance(change, Mapping):
        return [
            AlterConfigOp(name, value, OpType.DELETE if value is None else OpType.SET) for name, value in change.items()
        ]
    return list(change)


def list_config_resources(context: Context, types: Iterable[ResourceType] = ()) -> Flow[list[ConfigResource]]:
    """The resources that have configuration of their own, of these types (none: of all)."""
    wanted = [int(kind) for kind in types]

    def attempt() -> Flow[list[ConfigResource] | HeadraceError]:
        reply = yield from ask_one(context, ANY_NODE, ListConfigResourcesRequest(resource_types=wanted))
        if reply.error is not None:
            return reply.error
        return refused(reply.response.error_code) or [
            ConfigResource(ResourceType(resource.resource_type), resource.resource_name)
            for resource in reply.response.config_resources
        ]

    return (yield from single(context, attempt))
