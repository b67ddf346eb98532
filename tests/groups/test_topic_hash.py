"""The hashes by which groups notice that topics changed are Kafka's."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

from headrace.groups.epochs.topic_hash import MISSING_TOPIC, group_hash, topic_hash

VECTORS = Path(__file__).parents[1] / "reference" / "vectors" / "topic-hash.jsonl.gz"


def test_hashes_are_kafkas() -> None:
    seen = 0
    for line in gzip.decompress(VECTORS.read_bytes()).splitlines():
        case = json.loads(line)
        hashes = []
        for topic in case["topics"]:
            found = MISSING_TOPIC
            if topic["topicId"] is not None:
                topic_id = base64.urlsafe_b64decode(topic["topicId"] + "==")
                racks = topic["racks"] if topic["racks"] is not None else [[]] * topic["partitions"]
                found = topic_hash(topic_id, topic["name"], racks)
                assert found % 2**64 == topic["hash"] % 2**64, topic
                seen += 1
            hashes.append((topic["name"], found))
        assert group_hash(hashes) == case["groupHash"]
    assert seen > 1000
