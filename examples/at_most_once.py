"""At most once: commit first, process after. A crash loses records that were committed and not yet processed.

    python examples/at_most_once.py localhost:9092 orders billing

For work where a second time is worse than never: sending a message to a person, counting roughly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

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
        for records in batches(consumer, idle_s):
            # From here on these records are read, whatever happens to them.
            consumer.commit_sync()
            for record in records:
                process(record)
                done += 1
    return done


def batches(consumer: Consumer, idle_s: float) -> Iterator[list[ConsumerRecord]]:
    """What polls bring, until one brings nothing. The first may have to wait for the group."""
    while records := consumer.poll(idle_s):
        yield list(records)


if __name__ == "__main__":
    print(run(*sys.argv[1:4], process=print))
