"""What administrative operations are made of: who is asked, what is tried again, what came of each item.

An operation is a flow (see `flows`). It does no I/O and never waits by itself. `retried` repeats what may go away by
itself (a coordinator that moved, a leader election, a lost connection) until the operation's time is over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from headrace.client.cluster.coordinator import CoordinatorKind, find_coordinator, found_coordinator
from headrace.client.cluster.core import ANY_NODE, ClientCore
from headrace.client.flows import All, Flow, Pause
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    KafkaError,
    LeaderNotAvailableError,
    NetworkError,
    RequestTimedOutError,
    RetriableError,
    UnknownTopicOrPartitionError,
    error_for,
)
from headrace.net.connection import Call
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.topics import TopicPartition

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
N = TypeVar("N")

# The core says why a request could not be sent when its time is over; that is worth a moment more.
_GRACE_S = 0.05
_TOPIC = "topic "


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to one node (None: any)."""

    node_id: int | None
    request: Any
    version_max: int | None = None


@dataclass(frozen=True, slots=True)
class AskReply:
    """What came of an `Ask`: a response, or the error that stopped it on the way."""

    response: Any
    error: HeadraceError | None


class Results(Generic[K, V]):
    """What came of each item. `results[item]` is its value, or raises its error.

    `all()` gives every value and raises the first error; `ok` and `errors` have them apart. Nothing is raised by
    itself, so an operation on ten items that fails for one has still told of the nine.
    """

    __slots__ = ("errors", "ok")

    def __init__(self, ok: Mapping[K, V], errors: Mapping[K, HeadraceError]) -> None:
        self.ok: dict[K, V] = dict(ok)
        self.errors: dict[K, HeadraceError] = dict(errors)

    def __getitem__(self, item: K) -> V:
        error = self.errors.get(item)
        if error is not None:
            raise error
        return self.ok[item]

    def __contains__(self, item: object) -> bool:
        return item in self.ok or item in self.errors

    def __iter__(self) -> Iterator[K]:
        return itertools.chain(self.ok, self.errors)

    def __len__(self) -> int:
        return len(self.ok) + len(self.errors)

    def __repr__(self) -> str:
        return f"Results(ok={self.ok!r}, errors={self.errors!r})"

    def all(self) -> dict[K, V]:
        """Every value; raises the first error if there is one."""
        for error in self.errors.values():
            raise error
        return self.ok


class Context:
    """What an operation may look at: the client's view of the cluster, the clock, and how much time is left.

    `notify` is called when something was answered.
    """

    def __init__(self, core: ClientCore, timeout_ms: float, notify: Callable[[], None] = lambda: None) -> None:
        self.core = core
        self.timeout_ms = timeout_ms
        self.deadline = core.clock.monotonic() + timeout_ms / 1000
        self._notify = notify

    def submit(self, ask: Ask) -> Call:
        timeout_ms = min(self.left_ms, self.core.config.request_timeout_ms)
        return self.core.submit(
            ask.node_id, ask.request, lambda _: self._notify(), timeout_ms=timeout_ms, version_max=ask.version_max
        )

    def check(self, now: float) -> float:
        """An operation ends by itself when its time is over (see `drive`)."""
        return float("inf")

    @property
    def left_ms(self) -> float:
        return max(0.0, (self.deadline - self.core.clock.monotonic()) * 1000)

    @property
    def request_timeout_ms(self) -> int:
        """How long a broker may take for a request that it works on."""
        return max(1, int(min(self.left_ms, self.core.config.request_timeout_ms)))


# --- retries ----------------------------------------------------------------------------------------------------------

# Errors that Kafka calls retriable, and that an administrator wants to hear of at once.
_FINAL = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.CORRUPT_MESSAGE,
    }
)

Outcome: TypeAlias = dict[K, V | HeadraceError]


def may_succeed_later(error: HeadraceError) -> bool:
    """Whether trying again may help."""
    return isinstance(error, RetriableError) and not (isinstance(error, KafkaError) and error.code in _FINAL)


def retried(
    context: Context, items: Iterable[K], attempt: Callable[[list[K]], Flow[Mapping[K, V | HeadraceError]]]
) -> Flow[Results[K, V]]:
    """Run `attempt` for the items, and again for those whose error may pass, until all are settled or time is over."""
    pending = list(dict.fromkeys(items))
    ok: dict[K, V] = {}
    errors: dict[K, HeadraceError] = {}
    for failures in itertools.count():
        if not pending:
            break
        outcome = yield from attempt(pending)
        late: dict[K, HeadraceError] = {}
        for item, value in outcome.items():
            if not isinstance(value, HeadraceError):
                ok[item] = value
            elif may_succeed_later(value):
                late[item] = value
            else:
                errors[item] = value
        pending = list(late)
        wait_ms = context.core.config.retry_backoff.wait_ms(failures, context.core.rng)
        if pending and wait_ms >= context.left_ms:
            errors.update({item: _too_late(context, error) for item, error in late.items()})
            break
        if pending:
            yield Pause(context.core.clock.monotonic() + wait_ms / 1000)
    return Results(ok, errors)


def _too_late(context: Context, error: HeadraceError) -> HeadraceError:
    if isinstance(error, RequestTimedOutError):
        return error
    late = RequestTimedOutError(f"not done within {context.timeout_ms:.0f} ms; the last answer was: {error}")
    late.__cause__ = error
    return late


def single(context: Context, attempt: Callable[[], Flow[V | HeadraceError]]) -> Flow[V]:
    """`retried` for an operation that has one result: gives it, or raises its error."""

    def once(_: list[None]) -> Flow[Mapping[None, V | HeadraceError]]:
        return {None: (yield from attempt())}

    results: Results[None, V] = yield from retried(context, [None], once)
    return results[None]


def refused(code: int, message: str | None = None, about: str = "") -> HeadraceError | None:
    """The error of an answer, or None. `about` ("topic x") says what it is about where the broker's words do not."""
    if not code:
        return None
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and about.startswith(_TOPIC):
        return UnknownTopicOrPartitionError.of(about.removeprefix(_TOPIC))
    error = error_for(code, message)
    if not about or (message and about.split()[-1] in message):
        return error
    return type(error)(f"{about}: {error}")


def ask_all(context: Context, asks: Iterable[Ask]) -> Flow[list[AskReply]]:
    """Send these, all at once; what came of each."""
    calls = [context.submit(ask) for ask in asks]
    if calls:
        yield All(calls, context.deadline + _GRACE_S)
    return [_reply(call, context) for call in calls]


def _reply(call: Call, context: Context) -> AskReply:
    if call.done:
        return AskReply(call.response, call.error)
    return AskReply(None, RequestTimedOutError(f"{call.name} was not answered within {context.timeout_ms:.0f} ms"))


def ask_one(context: Context, node_id: int | None, request: Any, version_max: int | None = None) -> Flow[AskReply]:
    [reply] = yield from ask_all(context, [Ask(node_id, request, version_max)])
    return reply


def answers(
    asked: Mapping[N, Iterable[K]], replies: Iterable[AskReply], outcome: dict[K, V | HeadraceError]
) -> Iterator[tuple[N, Any]]:
    """The nodes that answered what they were asked about, and how; the outcome of the rest is why they did not."""
    for (node_id, items), reply in zip(asked.items(), replies):
        if reply.error is not None:
            outcome.update(dict.fromkeys(items, reply.error))
        else:
            yield node_id, reply.response


# --- where to ---------------------------------------------------------------------------------------------------------


def metadata(context: Context, topics: Iterable[str] | None) -> Flow[MetadataResponse | HeadraceError]:
    """Metadata of these topics (None: of all), which also tells the client the brokers. Creates no topic."""
    asked = None if topics is None else [MetadataRequestTopic(name=name) for name in sorted(set(topics))]
    reply = yield from ask_one(context, ANY_NODE, MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    if reply.error is not None:
        return reply.error
    response: MetadataResponse = reply.response
    error = refused(response.error_code)
    if error is not None:
        return error
    if not response.brokers:
        # It was just started, and knows of no topic either.
        return NetworkError("the broker that was asked knows of no broker yet, itself included")
    context.core.take_metadata(response, asked=[] if asked is None else asked)
    return response


def nodes(context: Context) -> Flow[list[int] | HeadraceError]:
    """The ids of all brokers, asked for now."""
    response = yield from metadata(context, [])
    return response if isinstance(response, HeadraceError) else sorted(context.core.view.nodes)


def to_controller(context: Context, request: Any, version_max: int | None = None) -> Flow[AskReply]:
    """Send to the controller as the metadata names it; any broker when it names none (it forwards)."""
    if context.core.view.controller_id < 0:
        response = yield from metadata(context, [])
        if isinstance(response, HeadraceError):
            return AskReply(None, response)
    controller = context.core.view.controller_id
    node_id = controller if controller in context.core.view.nodes else ANY_NODE
    reply = yield from ask_one(context, node_id, request, version_max)
    if reply.error is not None:
        context.core.view.controller_id = -1
    return reply


def forget_controller(context: Context, code: int) -> None:
    """After NOT_CONTROLLER: ask the metadata again before the next try."""
    if code == ErrorCode.NOT_CONTROLLER:
        context.core.view.controller_id = -1


def change_each(
    context: Context,
    request: Any,
    items: list[K],
    results: Callable[[Any], Iterable[Any]],
    read: Callable[[Any], tuple[K, V | HeadraceError]],
) -> Flow[dict[K, V | HeadraceError]]:
    """Have the controller change several items, whose results are read one by one."""
    reply = yield from to_controller(context, request)
    if reply.error is not None:
        return dict.fromkeys(items, reply.error)
    outcome: dict[K, V | HeadraceError] = {}
    for result in results(reply.response):
        forget_controller(context, result.error_code)
        item, outcome_of_item = read(result)
        outcome[item] = outcome_of_item
    return missing(items, outcome, type(request).__name__.removesuffix("Request"))


def leaders(
    context: Context, partitions: Iterable[TopicPartition]
) -> Flow[tuple[dict[int, list[TopicPartition]], dict[TopicPartition, HeadraceError]]]:
    """The partitions by the broker that leads them, and why some have none."""
    wanted = list(partitions)
    response = yield from metadata(context, {partition.topic for partition in wanted})
    if isinstance(response, HeadraceError):
        return {}, dict.fromkeys(wanted, response)
    found: dict[TopicPartition, int] = {}
    topic_errors: dict[str, HeadraceError] = {}
    for topic in response.topics:
        name = topic.name or ""
        error = refused(topic.error_code, None, f"topic {name}")
        if error is not None:
            topic_errors[name] = error
        for partition in topic.partitions:
            found[TopicPartition(name, partition.partition_index)] = partition.leader_id
    by_node: dict[int, list[TopicPartition]] = {}
    errors: dict[TopicPartition, HeadraceError] = {}
    for wish in wanted:
        leader = found.get(wish)
        if leader is None:
            known = topic_errors.get(wish.topic)
            errors[wish] = known or UnknownTopicOrPartitionError(
                f"topic {wish.topic} has no partition {wish.partition}"
            )
        elif leader not in context.core.view.nodes:
            errors[wish] = LeaderNotAvailableError(f"{wish} has no leader now")
        else:
            by_node.setdefault(leader, []).append(wish)
    return by_node, errors


def coordinators(
    context: Context, ids: Iterable[str], kind: CoordinatorKind = CoordinatorKind.GROUP
) -> Flow[tuple[dict[int, list[str]], dict[str, HeadraceError]]]:
    """The groups (or transactional ids) by the broker that coordinates them, and why some have none."""
    wanted = list(ids)
    replies = yield from ask_all(context, [Ask(ANY_NODE, find_coordinator(kind, name)) for name in wanted])
    by_node: dict[int, list[str]] = {}
    errors: dict[str, HeadraceError] = {}
    for name, reply in zip(wanted, replies):
        if reply.error is not None:
            errors[name] = reply.error
            continue
        found = found_coordinator(reply.response)
        if isinstance(found, KafkaError):
            errors[name] = refused(found.code, found.message, f"coordinator of {name}") or found
            continue
        context.core.learn_node(found)
        by_node.setdefault(found.id, []).append(name)
    return by_node, errors


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, as requests want them."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


def missing(items: Iterable[K], outcome: Mapping[K, V | HeadraceError], what: str) -> dict[K, V | HeadraceError]:
    """The outcome with an error for every item that the broker said nothing of."""
    return dict(outcome) | {
        item: HeadraceError(f"the broker's answer to {what} does not mention {item}")
        for item in items
        if item not in outcome
    }
