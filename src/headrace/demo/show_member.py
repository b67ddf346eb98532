"""A member of the show's consumer group, a process of its own so that it can be killed.

python -m headrace.demo.show_member SERVERS GROUP TOPIC NAME SESSION_TIMEOUT_MS
"""

from __future__ import annotations

import sys

from headrace.client.consumer.blocking import Consumer

_POLL_ROWS = 20_000


def main() -> None:
    servers, group, topic, name, timeout_ms = sys.argv[1:]
    config = {
        "bootstrap.servers": servers,
        "group.id": group,
        "client.id": name,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": timeout_ms,
        "heartbeat.interval.ms": str(int(timeout_ms) // 3),
    }
    with Consumer(config) as consumer:
        consumer.subscribe([topic])
        # Until it is killed.
        while True:
            if consumer.poll_columns(0.1, _POLL_ROWS):
                consumer.commit_sync()


if __name__ == "__main__":
    main()
