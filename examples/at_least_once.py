"""At least once: process first, commit after. A crash repeats records that were processed and not yet committed.

    python examples/at_least_once.py localhost:9092 orders billing

For work that may be done twice: writing by key, or into something that drops what it has seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from headrace import Consumer, ConsumerRecord


def run(address: str, topic: str, group: str, process: Callable[[ConsumerRecord], None], idle_s: float = 5.0) -> int:
    """Process what there is, until nothing comes for a while. How many records were processed."""
    done = 0
    config = {
        "bootstrap.servers": address,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    with Consumer(config) as consumer:
        consumer.subscribe([topic])
        while records := consumer.poll(idle_s):
            for record in records:
                process(record)
                done += 1
            # Only now: what is committed has been processed.
            consumer.commit_sync()
    return done


if __name__ == "__main__":
    print(run(*sys.argv[1:4], process=print))
