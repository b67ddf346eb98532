"""The step `may` of every request: each API key's check, which refuses all of a request, some of it, or nothing.

A check is given the request before its handler is. It returns None where all is allowed, the response where nothing is,
or `Afterwards`, having taken out of the request what is refused: then the handler answers the rest, and its response is
given what is missing in it.

An API key without a check of its own needs all that its handler declares (`requires`). Whatever another broker passes
on was checked where it came from.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from headrace.broker.partitions.fetching import replica_id
from headrace.broker.requests.dispatch import Afterwards as Afterwards
from headrace.broker.requests.dispatch import CloseConnectionError, RequestContext
from headrace.broker.requests.rights import CLUSTER_NAME, AnyOf, Operation, Requirement, Resource, Right
from headrace.broker.view import ClusterView
from headrace.cluster.acls import OPERATIONS_ON
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey

#: How a lack is told, by what it is a lack of.
LACK: Final = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    Resource.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
TOPIC_LACK: Final = LACK[Resource.TOPIC]
GROUP_LACK: Final = LACK[Resource.GROUP]
CLUSTER_LACK: Final = LACK[Resource.CLUSTER]
TOPIC_WORDS: Final = "Topic authorization failed."
CLUSTER_WORDS: Final = "Cluster authorization failed."
TRANSACTIONAL_ID_LACK: Final = LACK[Resource.TRANSACTIONAL_ID]


Check = Callable[[ClusterView, RequestContext, Any], Any]
_checks: dict[int, Check] = {}


def checks(*api_keys: ApiKey) -> Callable[[Check], Check]:
    """Register a function as the check of API keys."""

    def register(check: Check) -> Check:
        for api_key in api_keys:
            if api_key in _checks:
                raise ValueError(f"{api_key.name} has a check already")
            _checks[api_key] = check
        return check

    return register


@cache
def load_checks() -> dict[int, Check]:
    """Import every module of this package, and give the check of each API key that has one."""
    package = importlib.import_module("headrace.broker.authorization")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(_checks)


class RightsCheck:
    """The pipeline's `may`, where there is an authorizer."""

    def __init__(self, cluster: ClusterView) -> None:
        self._surroundings = cluster
        self._checks = load_checks()

    def __call__(self, context: RequestContext, request: Any) -> Any:
        if context.is_from_broker:
            return None
        check = self._checks.get(context.api_key)
        if check is not None:
            return check(self._surroundings, context, request)
        return check_declared(self._surroundings, context, request)


def check_broker(context: RequestContext, request: Any) -> None:
    """Everybody may do everything, where there is no authorizer, but act as a broker: that changes who has which data.

    Whoever is none hears nothing, as at a broker that has no such request.
    """
    handler = context.route.handler
    acts = handler.between_brokers or (
        handler.api_key == ApiKey.FETCH and replica_id(request, context.api_version) >= 0
    )
    if acts and not context.connection.is_brokers:
        _say_stranger(context)
        raise CloseConnectionError(
            f"{context.principal} asked for {handler.api_key.name} at {context.connection.listener} as a broker would, "
            "and is none there"
        )


def _say_stranger(context: RequestContext) -> None:
    """For who runs brokers whose certificates name each by itself, and looks why they do not copy."""
    connection = context.connection
    if connection.security is not None:
        connection.security.tell_stranger(connection)


# --- what a handler declares ------------------------------------------------------------------------------------------


def check_declared(cluster: ClusterView, context: RequestContext, request: Any) -> Any:
    """All or nothing, by what the handler says that it requires."""
    handler = context.route.handler
    if handler.between_brokers:
        raise CloseConnectionError(f"{handler.api_key.name} is for brokers, and {context.principal} is none here")
    for requirement in handler.requires:
        missing = _missing(cluster, context, requirement, request)
        if missing is not None:
            return refused_whole(context, LACK[missing])
    return None


def _missing(cluster: ClusterView, context: RequestContext, requirement: Requirement, request: Any) -> Resource | None:
    if isinstance(requirement, AnyOf):
        lacks = [_missing(cluster, context, right, request) for right in requirement.rights]
        return None if None in lacks else lacks[0]
    return _missing_right(cluster, context, requirement, request)


def _missing_right(cluster: ClusterView, context: RequestContext, right: Right, request: Any) -> Resource | None:
    if right.conditional:
        return None
    for named in right.names(request, context.api_version):
        # An id that nobody has is the handler's to tell of.
        name = cluster.topic_name(named) if isinstance(named, bytes) else named
        if name is not None and not context.is_allowed(right.operation, right.resource, name):
            return right.resource
    return None


def refused_whole(context: RequestContext, error: ErrorCode) -> Any:
    """A response that tells an error for the request as a whole; the connection is closed where it has no place."""
    response = context.route.handler.response_class()
    if not any(field.name == "error_code" for field in response.SCHEMA.fields):
        raise CloseConnectionError(f"{context.principal} may not ask for {context.api_key.name}")
    response.error_code = error
    return response


# --- what checks have in common ---------------------------------------------------------------------------------------


def on_topic(context: RequestContext, operation: Operation, name: str) -> bool:
    return context.is_allowed(operation, Resource.TOPIC, name)


def on_group(context: RequestContext, operation: Operation, name: str) -> bool:
    return context.is_allowed(operation, Resource.GROUP, name)


def on_transactional_id(context: RequestContext, operation: Operation, name: str) -> bool:
    return context.is_allowed(operation, Resource.TRANSACTIONAL_ID, name)


def on_cluster(context: RequestContext, operation: Operation) -> bool:
    return context.is_allowed(operation, Resource.CLUSTER, CLUSTER_NAME)


def authorized_operations(context: RequestContext, resource: Resource, name: str) -> int:
    """The bit field of what whoever asks may do, a bit for each operation's code."""
    return sum(1 << operation for operation in OPERATIONS_ON[resource] if context.may(operation, resource, name))
