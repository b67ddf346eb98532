"""Creating and deleting topics, and giving them more partitions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.config_changes import ConfigContext, topic_config_error
from headrace.cluster.configs import ConfigEntry, ConfigSource, describe_own_values, describe_topic
from headrace.cluster.decision import NO_ERROR, ApiError, Decision
from headrace.cluster.image import Image, PartitionImage, TopicImage, partition_record
from headrace.cluster.placement import PlacementBroker, available, place
from headrace.cluster.records import (
    DIRECTORY_UNASSIGNED,
    METADATA_TOPIC,
    ConfigRecord,
    MetadataRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)
from headrace.cluster.topic_names import (
    CONSUMER_OFFSETS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    is_internal,
    name_problem,
)
from headrace.error_codes import ErrorCode
from headrace.errors import KafkaError
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from headrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from headrace.protocol.schema import Shared

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
# Topics with values of their own: each is checked and told by itself, which takes ten times as long.
CONFIGURED_PER_REQUEST_MAX: Final = 2_000
PARTITIONS_MAX_KEY: Final = "headrace.partitions.max"
_ZERO_ID: Final = bytes(16)


class _RefusedError(Exception):
    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message)
        self.error = ApiError(code, message)


@dataclass(frozen=True, slots=True)
class TopicContext:
    """What decisions on topics need: the image, the deciding broker's configuration, and chance."""

    configs: ConfigContext
    rng: random.Random
    new_uuid: Callable[[], bytes]

    @property
    def image(self) -> Image:
        return self.configs.image

    @property
    def config(self) -> BrokerConfig:
        return self.configs.config


# --- creation ---------------------------------------------------------------------------------------------------------


def create_topics(context: TopicContext, request: CreateTopicsRequest) -> Decision[CreateTopicsResponse]:
    """Each topic by itself is made or refused; a name that comes twice is refused, and made neither time."""
    times = Counter(topic.name for topic in request.topics)
    decision = Decision(CreateTopicsResponse())
    too_many = _too_many(context, request.topics)
    shown = _ShownConfigs(context)
    for topic in request.topics:
        if times[topic.name] > 1:
            continue
        try:
            if too_many is not None:
                raise _RefusedError(*too_many)
            result, records = _create(context, topic, shown)
        except _RefusedError as refused:
            decision.response.topics.append(_failed(topic.name, refused.error))
            continue
        decision.response.topics.append(result)
        if not request.validate_only:
            decision.records += records
    for name in (name for name, count in times.items() if count > 1):
        twice = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        decision.response.topics.append(_failed(name, twice))
    return decision


def _too_many(context: TopicContext, topics: Sequence[CreatableTopic]) -> ApiError | None:
    total = 0
    for topic in topics:
        if topic.assignments:
            total += len(topic.assignments)
        else:
            count = topic.num_partitions
            total += context.config.get_int("num.partitions") if count == -1 else max(count, 0)
    configured = sum(bool(topic.configs) for topic in topics)
    if configured > CONFIGURED_PER_REQUEST_MAX:
        words = (
            f"{configured} topics with configurations of their own in one request are too many; create at most "
            f"{CONFIGURED_PER_REQUEST_MAX} at a time."
        )
        return ApiError(ErrorCode.POLICY_VIOLATION, words)
    if total <= PARTITIONS_PER_REQUEST_MAX:
        if all(is_internal(topic.name) for topic in topics):
            return None  # the broker's own, which clients cannot do without
        return _no_room(context, total)
    words = f"{total} partitions in one request are too many; create at most {PARTITIONS_PER_REQUEST_MAX} at a time."
    return ApiError(ErrorCode.POLICY_VIOLATION, words)


def _no_room(context: TopicContext, additional: int) -> ApiError | None:
    """Why the cluster cannot have so many partitions more, if it cannot."""
    most = context.config.get_int(PARTITIONS_MAX_KEY)
    have = sum(len(topic.partitions) for topic in context.image.topics.values())
    if have + additional <= most:
        return None
    words = f"{additional} more than the {have} partitions that there are would be over {PARTITIONS_MAX_KEY}={most}."
    return ApiError(ErrorCode.POLICY_VIOLATION, words)


def _failed(name: str, error: ApiError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message, configs=[])


def _create(
    context: TopicContext, topic: CreatableTopic, shown: _ShownConfigs
) -> tuple[CreatableTopicResult, list[MetadataRecord]]:
    _check_name(context.image, topic.name)
    empty = [config.name for config in topic.configs if config.value is None]
    if empty:
        raise _RefusedError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(empty)}")
    overrides = {config.name: config.value for config in topic.configs if config.value is not None}
    error = topic_config_error(context.configs, overrides) if overrides else NO_ERROR
    if error is not NO_ERROR:
        raise _RefusedError(*error)
    partitions = _assigned(context.image, topic) if topic.assignments else _placed(context, topic)
    topic_id = context.new_uuid()
    records: list[MetadataRecord] = [TopicRecord(name=topic.name, topic_id=topic_id)]
    records += [
        ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value)
        for name, value in overrides.items()
    ]
    records += [partition_record(topic_id, index, partition) for index, partition in enumerate(partitions)]
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(partitions),
        replication_factor=len(partitions[0].replicas),
        configs=shown.of(overrides),
    )
    return result, records


def _check_name(image: Image, name: str) -> None:
    problem = name_problem(name)
    if problem is not None:
        raise _RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name == METADATA_TOPIC:
        raise _RefusedError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    if name in image.topics:
        raise _RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    colliding = image.colliding_topic(name)
    if colliding is not None:
        raise _RefusedError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {colliding}",
        )


def _assigned(image: Image, topic: CreatableTopic) -> list[PartitionImage]:
    """Partitions on the replicas that the request names."""
    if topic.replication_factor != -1 or topic.num_partitions != -1:
        what = "replication factor" if topic.replication_factor != -1 else "number of partitions"
        raise _RefusedError(ErrorCode.INVALID_REQUEST, f"Replicas are assigned by hand, so the {what} must be -1.")
    by_index: dict[int, CreatableReplicaAssignment] = {}
    factor: int | None = None
    for assignment in topic.assignments:
        if assignment.partition_index in by_index:
            words = f"Found multiple manual partition assignments for partition {assignment.partition_index}"
            raise _RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, words)
        check_replicas(image, assignment.broker_ids, factor)
        factor = len(assignment.broker_ids)
        by_index[assignment.partition_index] = assignment
    if set(by_index) != set(range(len(by_index))):
        words = "partitions should be a consecutive 0-based integer sequence"
        raise _RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, words)
    return [_new_partition(image, by_index[index].broker_ids, by_hand=True) for index in range(len(by_index))]


def _placed(context: TopicContext, topic: CreatableTopic) -> list[PartitionImage]:
    """Partitions on replicas that the controller picks."""
    factor, count = topic.replication_factor, topic.num_partitions
    if factor == 0 or factor < -1:
        words = "Replication factor must be larger than 0, or -1 to use the default value."
        raise _RefusedError(ErrorCode.INVALID_REPLICATION_FACTOR, words)
    if count == 0 or count < -1:
        words = "Number of partitions was set to an invalid non-positive value."
        raise _RefusedError(ErrorCode.INVALID_PARTITIONS, words)
    if factor == -1:
        factor = context.config.get_int("default.replication.factor")
    if count == -1:
        count = context.config.get_int("num.partitions")
    return [_new_partition(context.image, r) for r in _pick_replicas(context, count, factor).values()]


def _pick_replicas(
    context: TopicContext, count: int, factor: int, *, start_index: int | None = None, first_partition: int = 0
) -> dict[int, list[int]]:
    brokers = placement_brokers(context.image)
    # Brokers that are away hold what those that are there cannot, and are in sync once they are back.
    away = [node_id for node_id in sorted(context.image.brokers) if not context.image.is_active(node_id)]
    registered = len(brokers) + len(away)
    refusal = f"Unable to replicate the partition {factor} time(s): "
    if factor > registered:
        raise _RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{refusal}The target replication factor of {factor} cannot be reached because only {registered} broker(s) "
            "are registered or some brokers have all their log directories cordoned.",
        )
    if not brokers:
        raise _RefusedError(ErrorCode.INVALID_REPLICATION_FACTOR, f"{refusal}All brokers are currently fenced.")
    here = min(factor, len(brokers))
    try:
        placed = place(brokers, count, here, context.rng, start_index=start_index, first_partition=first_partition)
    except KafkaError as error:
        raise _RefusedError(error.code, f"{refusal}{error.message}") from None
    return {
        index: replicas + [away[(index + i) % len(away)] for i in range(factor - here)]
        for index, replicas in placed.items()
    }


def placement_brokers(image: Image) -> list[PlacementBroker]:
    """Brokers that new replicas can go to: those that are alive and not about to stop."""
    return available(PlacementBroker(b.node_id, b.rack) for b in image.brokers.values() if b.is_active)


def check_replicas(image: Image, replicas: Sequence[int], factor: int | None) -> None:
    """Refuse replicas assigned by hand that cannot be: none, one twice, unknown brokers, or another number of them."""
    problem = replicas_problem(image, replicas, factor)
    if problem is not None:
        raise _RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def replicas_problem(image: Image, replicas: Sequence[int], factor: int | None) -> str | None:
    if not replicas:
        return "The manual partition assignment includes an empty replica list."
    for node_id in sorted(replicas):
        if node_id not in image.brokers:
            return f"The manual partition assignment includes broker {node_id}, but no such broker is registered."
    twice = sorted(node_id for node_id, count in Counter(replicas).items() if count > 1)
    if twice:
        return f"The manual partition assignment includes the broker {twice[0]} more than once."
    if factor is not None and len(replicas) != factor:
        return f"The manual partition assignment has a partition of {len(replicas)} replica(s), others have {factor}."
    return None


def _new_partition(image: Image, replicas: Sequence[int], *, by_hand: bool = False) -> PartitionImage:
    isr = tuple(node_id for node_id in replicas if image.is_active(node_id))
    if not isr:
        code = ErrorCode.INVALID_REPLICA_ASSIGNMENT if by_hand else ErrorCode.INVALID_REPLICATION_FACTOR
        raise _RefusedError(code, f"All brokers of the replicas {list(replicas)} are fenced or shutting down.")
    return PartitionImage(
        replicas=tuple(replicas),
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=(DIRECTORY_UNASSIGNED,) * len(replicas),
    )


class _ShownConfigs:
    """The configuration of new topics as the answer has it. What is the same for all of them is made once."""

    def __init__(self, context: TopicContext) -> None:
        self._layers = context.configs.layers
        self._default: Shared[CreatableTopicConfigs] | None = None

    def of(self, overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        if self._default is None:
            self._default = Shared(_shown(entry) for entry in describe_topic(self._layers, {}, None))
        if not overrides:
            return self._default
        own = describe_own_values(overrides)
        return [
            CreatableTopicConfigs(name=one.name, value=own[one.name], config_source=ConfigSource.DYNAMIC_TOPIC)
            if one.name in own
            else one
            for one in self._default
        ]


def _shown(entry: ConfigEntry) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
    )


def internal_topic(config: BrokerConfig, image: Image, name: str) -> CreatableTopic:
    """One of the broker's own topics, as the broker creates it on first use.

    Kafka's defaults want three brokers. Where they are not configured but only default, fewer brokers get fewer
    replicas, so that a single broker works without being configured.
    """
    prefix = {
        CONSUMER_OFFSETS: "offsets.topic",
        TRANSACTION_STATE: "transaction.state.log",
        SHARE_GROUP_STATE: "share.coordinator.state.topic",
    }[name]
    alive = max(1, len(placement_brokers(image)))
    factor = config.get_int(f"{prefix}.replication.factor")
    if f"{prefix}.replication.factor" not in config.given:
        factor = min(factor, alive)
    values = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(max(config.get_int(f"{prefix}.segment.bytes"), 1024 * 1024)),
    }
    if name == SHARE_GROUP_STATE:
        values |= {"cleanup.policy": "delete", "retention.ms": "-1"}
    if name == TRANSACTION_STATE:
        min_isr = config.get_int("transaction.state.log.min.isr")
        if "transaction.state.log.min.isr" not in config.given:
            min_isr = min(min_isr, factor)
        values |= {
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min_isr),
            "unclean.leader.election.enable": "false",
        }
    return CreatableTopic(
        name=name,
        num_partitions=config.get_int(f"{prefix}.num.partitions"),
        replication_factor=factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in values.items()],
    )


# --- deletion ---------------------------------------------------------------------------------------------------------


def delete_topics(context: TopicContext, request: DeleteTopicsRequest, version: int) -> Decision[DeleteTopicsResponse]:
    """By name or by id; each topic by itself is deleted or refused, one that comes twice is refused (also if once it is
    by name and once by id)."""
    asked = [*(DeleteTopicState(name=name) for name in request.topic_names), *request.topics]
    decision = Decision(DeleteTopicsResponse())
    if not context.config.get_bool("delete.topic.enable"):
        code = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
        decision.response.responses += [
            DeletableTopicResult(name=t.name, topic_id=t.topic_id, error_code=code, error_message=code.message)
            for t in asked
        ]
        return decision
    times = Counter((topic.name, topic.topic_id) for topic in asked)
    by_id = {topic.topic_id for topic in asked if topic.name is None}
    for (name, topic_id), count in times.items():
        result = DeletableTopicResult(name=name, topic_id=topic_id)
        try:
            topic = _to_delete(context.image, name, topic_id, count)
        except _RefusedError as refused:
            result.error_code, result.error_message = refused.error
            if (name is None) == (topic_id == _ZERO_ID):
                # Which topic is meant cannot be told, so neither can that it comes twice.
                decision.response.responses += [result] * (count - 1)
        else:
            result.name, result.topic_id = topic.name, topic.topic_id
            if name is None and times[topic.name, _ZERO_ID] == 1:
                continue  # told of with its name
            if name is not None and topic.topic_id in by_id:
                words = "The provided topic name maps to an ID that was already supplied."
                result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, words
            else:
                decision.records.append(RemoveTopicRecord(topic_id=topic.topic_id))
        decision.response.responses.append(result)
    return decision


def _to_delete(image: Image, name: str | None, topic_id: bytes, count: int) -> TopicImage:
    if name is None and topic_id == _ZERO_ID:
        raise _RefusedError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if name is not None and topic_id != _ZERO_ID:
        raise _RefusedError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if count > 1:
        raise _RefusedError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {'id' if name is None else 'name'}.")
    topic = image.topics.get(name) if name is not None else image.topics_by_id.get(topic_id)
    if topic is None:
        if name is None:
            raise _RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        words = "This server does not host this topic-partition."
        raise _RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, words)
    return topic


# --- more partitions --------------------------------------------------------------------------------------------------


def create_partitions(context: TopicContext, request: CreatePartitionsRequest) -> Decision[CreatePartitionsResponse]:
    times = Counter(topic.name for topic in request.topics)
    decision = Decision(CreatePartitionsResponse())
    for topic in {topic.name: topic for topic in request.topics}.values():
        error = NO_ERROR
        try:
            if times[topic.name] > 1:
                raise _RefusedError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            records = _more_partitions(context, topic)
            if not request.validate_only:
                decision.records += records
        except _RefusedError as refused:
            error = refused.error
        decision.response.results.append(
            CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
        )
    return decision


def _more_partitions(context: TopicContext, request: CreatePartitionsTopic) -> Iterable[MetadataRecord]:
    topic = context.image.topics.get(request.name)
    if topic is None:
        raise _RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    have = len(topic.partitions)
    if request.count > have and topic.name in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        # Which partition keeps a name follows from their number: what is stored would not be where it is looked for.
        words = (
            f"{topic.name} keeps its {have} partition(s): which of them has a group or a transactional id follows from "
            "their number, and nothing that is stored moves with it. Choose the number before the topic is made "
            "(offsets.topic.num.partitions, transaction.state.log.num.partitions)."
        )
        raise _RefusedError(ErrorCode.INVALID_PARTITIONS, words)
    if request.count <= have:
        words = f"The topic {topic.name} currently has {have} partition(s); {request.count} would not be an increase."
        if request.count == have:
            words = f"Topic already has {have} partition(s)."
        raise _RefusedError(ErrorCode.INVALID_PARTITIONS, words)
    additional = request.count - have
    if request.assignments is not None and len(request.assignments) != additional:
        given = len(request.assignments)
        words = f"Attempted to add {additional} additional partition(s), but only {given} assignment(s) were specified."
        raise _RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, words)
    if additional > PARTITIONS_PER_REQUEST_MAX:
        words = f"{additional} more partitions are too many at once; add at most {PARTITIONS_PER_REQUEST_MAX}."
        raise _RefusedError(ErrorCode.POLICY_VIOLATION, words)
    no_room = _no_room(context, additional)
    if no_room is not None:
        raise _RefusedError(*no_room)
    factor = len(topic.partitions[0].replicas)
    if request.assignments is not None:
        for assignment in request.assignments:
            check_replicas(context.image, assignment.broker_ids, factor)
        chosen = [assignment.broker_ids for assignment in request.assignments]
    else:
        # Going on from where the first partition's leader is keeps the leaders spread evenly.
        brokers = placement_brokers(context.image)
        first_leader = topic.partitions[0].replicas[0]
        start = next((i for i, broker in enumerate(brokers) if broker.node_id >= first_leader), 0)
        placed = _pick_replicas(context, additional, factor, start_index=start, first_partition=have)
        chosen = list(placed.values())
    by_hand = request.assignments is not None
    return [
        partition_record(topic.topic_id, have + index, _new_partition(context.image, replicas, by_hand=by_hand))
        for index, replicas in enumerate(chosen)
    ]
