"""Which versions of which requests were served, to whom: counted around the broker's dispatch, for the tests only."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.broker.dispatch import RequestContext
from headrace.broker.pipeline import RequestPipeline
from headrace.protocol.api import ApiKey

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

    def note(self, context: RequestContext) -> None:
        client_id = context.client_id or ""
        given = "confluent-kafka" if client_id == RDKAFKA else client_id
        client = next((name for name in CLIENT_IDS if given.startswith(name)), JAVA)
        with self._lock:
            self.counts[client, context.api_key, context.api_version] += 1

    def versions(self, client: str, api_key: ApiKey) -> set[int]:
        with self._lock:
            return {version for name, key, version in self.counts if name == client and key == api_key}


@contextlib.contextmanager
def counting() -> Iterator[Served]:
    """Count every answer of every broker of this process."""
    served = Served()
    encode = RequestPipeline.encode

    def encode_and_note(pipeline: RequestPipeline, context: RequestContext, response: Any, done: float) -> Any:
        served.note(context)
        return encode(pipeline, context, response, done)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestPipeline, "encode", encode_and_note)
        yield served
