"""Log directories that Apache Kafka wrote, and what its broker answered about them."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from headrace.log import Caches, Log, LogConfig
from headrace.log.checkpoints import LOG_START, RECOVERY_POINT, read_offsets
from headrace.runtime import Runtime
from headrace.topics import TopicPartition

GOLDEN = Path(__file__).parent.parent / "reference" / "golden"
KINDS = ("clean", "unclean")
FOREVER_MS = 2**62


@cache
def expected(kind: str) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((GOLDEN / kind / "expected.json").read_text())
    return answers


def partitions(kind: str) -> list[str]:
    return sorted(expected(kind)["partitions"])


ALL = [(kind, name) for kind in KINDS for name in partitions(kind)]


def copy_data(kind: str, target: Path) -> Path:
    """A copy of the whole directory that tests may write to."""
    shutil.copytree(GOLDEN / kind / "data", target)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def copy_partition(kind: str, name: str, target: Path) -> Path:
    """A copy of one partition's directory and the checkpoints beside it."""
    target.mkdir(parents=True, exist_ok=True)
    source = GOLDEN / kind / "data"
    for path in source.iterdir():
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    shutil.copytree(source / name, target / name)
    for path in (target / name, *(target / name).iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target / name


def open_log(
    runtime: Runtime, directory: Path, kind: str, config: LogConfig | None = None, caches: Caches | None = None
) -> Log:
    """Open a copied partition as a broker would: with what the checkpoints beside it say."""
    topic, _, number = directory.name.rpartition("-")
    partition = TopicPartition(topic, int(number))
    root = str(directory.parent)
    log = Log.open(
        runtime,
        str(directory),
        partition,
        config or LogConfig(compact=topic.startswith(("g-compact", "__"))),
        recovery_point=read_offsets(runtime.disk, f"{root}/{RECOVERY_POINT}").get(partition, 0),
        start_offset=read_offsets(runtime.disk, f"{root}/{LOG_START}").get(partition, 0),
        clean=kind == "clean",
        producer_expiration_ms=FOREVER_MS,
        caches=caches,
    )
    log.update_high_watermark(expected(kind)["partitions"][directory.name]["high_watermark"])
    return log
