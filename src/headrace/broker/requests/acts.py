"""Which requests change something that others depend on, and what each says of itself in the audit log.

Names only, never values: those may be secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.cluster.acls import Acl, Operation, PatternType, Permission, Resource
from headrace.protocol.api import ApiKey

Act = Callable[[Any], Iterable[str]]


def _topics(request: Any) -> Iterable[str]:
    return [topic.name for topic in request.topics]


def _deleted_topics(request: Any) -> Iterable[str]:
    return [*request.topic_names, *(topic.name or topic.topic_id.hex() for topic in request.topics)]


def _partitions(request: Any) -> Iterable[str]:
    return [f"{topic.name} → {topic.count}" for topic in request.topics]


def _records(request: Any) -> Iterable[str]:
    return [
        f"{topic.name}-{part.partition_index} before {part.offset}"
        for topic in request.topics
        for part in topic.partitions
    ]


def _configs(request: Any) -> Iterable[str]:
    return [
        f"{item.resource_type}:{item.resource_name} {', '.join(one.name for one in item.configs)}"
        for item in request.resources
    ]


def _created_acls(request: Any) -> Iterable[str]:
    return [
        _acl(one.permission_type, one.principal, one.host, one.operation, one.resource_type, one.resource_pattern_type,
             one.resource_name)
        for one in request.creations
    ]  # fmt: skip


def _acl(permission: int, principal: str, host: str, operation: int, resource: int, pattern: int, name: str) -> str:
    try:
        known = Permission(permission), Operation(operation), Resource(resource), PatternType(pattern)
    except ValueError:
        return "a rule of unknown codes"
    return str(Acl(known[0], principal, host, known[1], known[2], known[3], name))


def _deleted_acls(request: Any) -> Iterable[str]:
    return [
        f"{one.principal_filter or 'anyone'}: operation {one.operation} on {one.resource_type_filter}:"
        f"{one.resource_name_filter or 'any'}"
        for one in request.filters
    ]


def _quotas(request: Any) -> Iterable[str]:
    return [
        ", ".join(f"{part.entity_type} {'(default)' if part.entity_name is None else part.entity_name}"
                  for part in entry.entity) + f": {', '.join(op.key for op in entry.ops)}"
        for entry in request.entries
    ]  # fmt: skip


def _users(request: Any) -> Iterable[str]:
    return [
        *(f"delete {one.name}" for one in request.deletions),
        *(f"set {one.name}" for one in request.upsertions),
    ]


def _groups(request: Any) -> Iterable[str]:
    return list(request.groups_names)


def _offsets(request: Any) -> Iterable[str]:
    return [f"{request.group_id}: {topic.name}" for topic in request.topics]


def _elected(request: Any) -> Iterable[str]:
    return [topic.topic for topic in request.topic_partitions or ()]


def _moved(request: Any) -> Iterable[str]:
    return [
        f"{topic.name}-{part.partition_index} → {'as before' if part.replicas is None else list(part.replicas)}"
        for topic in request.topics
        for part in topic.partitions
    ]


def _directories(request: Any) -> Iterable[str]:
    return [f"{topic.name} → {one.path}" for one in request.dirs for topic in one.topics]


def _features(request: Any) -> Iterable[str]:
    return [f"{one.feature} {one.max_version_level}" for one in request.feature_updates]


def _broker(request: Any) -> Iterable[str]:
    return [f"broker {request.broker_id}"]


def _token(request: Any) -> Iterable[str]:
    # The token itself is a secret.
    return []


ACTS: Final[dict[int, Act]] = {
    ApiKey.CREATE_TOPICS: _topics,
    ApiKey.DELETE_TOPICS: _deleted_topics,
    ApiKey.CREATE_PARTITIONS: _partitions,
    ApiKey.DELETE_RECORDS: _records,
    ApiKey.ALTER_CONFIGS: _configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs,
    ApiKey.CREATE_ACLS: _created_acls,
    ApiKey.DELETE_ACLS: _deleted_acls,
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _users,
    ApiKey.DELETE_GROUPS: _groups,
    ApiKey.OFFSET_DELETE: _offsets,
    ApiKey.ELECT_LEADERS: _elected,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _moved,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _directories,
    ApiKey.UPDATE_FEATURES: _features,
    ApiKey.UNREGISTER_BROKER: _broker,
    ApiKey.CREATE_DELEGATION_TOKEN: _token,
    ApiKey.RENEW_DELEGATION_TOKEN: _token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _token,
}
