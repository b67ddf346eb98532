"""Kill -9, again and again: nothing is lost, and only what was unfinished is done twice.

    python -m tests.parallel.kills 200

A process consumes and writes a line for every record it handled. It is killed at random moments, and started again.
After each kill the group's commit says what may be repeated: what had been handled, but is not covered by it.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.parallel.handlers import lines
from tests.parallel.helpers import check_key_order, commits, fill, make_topic
from tests.waiting import eventually

from headrace.parallel.finished import decode_finished
from headrace.testing import broker

PARTITIONS = 4
PER_KILL = 300

VICTIM = """
import sys
from headrace.parallel import *
from tests.parallel.handlers import Writer
address, topic, path, model = sys.argv[1:]
models = {"pool": Pool(), "window": Window(slot=10, slots=20), "consumers": Consumers()}
# A static member comes back at once under its name: nobody waits for the session of the killed one to end.
ParallelConsumer(Writer(path, wait_s=0.002), topics=[topic], group=topic, model=models[model],
    workers=1 if model == "consumers" else 4, commit_every_s=0.05, order="key",
    config={"bootstrap.servers": address, "auto.offset.reset": "earliest", "group.instance.id": "victim"}).run()
"""


@contextlib.contextmanager
def victim(address: str, topic: str, path: str, model: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", VICTIM, address, topic, path, model])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run_kills(address: str, path: str, kills: int, seed: int, model: str) -> int:
    """Returns how many records were handled more than once."""
    rng = random.Random(seed)
    topic = f"kills-{model}-{uuid.uuid4().hex[:8]}"
    count = kills * PER_KILL
    make_topic(address, topic, PARTITIONS)
    fill(address, topic, count, seed)
    allowed: Counter[tuple[int, int]] = Counter()
    for _ in range(kills):
        before = len(lines(path))
        target = min(before + rng.randint(1, PER_KILL), count)
        with victim(address, topic, path, model):
            eventually(lambda goal=target: len(lines(path)) >= goal, f"{target} records")
            time.sleep(rng.random() * 0.05)
        for place in _uncovered(address, topic, path):
            allowed[place] += 1
    with victim(address, topic, path, model):
        eventually(lambda: len({(p, o) for p, o, *_ in lines(path)}) >= count, "all records", 120)
    handled = [(partition, offset, key) for partition, offset, key, _ in lines(path)]
    check_key_order(handled)
    times = Counter((partition, offset) for partition, offset, _ in handled)
    assert len(times) == count
    needless = {place: n for place, n in times.items() if n > 1 + allowed[place]}
    assert not needless, f"handled again without need: {needless}"
    return sum(n - 1 for n in times.values())


def _uncovered(address: str, topic: str, path: str) -> set[tuple[int, int]]:
    """What was handled, and is neither before a committed offset nor in its note; and what was under way."""
    found = commits(address, topic, topic, PARTITIONS)
    finished = {partition: decode_finished(*commit) or [] for partition, commit in found.items()}
    return {
        (partition, offset)
        for partition, offset, *_ in lines(path)
        if offset >= found.get(partition, (0, ""))[0]
        and not any(first <= offset < last for first, last in finished.get(partition, []))
    }


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with broker() as kafka, tempfile.TemporaryDirectory() as directory:
        for name in ("pool", "window", "consumers"):
            share = max(1, wanted // 3 + (wanted % 3 if name == "pool" else 0))
            began = time.monotonic()
            repeated = run_kills(kafka.address, str(Path(directory) / name), share, wanted, name)
            seconds = time.monotonic() - began
            print(f"{name}: {share} kills, {share * PER_KILL} records, {repeated} repeats, {seconds:.0f} s", flush=True)
