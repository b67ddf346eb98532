"""A member of a group in a process of its own, that can be killed: ADDRESS GROUP TOPIC CLIENT SESSION_MS."""

from __future__ import annotations

import sys

from headrace import Consumer

if __name__ == "__main__":
    address, group, topic, client, session_ms = sys.argv[1:]
    settings = {
        "bootstrap.servers": address,
        "group.id": group,
        "client.id": client,
        "session.timeout.ms": int(session_ms),
        "heartbeat.interval.ms": 300,
        "auto.commit.interval.ms": 200,
        "auto.offset.reset": "earliest",
    }
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])
        while True:
            consumer.poll(timeout=0.2)
            if consumer.assignment():
                print("member", flush=True)
