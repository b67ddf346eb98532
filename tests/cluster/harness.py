"""A cluster of one without a network: requests as bytes in, the controller's and the image's answers as bytes out."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.cluster.answers import Answers
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.brokers import Registration
from headrace.cluster.controller import Controller
from headrace.cluster.decision import Decision
from headrace.cluster.image import Endpoint, Image
from headrace.cluster.records import MetadataRecord, Unknown, decode_record, encode_record
from headrace.error_codes import ErrorCode
from headrace.protocol.api import ApiKey, api, is_flexible
from headrace.protocol.codec import decode, decode_request_header, encode_response
from headrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

BEHAVIOUR = Path(__file__).parent.parent / "reference" / "behaviour"
LISTENER = "PLAINTEXT"


class OneBroker:
    """Image, controller and answers of a cluster with one broker (or more, when the test registers them)."""

    def __init__(self, given: dict[str, str] | None = None, node_id: int = 1, seed: int = 0) -> None:
        rng = random.Random(seed)
        self.image = Image()
        self.log: list[MetadataRecord] = []
        self.controller = Controller(node_id, BrokerConfig.parse(given or {}), rng, lambda: rng.randbytes(16))
        self.answers = Answers(self.image, "a-cluster-of-one-22ch")
        self.answers.controller_id = node_id
        self.append(self.controller.bootstrap(self.image))
        self.epochs = {node_id: self.register(node_id)}

    def register(self, node_id: int, rack: str | None = None, incarnation: bytes = b"\x01" * 16) -> int:
        listener = Endpoint(LISTENER, "127.0.0.1", 9000 + node_id, 0)
        broker = Registration(node_id, incarnation, [listener], rack)
        return self.decide(self.controller.register_broker(self.image, broker, fenced=False))

    def append(self, records: Iterable[MetadataRecord]) -> None:
        """Fold records as they are after a way over the disk."""
        for record in records:
            stored = decode_record(encode_record(record))
            assert not isinstance(stored, Unknown)
            assert stored == record
            self.log.append(stored)
            self.image.apply(stored)
            self.image.offset += 1

    def decide(self, decision: Decision[Any]) -> Any:
        self.append(decision.records)
        return decision.response

    def handle(self, key: ApiKey, version: int, request: Any) -> Any:
        """What the handlers of a broker do with these requests."""
        if key is ApiKey.METADATA:
            return self.answers.metadata(request, version, LISTENER)
        if key is ApiKey.DESCRIBE_CLUSTER:
            return self.answers.describe_cluster(request, LISTENER)
        if key is ApiKey.DESCRIBE_TOPIC_PARTITIONS:
            return self.answers.describe_topic_partitions(request, LISTENER, 2000)
        method = getattr(self.controller, key.name.lower())
        versioned = key in (ApiKey.DELETE_TOPICS, ApiKey.LIST_CONFIG_RESOURCES)
        answer = method(self.image, request, version) if versioned else method(self.image, request)
        return self.decide(answer) if isinstance(answer, Decision) else answer

    def roundtrip(self, frame: bytes) -> bytes:
        """A request frame's answer, both without their lengths."""
        header = decode_request_header(frame, is_flexible)
        key = ApiKey(header.api_key)
        request = decode(api(key).request, header.api_version, frame, header.body_position)
        response = self.handle(key, header.api_version, request)
        return b"".join(encode_response(response, header.api_version, header.correlation_id))[4:]


def load_replay() -> ModuleType:
    """The player of recorded conversations that lies beside them."""
    spec = importlib.util.spec_from_file_location("behaviour_replay", BEHAVIOUR / "replay.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["behaviour_replay"] = module
    spec.loader.exec_module(module)
    return module


class Recorded:
    """Plays recorded cases to a `OneBroker` instead of over a socket."""

    def __init__(self) -> None:
        self.replay = load_replay()

    def play(self, case: dict[str, Any]) -> list[tuple[int, str, object, object]]:
        """The differences to what Kafka answered, but for the words of error messages."""
        broker = OneBroker({"num.partitions": "4", "group.initial.rebalance.delay.ms": "0"})
        replay = self.replay

        class Wire:
            def __init__(self, _: object) -> None:
                self.answered: list[tuple[str, int, bytes]] = []
                self.sock = self

            def send(self, api: str, version: int, body: Any, client_id: Any, decode_v: Any, _: bool) -> None:
                self.answered.append(
                    (api, version, broker.roundtrip(replay.encode_request(api, version, 7, client_id, body)))
                )

            def receive(self, _: float = 0) -> Any:
                return replay.decode_response(*self.answered.pop(0))[1]

            def close(self) -> None:
                """There is nothing to close."""

        class Session:
            address = None
            facts = {"host": "127.0.0.1", "port": 9001, "cluster": "a-cluster-of-one-22ch", "node": 1, "node_text": "1"}  # noqa: RUF012

            def setup_topic(self, wire: Wire, spec: dict[str, Any]) -> Any:
                configs = [{"name": k, "value": v} for k, v in spec.get("configs", {}).items()]
                topic = {"name": spec["name"], "num_partitions": spec.get("partitions", 1), "replication_factor": 1}
                wire.send("create_topics", 7, {"timeout": 1, "topics": [topic | {"configs": configs}]}, "t", None, True)
                return wire.receive()["topics"][0]["topic_id"]

        replay.Connection = Wire
        return replay.play(Session(), _any_words(case, replay.MESSAGE_FIELDS), False)  # type: ignore[no-any-return]


def _any_words(value: Any, fields: Iterable[str]) -> Any:
    """The case with every expected error message made one that any message meets."""
    if isinstance(value, list):
        return [_any_words(element, fields) for element in value]
    if not isinstance(value, dict):
        return value
    return {key: "<any>" if key in fields else _any_words(inner, fields) for key, inner in value.items()}


def cases(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (BEHAVIOUR / file).read_text(encoding="utf-8").splitlines()]


def create(cluster: OneBroker, name: str, replicas: list[list[int]], **configs: str) -> None:
    """Make a topic whose partitions have these replicas."""
    topic = CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=i, broker_ids=ids) for i, ids in enumerate(replicas)],
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )
    answer = cluster.decide(cluster.controller.create_topics(cluster.image, CreateTopicsRequest(topics=[topic])))
    assert answer.topics[0].error_code == ErrorCode.NONE, answer
