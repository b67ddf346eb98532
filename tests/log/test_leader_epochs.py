"""Leader epochs of one log, next to what Kafka's own cache of them answers after every operation."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

from headrace.log.leader_epochs import LeaderEpochs

VECTORS = Path(__file__).parents[1] / "reference" / "vectors" / "leader-epochs.jsonl.gz"


def _do(epochs: LeaderEpochs, op: dict[str, Any]) -> tuple[LeaderEpochs, Any]:
    """The epochs after an operation, and its result; an operation that we do not have gives Kafka's."""
    kind = op["op"]
    result = op.get("result")
    if kind == "assign":
        epochs.assign(op["epoch"], op["offset"])
    elif kind == "endOffsetFor":
        result = list(epochs.end_offset_for(op["epoch"], op["logEndOffset"]))
    elif kind == "epochForOffset":
        found = epochs.epoch_for(op["offset"])
        result = None if found < 0 else found
    elif kind == "truncateFromEnd":
        epochs.truncate_end(op["offset"])
    elif kind == "truncateFromStart":
        epochs.truncate_start(op["offset"])
    elif kind == "clear":
        epochs.clear()
    elif kind == "reload":
        epochs = LeaderEpochs.from_bytes(epochs.to_bytes())
    return epochs, result


def test_epochs_are_kept_as_kafka_keeps_them() -> None:
    played: Counter[str] = Counter()
    with gzip.open(VECTORS, "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    for case in cases:
        if case["wild"]:
            continue  # assignments that no log makes, which Kafka sorts out in its own way
        epochs = LeaderEpochs()
        for op in case["ops"]:
            epochs, result = _do(epochs, op)
            assert result == op.get("result"), (case["id"], op)
            assert [list(entry) for entry in epochs.entries] == op["entries"], (case["id"], op)
            played[op["op"]] += 1
        if case.get("file"):  # none is written before there is an epoch
            assert epochs.to_bytes().decode() == case["file"], case["id"]
    assert min(played[kind] for kind in ("assign", "endOffsetFor", "truncateFromEnd", "truncateFromStart")) > 100
