"""Which versions of which requests were served, to whom: counted around the broker's dispatch, for the tests only."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.pipeline import RequestPipeline
from headrace.protocol.api import ApiKey
from headrace.protocol.codec import read_request_header

# Client ids that the tests give; anything else is what Apache Kafka's tools call themselves.
OLDER_JAVA = "older Java"
CLIENT_IDS = ("confluent-kafka", "kafka-python", "aiokafka", "kcat", "kio", OLDER_JAVA)
JAVA = "Java"
RDKAFKA = "rdkafka"  # what librdkafka says when it is told nothing


class Served:
    """How often each (client, API key, version) was answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[tuple[str, ApiKey, int]] = Counter()

    def note(self, client_id: str | None, api_key: ApiKey, api_version: int) -> None:
        given = "confluent-kafka" if client_id == RDKAFKA else client_id or ""
        client = next((name for name in CLIENT_IDS if given.startswith(name)), JAVA)
        with self._lock:
            self.counts[client, api_key, api_version] += 1

    def versions(self, client: str, api_key: ApiKey) -> set[int]:
        with self._lock:
            return {version for name, key, version in self.counts if name == client and key == api_key}


@contextlib.contextmanager
def counting() -> Iterator[Served]:
    """Count every answer of every broker of this process."""
    served = Served()
    encode, at_once = RequestPipeline.encode, RequestPipeline.at_once

    def encode_and_note(pipeline: RequestPipeline, context: RequestContext, response: Any, done: float) -> Any:
        served.note(context.client_id, context.api_key, context.api_version)
        return encode(pipeline, context, response, done)

    def at_once_and_note(pipeline: RequestPipeline, connection: Any, frame: memoryview, *, may_put_off: bool) -> Any:
        found = at_once(pipeline, connection, frame, may_put_off=may_put_off)
        if found is not None:
            route, _ = found
            served.note(read_request_header(frame)[2], route.handler.api_key, route.api_version)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestPipeline, "encode", encode_and_note)
        patch.setattr(RequestPipeline, "at_once", at_once_and_note)
        yield served
