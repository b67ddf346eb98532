"""Writes docs/api-coverage.md: which advertised version was seen from which client, and which from none.

    python -m tests.compat.coverage

runs this folder's tests (all that can run here) with the requests counted, and adds the recordings of a real broker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from headrace.broker.requests.dispatch import load_handlers
from headrace.protocol.api import ApiKey

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "api-coverage.md"
BEHAVIOUR = ROOT / "tests" / "reference" / "behaviour"
VARIABLE = "HEADRACE_API_COVERAGE"
CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka", "kcat", "Java", "older Java")
RECORDED, KIO = "recorded", "kio"

Seen = dict[tuple[str, int], set[int]]  # (who, API key) → versions


def recorded() -> Seen:
    """The versions in the recordings of a real broker that the broker's tests replay."""
    keys = {key.name.lower(): int(key) for key in ApiKey}
    seen: Seen = defaultdict(set)
    for path in BEHAVIOUR.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            for step in json.loads(line)["steps"]:
                if step.get("api") in keys:
                    seen[RECORDED, keys[step["api"]]].add(step["v"])
    return seen


def served() -> Seen:
    """Run the tests, and see what was asked for."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "seen.jsonl"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", str(Path(__file__).parent)],
            cwd=ROOT,
            env={**os.environ, VARIABLE: str(path)},
            check=True,
        )
        seen: Seen = defaultdict(set)
        for line in path.read_text().splitlines():
            client, key, version, _ = json.loads(line)
            seen[client, key].add(version)
        return seen


def ranges(versions: Iterable[int]) -> str:
    """1, 2, 3, 7 as 1-3 7."""
    runs: list[list[int]] = []
    for version in sorted(versions):
        if runs and version == runs[-1][-1] + 1:
            runs[-1].append(version)
        else:
            runs.append([version])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _prose(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def table(seen: Seen) -> str:
    columns = [*CLIENTS, RECORDED, KIO]
    lines = [
        "# Which versions are covered, and by whom",
        "",
        _prose(
            "An API version is advertised only when a client that we did not write, or a recording of a real "
            "broker, covers it (SPEC 0.2). Written by `python -m tests.compat.coverage`; the columns are the "
            "versions that each sent to our broker in the tests. *older Java*: the Java clients of releases 2.0 "
            "to 4.0, also where the broker says that it speaks no newer version "
            "(`tests/compat/test_older_clients.py`). *recorded*: answers of Apache Kafka 4.3.1 that the tests "
            "replay. *kio*: every version, encoded and decoded by kio, with the answers checked "
            "(`tests/compat/scenarios/`)."
        ),
        "",
        f"| key | API | advertised | {' | '.join(columns)} | only kio |",
        f"|---|---|---|{'---|' * len(columns)}---|",
    ]
    uncovered: list[str] = []
    only_kio_count = total = 0
    for handler in sorted(load_handlers().values(), key=lambda handler: handler.api_key):
        key = int(handler.api_key)
        advertised = set(range(handler.low, handler.high + 1))
        by = {who: seen.get((who, key), set()) & advertised for who in columns}
        others = set().union(*(versions for who, versions in by.items() if who != KIO))
        only_kio = by[KIO] - others
        missing = advertised - others - by[KIO]
        if missing:
            uncovered.append(f"{handler.api_key.name} {ranges(missing)}")
        only_kio_count += len(only_kio)
        total += len(advertised)
        name = "".join(part.capitalize() for part in handler.api_key.name.split("_"))
        shown = ranges(range(handler.advertised_low, handler.high + 1))
        cells = " | ".join(ranges(by[who]) for who in columns)
        lines.append(f"| {key} | {name} | {shown} | {cells} | {ranges(only_kio)} |")
    lines += [
        "",
        _prose(
            f"{total} versions are served; {total - only_kio_count} of them were seen from a client or a recording, the"
            f" other {only_kio_count} from kio only. Covered by nobody: {', '.join(uncovered) or 'none'}."
            " Produce 0-2 are advertised because older librdkafka switches compression off where it does not see them;"
            " a request of one closes the connection, as Apache Kafka does, and a test sends each. Only from kio: what"
            " no client sends to a broker without SASL, and what none of the releases above sends."
        ),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    seen = served()
    seen.update(recorded())
    TARGET.write_text(table(seen))
    print(f"written: {TARGET}")


if __name__ == "__main__":
    main()
