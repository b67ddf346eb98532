"""What topics there are, and what partitions they have: asked once, beside the consumer's own metadata."""

from __future__ import annotations

from collections.abc import Callable

from headrace.client.cluster.core import ANY_NODE, ClientCore
from headrace.client.cluster.view import ClusterView, PartitionView, TopicView
from headrace.client.consumer.config import ConsumerSettings
from headrace.client.consumer.errors import is_retriable
from headrace.client.flows import Flow, Pause
from headrace.errors import ErrorCode, HeadraceError, InvalidTopicError, RetriableError, error_for
from headrace.net.connection import Call
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

_UNKNOWN_TRIES_MAX = 3


class TopicQuestions:
    """Asks any broker."""

    def __init__(self, core: ClientCore, settings: ConsumerSettings, notify: Callable[[], None]) -> None:
        self._core = core
        self._settings = settings
        self._notify = notify

    def partitions_for(self, topic: str) -> Flow[list[PartitionView]]:
        """The partitions of a topic; none if there is no such topic."""
        known = self._core.view.topics.get(topic)
        if known is not None and known.partitions:
            return list(known.partitions)
        topics = yield from self._ask([topic])
        found = topics.get(topic)
        return [] if found is None else list(found.partitions)

    def list_topics(self) -> Flow[dict[str, list[PartitionView]]]:
        """Every topic that may be seen, with its partitions."""
        topics = yield from self._ask(None)
        return {name: list(topic.partitions) for name, topic in topics.items() if not topic.error_code}

    def names_of(self, topic_ids: set[bytes]) -> Flow[dict[bytes, str]]:
        """Names by ids, of those that a broker knows: what the metadata has already, the rest asked for once."""
        known = self._core.view.topic_names
        found = {topic_id: known[topic_id] for topic_id in topic_ids if topic_id in known}
        missing = sorted(topic_ids - found.keys())
        if missing:
            asked = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in missing]
            request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
            call: Call = yield self._core.submit(ANY_NODE, request, lambda _: self._notify())
            if call.error is not None and not isinstance(call.error, RetriableError):
                raise call.error
            answered = [] if call.error is not None else call.response.topics
            found |= {topic.topic_id: topic.name for topic in answered if topic.name and not topic.error_code}
        return found

    def _ask(self, names: list[str] | None) -> Flow[dict[str, TopicView]]:
        failures = 0
        while True:
            asked = None if names is None else [MetadataRequestTopic(name=name) for name in names]
            request = MetadataRequest(topics=asked, allow_auto_topic_creation=self._settings.allow_auto_create_topics)
            call: Call = yield self._core.submit(ANY_NODE, request, lambda _: self._notify())
            if call.error is not None and not isinstance(call.error, RetriableError):
                raise call.error
            # One that knows of no broker yet, itself included, was just started: it knows of no topic either.
            if call.error is None and call.response.brokers:
                view = ClusterView()
                view.update(call.response)
                if names is None or self._is_final(view, failures):
                    return dict(view.topics)
            wait_ms = self._settings.retry_backoff.wait_ms(failures, self._core.rng)
            failures += 1
            yield Pause(self._core.clock.monotonic() + wait_ms / 1000)

    def _is_final(self, view: ClusterView, failures: int) -> bool:
        """Whether to ask no further: a topic that does not exist may be about to be created by the question."""
        faulty = [topic for topic in view.topics.values() if topic.error_code]
        for topic in faulty:
            if not is_retriable(topic.error_code):
                raise about_topic(topic)
        if any(topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in faulty):
            return False
        return not faulty or not self._settings.allow_auto_create_topics or failures >= _UNKNOWN_TRIES_MAX


def about_topic(topic: TopicView) -> HeadraceError:
    """The error that a topic has, with its name."""
    error = error_for(topic.error_code)
    if isinstance(error, InvalidTopicError):
        return InvalidTopicError(f"{topic.name!r} is not a valid name of a topic")
    return type(error)(f"topic {topic.name}: {error.message}")
