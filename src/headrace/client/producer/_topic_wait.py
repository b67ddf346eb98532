"""What `partitions_for` waits for: a topic's metadata, or that the brokers refuse to give it."""

from __future__ import annotations

from headrace.client.cluster.view import PartitionView
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._errors import refused_error, unknown_partitions
from headrace.client.producer._queues import fatal_topic_error
from headrace.errors import HeadraceError
from headrace.net.authentication import REFUSALS


class TopicWait:
    """A wait for one topic, which begins before the core is asked for its metadata (`ask`)."""

    def __init__(self, producer: ProducerCore, topic: str) -> None:
        self._accumulator = producer.accumulator
        self._core = producer.core
        self._topic = topic
        self._error_before = self._core.metadata_error
        self._version_before = self._core.view.version

    def ask(self) -> None:
        """Have the topic's metadata kept, and asked for once more if the brokers said no the last time."""
        self._accumulator.use(self._topic, self._core.clock.monotonic())
        view = self._core.view.topics.get(self._topic)
        if view is not None and view.error_code:
            self._core.refresh_metadata()

    @property
    def is_over(self) -> bool:
        return bool(self._core.view.partition_count(self._topic)) or self._refusal is not None

    def partitions(self, seconds: float) -> list[PartitionView]:
        """The topic's partitions; raises when there are none after so many seconds, or the brokers refuse to say."""
        view, refusal = self._core.view.topics.get(self._topic), self._refusal
        if view is not None and view.partitions:
            return list(view.partitions)
        if refusal is not None:
            raise refused_error(refusal, f"the metadata of {self._topic} was not given")
        raise unknown_partitions(self._topic, seconds, self._core.trouble)

    @property
    def _refusal(self) -> HeadraceError | None:
        """Of the credentials, or of the topic: nothing that waiting will mend."""
        error = self._core.metadata_error
        if error is not self._error_before and isinstance(error, REFUSALS):
            return error
        view = self._core.view.topics.get(self._topic)
        is_news = self._core.view.version > self._version_before
        return fatal_topic_error(view) if view is not None and is_news else None
