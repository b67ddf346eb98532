"""Changes of configuration: whole (AlterConfigs), key by key (IncrementalAlterConfigs), and descriptions of it."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from headrace.cluster import client_metrics_config
from headrace.cluster.broker_config import BROKER_CONFIGS, BrokerConfig, dynamic_problem, key_for
from headrace.cluster.configs import (
    BrokerLayers,
    ConfigEntry,
    broker_values,
    describe_broker,
    describe_client_metrics,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
    group_values,
    topic_values,
    with_own_values,
)
from headrace.cluster.decision import NO_ERROR, ApiError, Decision
from headrace.cluster.features import has_eligible
from headrace.cluster.group_config import GROUP_CONFIGS, check_limits
from headrace.cluster.image import Image
from headrace.cluster.records import ConfigRecord, MetadataRecord, ResourceType
from headrace.cluster.topic_names import name_problem
from headrace.config import ConfigDefinition, ConfigError, ConfigKey, ConfigType, ConfigValue, format_value
from headrace.error_codes import ErrorCode
from headrace.log.config import TOPIC_CONFIGS, check_together
from headrace.protocol.messages import alter_configs, describe_configs, incremental_alter_configs
from headrace.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from headrace.protocol.schema import Shared

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3

# Of one request.
HINTS_MAX: Final = 5

_MIN_ISR: Final = "min.insync.replicas"
_THREADS: Final = (
    *("num.io.threads", "num.network.threads", "num.replica.fetchers", "num.recovery.threads.per.data.dir"),
    *("background.threads", "log.cleaner.threads"),
)
_JAVA_NUMBER: Final = re.compile(r"([+-]?)0*([0-9]{1,10})", re.ASCII)
_RESOURCE_TYPES: Final = frozenset(ResourceType)
_ALTERABLE: Final = _RESOURCE_TYPES - {ResourceType.BROKER_LOGGER}
# Kafka's own words for this code: clients' tests look for them.
_MALFORMED: Final = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)


class _Named(Protocol):
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ConfigContext:
    """Who decides: the broker whose configuration gives the defaults."""

    image: Image
    config: BrokerConfig
    node_id: int
    #: How many names that nobody knows are compared with those that are known, which takes up to milliseconds each.
    hints: Iterator[int] = field(default_factory=lambda: iter(range(HINTS_MAX)), compare=False)

    #: What was made once for all that a request asks for.
    _made: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def layers(self) -> BrokerLayers:
        if "layers" not in self._made:
            self._made["layers"] = BrokerLayers.of(self.image, self.config, self.node_id)
        layers: BrokerLayers = self._made["layers"]
        return layers

    def topic_values(self, overrides: Mapping[str, str]) -> dict[str, ConfigValue]:
        """Every topic key with the value in effect, for a topic with these values of its own."""
        if "topic values" not in self._made:
            self._made["topic values"] = topic_values(self.layers, {})
        return with_own_values(self._made["topic values"], overrides)


class _RefusedError(Exception):
    def __init__(self, code: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.error = ApiError(code, message)


# --- checks -----------------------------------------------------------------------------------------------------------


def topic_config_error(context: ConfigContext, overrides: Mapping[str, str]) -> ApiError:
    """Whether these could be the values of a topic's own."""
    try:
        _check_known(context, TOPIC_CONFIGS, overrides, "topic")
        TOPIC_CONFIGS.parse_given(overrides)
        check_together(context.topic_values(overrides))
    except ConfigError as error:
        return ApiError(ErrorCode.INVALID_CONFIG, str(error))
    return NO_ERROR


def _check_known(context: ConfigContext, definition: ConfigDefinition, overrides: Mapping[str, str], what: str) -> None:
    problems = {}
    for name in overrides:
        if name not in definition:
            near = None if next(context.hints, None) is None else definition.nearest(name)
            hint = "" if near is None else f"; did you mean {near}?"
            problems[name] = f"Unknown {what} config name: {name}{hint}"
    if problems:
        raise ConfigError(problems)


def _group_config_error(context: ConfigContext, overrides: Mapping[str, str]) -> ApiError:
    try:
        _check_known(context, GROUP_CONFIGS, overrides, "group")
        GROUP_CONFIGS.parse_given(overrides)
        values = group_values(context.layers, overrides)
        check_limits(values, broker_values(context.layers, BROKER_CONFIGS))
    except ConfigError as error:
        return ApiError(ErrorCode.INVALID_CONFIG, str(error))
    return NO_ERROR


def _client_metrics_error(overrides: Mapping[str, str]) -> ApiError:
    try:
        client_metrics_config.check(overrides)
    except ConfigError as error:
        return ApiError(ErrorCode.INVALID_REQUEST, str(error))
    return NO_ERROR


def _check_result(context: ConfigContext, resource_type: int, name: str, values: Mapping[str, str]) -> None:
    """Refuse a configuration that a resource must not have."""
    error = NO_ERROR
    if resource_type == ResourceType.TOPIC:
        if not name:
            raise _RefusedError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        problem = name_problem(name)
        if problem is not None:
            raise _RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        error = topic_config_error(context, values)
        if error is NO_ERROR and name not in context.image.topics:
            error = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    elif resource_type == ResourceType.GROUP:
        if not name:
            raise _RefusedError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        error = _group_config_error(context, values)
    elif resource_type == ResourceType.CLIENT_METRICS:
        if not name:
            raise _RefusedError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
        error = _client_metrics_error(values)
    elif resource_type == ResourceType.BROKER:
        problem = dynamic_problem(values, per_broker=bool(name)) or _threads_problem(context, values)
        if problem is not None:
            error = ApiError(ErrorCode.INVALID_REQUEST, problem)
        else:
            error = _min_isr_error(context.image, name, values)
    if error is not NO_ERROR:
        raise _RefusedError(*error)


def _threads_problem(context: ConfigContext, values: Mapping[str, str]) -> str | None:
    """As in Kafka a number of threads is at most doubled or halved at once; also where nothing here follows from it."""
    now = broker_values(context.layers, BROKER_CONFIGS)
    for name in _THREADS:
        count, wanted = now[name], values.get(name)
        if wanted is None or not isinstance(count, int) or int(wanted) == count:
            continue
        if not max(1, count // 2) <= int(wanted) <= count * 2:
            return f"{name}={wanted} is not between half and double the present value, {count}."
    return None


def _min_isr_error(image: Image, name: str, values: Mapping[str, str]) -> ApiError:
    """Where replicas are eligible by it, the controller has to know `min.insync.replicas` of every topic for itself."""
    if has_eligible(image):
        if name and _MIN_ISR in values:
            words = f"Broker-level {_MIN_ISR} cannot be altered while ELR is enabled."
            return ApiError(ErrorCode.INVALID_CONFIG, words)
        if not name and _MIN_ISR not in values:
            words = f"Cluster-level {_MIN_ISR} cannot be removed while ELR is enabled."
            return ApiError(ErrorCode.INVALID_CONFIG, words)
    return NO_ERROR


def one_minimum(image: Image, of_cluster: ConfigRecord) -> list[MetadataRecord]:
    """No broker has a `min.insync.replicas` of its own, and the cluster has one: this, unless there is one."""
    records: list[MetadataRecord] = [
        ConfigRecord(resource_type=kind, resource_name=name, name=_MIN_ISR, value=None)
        for (kind, name), values in image.configs.items()
        if kind == ResourceType.BROKER and name and _MIN_ISR in values
    ]
    if _MIN_ISR not in image.config(ResourceType.BROKER, ""):
        records.append(of_cluster)
    return records


def _check_resource(context: ConfigContext, resource_type: int, name: str, configs: Sequence[_Named]) -> None:
    """What can be wrong with the change itself, whatever the configuration was before."""
    if len({config.name for config in configs}) != len(configs):
        raise _RefusedError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if resource_type not in _ALTERABLE:
        raise _RefusedError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    if resource_type == ResourceType.BROKER and name:
        error = broker_name_error(name)
        if error is not NO_ERROR:
            raise _RefusedError(*error)
        if _broker_number(name) not in context.image.brokers:
            raise _RefusedError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id: there is no broker {name}.")


def broker_name_error(name: str, asked: int | None = None) -> ApiError:
    """What is wrong with the name of a broker; `asked` is the one that was asked, which answers for itself only."""
    node_id = _broker_number(name)
    if node_id is None:
        return ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if asked is not None and node_id != asked:
        return ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {asked}, but received {name}")
    return NO_ERROR


def _broker_number(name: str) -> int | None:
    """As Java reads an int: `01` is 1, ` 1` is none, nor is one of more digits than Python would read."""
    found = _JAVA_NUMBER.fullmatch(name)
    number = None if found is None else int(found[1] + found[2])
    return number if number is not None and -(2**31) <= number < 2**31 else None


def _check_values(configs: Sequence[_Named]) -> None:
    empty = [config.name for config in configs if config.value is None]
    if empty:
        raise _RefusedError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(empty)}")


def _changes(
    context: ConfigContext, resource_type: int, name: str, after: Mapping[str, str], touched: Sequence[str]
) -> list[MetadataRecord]:
    before = context.image.config(resource_type, name)
    # A broker reads its files again when a value is set once more, so for brokers every key touched is a record.
    always = set(touched) if resource_type == ResourceType.BROKER else set()
    keys = [*touched, *(key for key in before if key not in after and key not in touched)]
    return [
        ConfigRecord(resource_type=resource_type, resource_name=name, name=key, value=after.get(key))
        for key in keys
        if before.get(key) != after.get(key) or (key in always and key in after)
    ]


# --- the requests -----------------------------------------------------------------------------------------------------


def alter(
    context: ConfigContext, request: alter_configs.AlterConfigsRequest
) -> Decision[alter_configs.AlterConfigsResponse]:
    """Replace the dynamic configuration of each resource by the one given."""

    def replace(resource: alter_configs.AlterConfigsResource) -> list[MetadataRecord]:
        resource_type, name = resource.resource_type, resource.resource_name
        _check_resource(context, resource_type, name, resource.configs)
        _check_values(resource.configs)
        after = {config.name: config.value for config in resource.configs if config.value is not None}
        _check_result(context, resource_type, name, after)
        return _changes(context, resource_type, name, after, list(after))

    decision = Decision(alter_configs.AlterConfigsResponse())
    _decide_each(request, replace, decision, alter_configs.AlterConfigsResourceResponse)
    return decision


def alter_incrementally(
    context: ConfigContext, request: incremental_alter_configs.IncrementalAlterConfigsRequest
) -> Decision[incremental_alter_configs.IncrementalAlterConfigsResponse]:
    """Set, delete, append to or subtract from single keys; all changes of a resource are made, or none."""
    decision = Decision(incremental_alter_configs.IncrementalAlterConfigsResponse())
    result = incremental_alter_configs.AlterConfigsResourceResponse
    _decide_each(request, functools.partial(_increment, context), decision, result)
    return decision


def _decide_each(
    request: Any, decide: Callable[[Any], list[MetadataRecord]], decision: Decision[Any], result: Callable[..., Any]
) -> None:
    """Of either request: what changes for each resource, or what it is refused for."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    for resource in request.resources:
        error = NO_ERROR
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise _RefusedError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            decided = decide(resource)
            if not request.validate_only:
                decision.records += decided
        except _RefusedError as refused:
            error = refused.error
        decision.response.responses.append(
            result(
                error_code=error.code,
                error_message=error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )


def _increment(
    context: ConfigContext, resource: incremental_alter_configs.AlterConfigsResource
) -> list[MetadataRecord]:
    resource_type, name = resource.resource_type, resource.resource_name
    _check_resource(context, resource_type, name, resource.configs)
    _check_values([config for config in resource.configs if config.config_operation != DELETE])
    after = dict(context.image.config(resource_type, name))
    for config in resource.configs:
        if config.config_operation == DELETE:
            after.pop(config.name, None)
        elif config.config_operation == SET:
            after[config.name] = config.value or ""
        elif config.config_operation in (APPEND, SUBTRACT):
            after[config.name] = _edit_list(resource_type, config, after.get(config.name))
        else:
            raise _RefusedError(
                ErrorCode.INVALID_REQUEST, f"Unknown operation {config.config_operation} on {config.name}: use 0 to 3."
            )
    _check_result(context, resource_type, name, after)
    return _changes(context, resource_type, name, after, [config.name for config in resource.configs])


def _edit_list(resource_type: int, config: incremental_alter_configs.AlterableConfig, before: str | None) -> str:
    key = _key_of(resource_type, config.name)
    if key is None or key.type is not ConfigType.LIST:
        verb = "APPEND to" if config.config_operation == APPEND else "SUBTRACT from"
        raise _RefusedError(ErrorCode.INVALID_CONFIG, f"Can't {verb} {config.name}, because it is not a list.")
    if before is None and isinstance(key.default, tuple):
        before = format_value(key.default)
    elements = [element for element in (before or "").split(",") if element]
    for element in (config.value or "").split(","):
        if config.config_operation == APPEND and element not in elements:
            elements.append(element)
        elif config.config_operation == SUBTRACT and element in elements:
            elements.remove(element)
    return ",".join(elements)


def _key_of(resource_type: int, name: str) -> ConfigKey | None:
    if resource_type == ResourceType.TOPIC:
        return TOPIC_CONFIGS.get(name)
    if resource_type == ResourceType.CLIENT_METRICS:
        return client_metrics_config.CLIENT_METRICS_CONFIGS.get(name)
    return key_for(name) if resource_type == ResourceType.BROKER else GROUP_CONFIGS.get(name)


# --- descriptions -----------------------------------------------------------------------------------------------------


def describe(
    context: ConfigContext, request: describe_configs.DescribeConfigsRequest
) -> describe_configs.DescribeConfigsResponse:
    return describe_configs.DescribeConfigsResponse(results=list(_described(context, request)))


def _described(
    context: ConfigContext, request: describe_configs.DescribeConfigsRequest
) -> Iterator[describe_configs.DescribeConfigsResult]:
    known = all(resource.resource_type in _RESOURCE_TYPES for resource in request.resources)
    # Most topics have the same configuration, and so have most groups: what is told of them is made once.
    made: dict[Hashable, _Made] = {}
    for resource in request.resources:
        configs: list[describe_configs.DescribeConfigsResourceResult] = []
        code, message = ErrorCode.NONE, ""
        try:
            if not known:
                raise _RefusedError(ErrorCode.INVALID_REQUEST, _MALFORMED)
            alike = _alike(context, resource)
            keys = resource.configuration_keys or None
            if len(request.resources) == 1:
                configs = [_result(entry, request) for entry in _entries(context, resource, keys)]
            else:
                if alike not in made:
                    made[alike] = _Made([_result(entry, request) for entry in _entries(context, resource, None)])
                configs = made[alike].results if keys is None else made[alike].only(keys)
        except _RefusedError as refused:
            code, message = refused.error.code, refused.error.message or ""
        yield describe_configs.DescribeConfigsResult(
            error_code=code,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=configs,
        )


class _Made:
    """The whole configuration of resources that have the same."""

    def __init__(self, results: list[describe_configs.DescribeConfigsResourceResult]) -> None:
        self.results = Shared(results)
        self._places = {result.name: place for place, result in enumerate(results)}

    def only(self, keys: Sequence[str]) -> list[describe_configs.DescribeConfigsResourceResult]:
        places = sorted({self._places[key] for key in keys if key in self._places})
        return [self.results[place] for place in places]


def _alike(context: ConfigContext, resource: describe_configs.DescribeConfigsResource) -> Hashable:
    """What a resource's configuration follows from: those for which it is equal have the same."""
    name, kind = resource.resource_name, resource.resource_type
    if kind == ResourceType.TOPIC:
        problem = name_problem(name)
        if problem is not None:
            raise _RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in context.image.topics:
            raise _RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
    elif kind == ResourceType.BROKER:
        if name and _broker_number(name) != context.node_id:
            words = f"Unexpected broker id, expected {context.node_id} or empty string, but received {name}"
            raise _RefusedError(ErrorCode.INVALID_REQUEST, words)
        return kind, name
    elif kind == ResourceType.GROUP:
        if not name:
            raise _RefusedError(ErrorCode.INVALID_REQUEST, "The name of the group is empty.")
    elif kind == ResourceType.CLIENT_METRICS:
        if not name:
            raise _RefusedError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
    else:
        raise _RefusedError(
            ErrorCode.INVALID_REQUEST, f"Resources of type {kind} have no configuration that is kept here."
        )
    return kind, frozenset(context.image.config(kind, name).items())


def _entries(
    context: ConfigContext, resource: describe_configs.DescribeConfigsResource, keys: list[str] | None
) -> list[ConfigEntry]:
    name, kind = resource.resource_name, resource.resource_type
    if kind == ResourceType.BROKER:
        return describe_broker(context.layers, keys) if name else describe_cluster_defaults(context.layers, keys)
    if kind == ResourceType.CLIENT_METRICS:
        return describe_client_metrics(context.image.config(kind, name), keys)
    describe_kind = describe_topic if kind == ResourceType.TOPIC else describe_group
    return describe_kind(context.layers, context.image.config(kind, name), keys)


def _result(
    entry: ConfigEntry, request: describe_configs.DescribeConfigsRequest
) -> describe_configs.DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return describe_configs.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[describe_configs.DescribeConfigsSynonym(name=n, value=v, source=s) for n, v, s in synonyms],
        config_type=entry.type,
        documentation=entry.doc if request.include_documentation else None,
    )


def list_resources(
    context: ConfigContext, request: ListConfigResourcesRequest, version: int
) -> ListConfigResourcesResponse:
    """Resources that can have a configuration; version 0 asks for client metrics only."""
    wanted = request.resource_types or ([ResourceType.CLIENT_METRICS] if version == 0 else list(ResourceType))
    if any(number not in _RESOURCE_TYPES for number in wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = context.image
    names: dict[int, list[str]] = {
        ResourceType.TOPIC: list(image.topics),
        ResourceType.BROKER: [str(node_id) for node_id in image.brokers],
        ResourceType.BROKER_LOGGER: [str(node_id) for node_id in image.brokers],
        ResourceType.CLIENT_METRICS: [name for kind, name in image.configs if kind == ResourceType.CLIENT_METRICS],
        ResourceType.GROUP: [name for kind, name in image.configs if kind == ResourceType.GROUP],
    }
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in dict.fromkeys(wanted)
            for name in names.get(kind, [])
        ]
    )
