"""Access control entries (ACLs) of the metadata: what one is made of, and what creates, finds and deletes them.

The numbers are those of Kafka's protocol and of its metadata records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from headrace.cluster.decision import NO_ERROR, ApiError, Decision
from headrace.cluster.image import Image
from headrace.cluster.records import AccessControlEntryRecord, MetadataRecord, RemoveAccessControlEntryRecord
from headrace.error_codes import ErrorCode
from headrace.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from headrace.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from headrace.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

#: The only name that a resource of the kind "cluster" has.
CLUSTER_NAME: Final = "kafka-cluster"
#: Every resource of a kind, as the name of a literal rule.
WILDCARD: Final = "*"
#: Every principal, and every address.
EVERYONE: Final = "User:*"
ANY_HOST: Final = "*"
UNKNOWN: Final = 0
ANY: Final = 1
#: How long the parts of a rule may be: a record of the metadata log holds no more, nor does a name of a topic or group.
TEXT_BYTES_MAX: Final = 32_767


class Operation(IntEnum):
    """What can be allowed, by the codes of Kafka's ACLs."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Resource(IntEnum):
    """What it can be allowed on, by the codes of Kafka's ACLs."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Which names a rule is about: those equal to its own, or those that begin with it."""

    MATCH = 2  # in filters: every pattern that the name falls under
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    DENY = 2
    ALLOW = 3


_RESOURCES: Final = frozenset(map(int, Resource))
_OPERATIONS: Final = frozenset(map(int, Operation))
_PERMISSIONS: Final = frozenset(map(int, Permission))
_PATTERNS: Final = frozenset(map(int, PatternType))
#: What an ALLOW gives besides its own operation. A DENY takes away its own alone.
IMPLIED: Final = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}
#: What can be done to each kind of resource: the bits of "authorized operations".
OPERATIONS_ON: Final = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


class Acl(NamedTuple):
    """One rule."""

    permission: int
    principal: str
    host: str
    operation: int
    resource: int
    pattern: int
    name: str

    @classmethod
    def of(cls, record: AccessControlEntryRecord) -> Acl:
        return cls(
            record.permission_type,
            record.principal,
            record.host,
            record.operation,
            record.resource_type,
            record.pattern_type,
            record.resource_name,
        )

    def __str__(self) -> str:
        """As `headrace acl list` shows it."""
        where = "" if self.host == ANY_HOST else f" from {self.host}"
        prefix = "prefix " if self.pattern == PatternType.PREFIXED else ""
        return (
            f"{Permission(self.permission).name.lower()} {self.principal} {Operation(self.operation).name.lower()} "
            f"on {Resource(self.resource).name.lower()} {prefix}{self.name}{where}"
        )


# --- creating ---------------------------------------------------------------------------------------------------------


def create(image: Image, request: CreateAclsRequest, new_id: Callable[[], bytes]) -> Decision[CreateAclsResponse]:
    """Each rule by itself; one that is there already is created once more, which changes nothing.

    A request in which a rule is no rule but a filter (ANY, MATCH) is refused as a whole.
    """
    is_refused = any(_is_filter(creation) for creation in request.creations)
    present = {Acl.of(record) for record in image.acls.values()} if request.creations else set()
    decision = Decision(CreateAclsResponse())
    for creation in request.creations:
        error = _creation_problem(creation)
        if is_refused and error is NO_ERROR:
            words = "Nothing of this request was done: another rule in it is a filter (ANY or MATCH)."
            error = ApiError(ErrorCode.INVALID_REQUEST, words)
        decision.response.results.append(AclCreationResult(error_code=error.code, error_message=error.message or ""))
        if error is not NO_ERROR:
            continue
        record = AccessControlEntryRecord(
            id=new_id(),
            resource_type=creation.resource_type,
            resource_name=creation.resource_name,
            pattern_type=creation.resource_pattern_type,
            principal=creation.principal,
            host=creation.host,
            operation=creation.operation,
            permission_type=creation.permission_type,
        )
        acl = Acl.of(record)
        if acl not in present:
            present.add(acl)
            decision.records.append(record)
    return decision


def _is_filter(creation: AclCreation) -> bool:
    codes = (creation.resource_type, creation.resource_pattern_type, creation.operation, creation.permission_type)
    return ANY in codes or creation.resource_pattern_type == PatternType.MATCH


def _creation_problem(creation: AclCreation) -> ApiError:
    problem = None
    if _is_filter(creation):
        problem = "A rule names its resource type, pattern, operation and permission; ANY and MATCH are for filters."
    elif creation.resource_type not in _RESOURCES:
        problem = "Invalid resourceType UNKNOWN"
    elif creation.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        problem = "Invalid patternType UNKNOWN"
    elif creation.operation not in _OPERATIONS:
        problem = "Invalid operation UNKNOWN"
    elif creation.permission_type not in _PERMISSIONS:
        problem = "Invalid permissionType UNKNOWN"
    elif creation.resource_type == Resource.CLUSTER and creation.resource_name != CLUSTER_NAME:
        problem = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif ":" not in creation.principal:
        problem = (
            f"Could not parse principal from `{creation.principal}` (no colon is present separating the principal "
            "type from the principal name)"
        )
    elif not creation.resource_name:
        problem = "Resource name should not be empty"
    elif any(len(text.encode()) > TEXT_BYTES_MAX for text in (creation.resource_name, creation.principal)):
        problem = f"A name in a rule is longer than {TEXT_BYTES_MAX} bytes."
    return NO_ERROR if problem is None else ApiError(ErrorCode.INVALID_REQUEST, problem)


# --- finding and deleting ---------------------------------------------------------------------------------------------


def matcher(wanted: DescribeAclsRequest | DeleteAclsFilter) -> Callable[[Acl], bool]:
    """Whether a rule is among those that a filter names; null and ANY let everything through."""
    resource, name, pattern = wanted.resource_type_filter, wanted.resource_name_filter, wanted.pattern_type_filter
    principal, host = wanted.principal_filter, wanted.host_filter
    operation, permission = wanted.operation, wanted.permission_type

    def matches(acl: Acl) -> bool:
        return (
            resource in (ANY, acl.resource)
            and _names_match(acl, name, pattern)
            and (principal is None or principal == acl.principal)
            and (host is None or host == acl.host)
            and operation in (ANY, acl.operation)
            and permission in (ANY, acl.permission)
        )

    return matches


def _names_match(acl: Acl, name: str | None, pattern: int) -> bool:
    if pattern not in (ANY, PatternType.MATCH, acl.pattern):
        return False
    if name is None:
        return True
    if pattern != PatternType.MATCH:
        return acl.name == name
    if acl.pattern == PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, WILDCARD)


def delete(image: Image, request: DeleteAclsRequest) -> Decision[DeleteAclsResponse]:
    """Each filter by itself; a rule that several of them match is told by each, and deleted once."""
    decision = Decision(DeleteAclsResponse())
    rules = {acl_id: Acl.of(record) for acl_id, record in image.acls.items()} if request.filters else {}
    removed: dict[bytes, MetadataRecord] = {}
    for wanted in request.filters:
        problem = _filter_problem(wanted)
        if problem is not None:
            code = ErrorCode.INVALID_REQUEST
            decision.response.filter_results.append(DeleteAclsFilterResult(error_code=code, error_message=problem))
            continue
        matches = matcher(wanted)
        result = DeleteAclsFilterResult(error_message=None)
        decision.response.filter_results.append(result)
        for acl_id, acl in rules.items():
            if matches(acl):
                removed[acl_id] = RemoveAccessControlEntryRecord(id=acl_id)
                result.matching_acls.append(_told(acl))
    decision.records += removed.values()
    return decision


def _told(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _filter_problem(wanted: DeleteAclsFilter) -> str | None:
    if wanted.resource_type_filter != ANY and wanted.resource_type_filter not in _RESOURCES:
        return "Unknown patternFilter."
    if wanted.pattern_type_filter != ANY and wanted.pattern_type_filter not in _PATTERNS:
        return "Unknown patternFilter."
    if wanted.operation != ANY and wanted.operation not in _OPERATIONS:
        return "Unknown entryFilter."
    if wanted.permission_type != ANY and wanted.permission_type not in _PERMISSIONS:
        return "Unknown entryFilter."
    return None


def describe(acls: Iterable[Acl], request: DescribeAclsRequest) -> DescribeAclsResponse:
    matches = matcher(request)
    by_resource: dict[tuple[int, int, str], DescribeAclsResource] = {}
    for acl in acls:
        if matches(acl):
            key = (acl.resource, acl.pattern, acl.name)
            shown = by_resource.get(key)
            if shown is None:
                shown = by_resource[key] = DescribeAclsResource(
                    resource_type=acl.resource, resource_name=acl.name, pattern_type=acl.pattern
                )
            shown.acls.append(
                AclDescription(
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
            )
    return DescribeAclsResponse(error_message="", resources=list(by_resource.values()))
