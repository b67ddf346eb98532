"""What `partitions_for` waits for: a topic's metadata, or that the brokers refuse to give it."""

from __future__ import annotations

from headrace.client.cluster.core import ClientCore
from headrace.client.cluster.view import PartitionView
from headrace.client.producer._errors import refused_error, unknown_partitions
from headrace.errors import HeadraceError
from headrace.net.authentication import REFUSALS


class TopicWait:
    """A wait for one topic, which begins before the core is asked for its metadata."""

    def __init__(self, core: ClientCore, topic: str) -> None:
        self._core = core
        self._topic = topic
        self._error_before = core.metadata_error

    @property
    def is_over(self) -> bool:
        return bool(self._core.view.partition_count(self._topic)) or self._refusal is not None

    def partitions(self, seconds: float) -> list[PartitionView]:
        """The topic's partitions; raises when there are none after so many seconds, or the credentials were refused."""
        view, refusal = self._core.view.topics.get(self._topic), self._refusal
        if view is not None and view.partitions:
            return list(view.partitions)
        if refusal is not None:
            raise refused_error(refusal, f"the metadata of {self._topic} was not given")
        raise unknown_partitions(self._topic, seconds, self._core.trouble)

    @property
    def _refusal(self) -> HeadraceError | None:
        error = self._core.metadata_error
        return error if error is not self._error_before and isinstance(error, REFUSALS) else None
