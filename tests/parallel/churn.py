"""Members of a group that come and go while records arrive: no stall, no lost record, nothing done twice.

    python -m tests.parallel.churn 600

Everybody leaves in order (drains, commits), so a repeat would be a defect. The first half rebalances cooperatively, the
second half eagerly.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from tests.parallel.helpers import Seen, config, make_topic, stop
from tests.waiting import eventually

from headrace import Producer
from headrace.parallel import ParallelConsumer
from headrace.testing import broker

PARTITIONS = 6
MEMBERS_MAX = 3


def run_churn(address: str, topic: str, seconds: float, strategy: str, change_every_s: float = 0.7) -> int:
    """How many records went through."""
    seen = Seen()

    def handle(record: Any) -> None:
        time.sleep(0.0005)
        seen(record)

    def join() -> ParallelConsumer:
        settings = {"heartbeat.interval.ms": 100, "partition.assignment.strategy": strategy}
        made = ParallelConsumer(
            handle, topics=[topic], group=topic, config=config(address, **settings), workers=4, commit_every_s=0.2
        )
        made.start()
        return made

    members = [join()]
    sent = 0
    now = time.monotonic()
    until, change_at, checked_at, handled = now + seconds, now + 0.5, now, 0
    with Producer({"bootstrap.servers": address}) as producer:
        while time.monotonic() < until:
            for _ in range(20):
                producer.send(topic, b"%d" % sent, key=b"k%d" % (sent * sent % 37))
                sent += 1
            time.sleep(0.02)
            if time.monotonic() > change_at:
                change_at += change_every_s
                if len(members) < MEMBERS_MAX:
                    members.append(join())
                else:
                    stop(members.pop(0))
            if time.monotonic() > checked_at + 20:
                assert len(seen.order) > handled, "nothing was handled for 20 s"
                checked_at, handled = time.monotonic(), len(seen.order)
    eventually(lambda: seen.distinct() == sent, f"all {sent} records")
    for member in members:
        stop(member)
    repeats = len(seen.order) - sent
    assert repeats == 0, f"{repeats} records were handled twice"
    seen.check_key_order()
    return sent


if __name__ == "__main__":
    wanted = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    with broker() as kafka:
        for kind in ("cooperative-sticky", "range"):
            make_topic(kafka.address, kind, PARTITIONS)
            records = run_churn(kafka.address, kind, wanted / 2, kind, change_every_s=2.0)
            print(
                f"{kind}: {records} records in {wanted / 2:.0f} s, a change every 2 s, none lost, none twice",
                flush=True,
            )
