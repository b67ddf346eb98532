"""Internal topics of streams applications, made by the broker that coordinates them; and why one could not be made."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from headrace.broker.metadata.service import MetadataService
from headrace.errors import ErrorCode
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.runtime import Clock

log = logging.getLogger("headrace.broker")

FAILURES_MAX: Final = 10_000
FAILURE_KEPT_S: Final = 10.0
"""So long a failure is told to members, and the topic is not tried again."""


class StreamsTopics:
    """Makes each topic once at a time, however many members wait for it."""

    def __init__(
        self,
        metadata: MetadataService,
        clock: Clock,
        run: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`run` has the broker run something, and wait for it when it ends."""
        self._metadata = metadata
        self._clock = clock
        self._run = run
        self._under_way: set[str] = set()
        self._failures: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def make(self, topics: Iterable[CreatableTopic]) -> str:
        """Begin to make those that nobody makes yet; what to say of those that could not be made."""
        now = self._clock.monotonic()
        while self._failures and next(iter(self._failures.values()))[0] + FAILURE_KEPT_S <= now:
            self._failures.popitem(last=False)
        failed: list[str] = []
        wanted: list[CreatableTopic] = []
        for topic in topics:
            failure = self._failures.get(topic.name)
            if failure is not None:
                failed.append(f"{topic.name} ({failure[1]})")
            elif topic.name not in self._under_way:
                wanted.append(topic)
        if wanted:
            self._under_way.update(topic.name for topic in wanted)
            self._run(self._make(wanted))
        return f"; Creation failed: {', '.join(failed)}." if failed else ""

    async def _make(self, topics: list[CreatableTopic]) -> None:
        try:
            for topic in topics:
                await self._make_one(topic)
        finally:
            self._under_way.difference_update(topic.name for topic in topics)

    async def _make_one(self, topic: CreatableTopic) -> None:
        answer = await self._metadata.create(topic)
        for result in answer.topics:
            code = ErrorCode(result.error_code)
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                continue
            why = result.error_message or code.message
            log.warning("the internal topic %s of a streams application could not be made: %s", topic.name, why)
            self._failures.pop(topic.name, None)
            self._failures[topic.name] = self._clock.monotonic(), why
            if len(self._failures) > FAILURES_MAX:
                self._failures.popitem(last=False)
