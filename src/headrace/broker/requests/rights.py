"""The rights that requests need: operations on the resources they name, declared beside each handler.

A declaration says what has to be allowed, not what happens without it: each API tells a lack in its own words. What a
request names is found by `Right.names`, so that a right whose resources the request does not touch is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from headrace.cluster.acls import CLUSTER_NAME as CLUSTER_NAME
from headrace.cluster.acls import Operation as Operation
from headrace.cluster.acls import Resource as Resource

# The resources of one kind that a request of some version names. A topic may be named by its id (bytes).
Names = Callable[[Any, int], Iterable[str | bytes]]


class Right(NamedTuple):
    """One operation on all the resources of a kind that a request names.

    A `conditional` right is for the handler itself to ask for, once it knows what the answer holds: a topic that would
    be created, groups that are listed.
    """

    operation: Operation
    resource: Resource
    names: Names
    conditional: bool = False


class AnyOf(NamedTuple):
    """Rights each of which is enough."""

    rights: tuple[Right, ...]


Requirement = Right | AnyOf
# For what everybody may ask, and for what says itself who may.
NOTHING: tuple[Requirement, ...] = ()


def at(*paths: str) -> Names:
    """What stands at these places in a request: `topics.name` is the name of each topic.

    A field that the request's version does not have, a null and an id of zeros name nothing; an empty text is a name.
    """
    steps = [path.split(".") for path in paths]

    def names(request: Any, version: int) -> list[str | bytes]:
        found: list[str | bytes] = []
        for path in steps:
            _collect(request, version, path, found)
        return found

    return names


def _collect(value: Any, version: int, path: Sequence[str], found: list[str | bytes]) -> None:
    if isinstance(value, list):
        for item in value:
            _collect(item, version, path, found)
    elif path and value is not None:
        field = next(field for field in value.SCHEMA.fields if field.name == path[0])
        if version in field.versions:
            _collect(getattr(value, path[0]), version, path[1:], found)
    elif isinstance(value, str) or (value is not None and any(value)):
        found.append(value)


def the_cluster(request: Any, version: int) -> tuple[str]:
    return (CLUSTER_NAME,)


def on_topics(operation: Operation, *paths: str, conditional: bool = False) -> Right:
    return Right(operation, Resource.TOPIC, at(*paths), conditional)


def on_groups(operation: Operation, *paths: str, conditional: bool = False) -> Right:
    return Right(operation, Resource.GROUP, at(*paths), conditional)


def on_transactional_ids(operation: Operation, *paths: str, conditional: bool = False) -> Right:
    return Right(operation, Resource.TRANSACTIONAL_ID, at(*paths), conditional)


def on_cluster(operation: Operation, *, conditional: bool = False) -> Right:
    return Right(operation, Resource.CLUSTER, the_cluster, conditional)


def any_of(*rights: Right) -> AnyOf:
    return AnyOf(rights)


def when(condition: Callable[[Any, int], bool], right: Right) -> Right:
    """The right, for those requests (of that version) that the condition holds for."""
    names = right.names
    return right._replace(names=lambda request, version: names(request, version) if condition(request, version) else ())


def of_configs(operation: Operation) -> tuple[Right, ...]:
    """A right to the configs that a request names: topics and groups by name, all else is the cluster's."""
    of_a_topic, of_a_group = 2, 32  # Kafka's codes for what configs belong to

    def named(kind: int) -> Names:
        return lambda request, version: [x.resource_name for x in request.resources if x.resource_type == kind]

    def others(request: Any, version: int) -> tuple[str, ...]:
        kinds = {x.resource_type for x in request.resources}
        return (CLUSTER_NAME,) if kinds - {of_a_topic, of_a_group} else ()

    return (
        Right(operation, Resource.TOPIC, named(of_a_topic)),
        Right(operation, Resource.GROUP, named(of_a_group)),
        Right(operation, Resource.CLUSTER, others),
    )
