"""Quotas of changes: how many partitions a client may create and delete (KIP-599).

A request that finds the client's bucket overdrawn is refused topic by topic, in versions that can say so; older ones
are done, and the client is not heard for a while. What overdraws the bucket is done, as nobody could ever create a
topic of more partitions than the bucket holds otherwise.

They are counted where the client asks: each broker counts for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.requests.dispatch import Afterwards
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_partitions import CreatePartitionsResponse, CreatePartitionsTopicResult
from headrace.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from headrace.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse, DeleteTopicState

if TYPE_CHECKING:
    from headrace.broker.requests.access import ChangesMeter
    from headrace.broker.requests.dispatch import RequestContext
    from headrace.broker.view import ClusterView

#: From which version on a request is refused.
STRICT_SINCE: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.CREATE_PARTITIONS: 3, ApiKey.DELETE_TOPICS: 5}
_EXCEEDED: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED
_WORDS: Final = "The throttling quota has been exceeded."
_MS: Final = 1000


class ChangesCheck:
    """The pipeline's `limited`."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._ways: dict[ApiKey, Callable[[RequestContext, ChangesMeter, Any], Any]] = {
            ApiKey.CREATE_TOPICS: self._create_topics,
            ApiKey.CREATE_PARTITIONS: self._create_partitions,
            ApiKey.DELETE_TOPICS: self._delete_topics,
        }

    def __call__(self, context: RequestContext, request: Any) -> Any:
        way = self._ways.get(context.api_key)
        meter = None if context.meter is None else context.meter.changes
        return None if way is None or meter is None else way(context, meter, request)

    # --- each kind of change

    def _create_topics(self, context: RequestContext, meter: ChangesMeter, request: Any) -> Any:
        def partitions(topic: Any) -> int:
            if topic.name in self._cluster.image.topics:
                return 0  # refused, whatever else
            if topic.assignments:
                return len(topic.assignments)
            default = self._cluster.config.get_int("num.partitions")
            return default if topic.num_partitions == -1 else max(0, int(topic.num_partitions))

        refused = _refused(context, meter, request.topics, partitions)
        if not refused:
            return None
        results = [
            CreatableTopicResult(name=topic.name, error_code=_EXCEEDED, error_message=_WORDS, configs=[])
            for topic in refused
        ]
        request.topics = _without(request.topics, refused)
        return _amended(CreateTopicsResponse(), "topics", results) if not request.topics else _then("topics", results)

    def _create_partitions(self, context: RequestContext, meter: ChangesMeter, request: Any) -> Any:
        def partitions(topic: Any) -> int:
            found = self._cluster.image.topics.get(topic.name)
            return 0 if found is None else max(0, topic.count - len(found.partitions))

        refused = _refused(context, meter, request.topics, partitions)
        if not refused:
            return None
        results = [
            CreatePartitionsTopicResult(name=topic.name, error_code=_EXCEEDED, error_message=_WORDS)
            for topic in refused
        ]
        request.topics = _without(request.topics, refused)
        if not request.topics:
            return _amended(CreatePartitionsResponse(), "results", results)
        return _then("results", results)

    def _delete_topics(self, context: RequestContext, meter: ChangesMeter, request: Any) -> Any:
        image = self._cluster.image

        def partitions(topic: DeleteTopicState) -> int:
            found = image.topics_by_id.get(topic.topic_id) if topic.name is None else image.topics.get(topic.name)
            return 0 if found is None else len(found.partitions)

        asked = [*(DeleteTopicState(name=name) for name in request.topic_names), *request.topics]
        refused = _refused(context, meter, asked, partitions)
        if not refused:
            return None
        results = [
            DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=_EXCEEDED, error_message=_WORDS)
            for topic in refused
        ]
        names = {topic.name for topic in refused}
        request.topic_names = [name for name in request.topic_names if name not in names]
        request.topics = _without(request.topics, refused)
        if not request.topics and not request.topic_names:
            return _amended(DeleteTopicsResponse(), "responses", results)
        return _then("responses", results)


def _refused(
    context: RequestContext, meter: ChangesMeter, topics: Sequence[Any], partitions: Callable[[Any], int]
) -> list[Any]:
    """What may not be done; the rest is counted. The client is told for how long it should ask for no more."""
    is_strict = context.api_version >= STRICT_SINCE[context.api_key]
    refused = []
    throttle_ms = 0
    for topic in topics:
        count = partitions(topic)
        if not count:
            continue
        if is_strict and meter.throttle_ms() > 0:
            throttle_ms = meter.throttle_ms()
            refused.append(topic)
            continue
        meter.take(count)
        if not is_strict:
            throttle_ms = meter.throttle_ms()
    context.throttle_s = max(context.throttle_s, throttle_ms / _MS)
    return refused


def _without(topics: Sequence[Any], refused: Sequence[Any]) -> list[Any]:
    gone = {id(topic) for topic in refused}
    return [topic for topic in topics if id(topic) not in gone]


def _amended(response: Any, place: str, results: list[Any]) -> Any:
    getattr(response, place).extend(results)
    return response


def _then(place: str, results: list[Any]) -> Afterwards:
    return Afterwards(lambda response: _amended(response, place, results))
