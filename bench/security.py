"""What security costs, and what it keeps from others.

    python -m bench.security                  everything
    python -m bench.security verdicts floods  only these

tls: what is written and read over TLS, handshakes and logins, next to Apache Kafka on the same work.
verdicts: what it takes to find out whether a request is allowed, with 10,000 rules: asked before, and never asked.
floods: an innocent client alone, beside one that floods, and beside one that floods and has quotas. The figures are how
many requests the innocent gets answered in a second, and the median and longest wait for one, as a ratio to being
alone: the best of several rounds in turn, as other work on the machine only ever makes them worse.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.broker import raw
from tests.broker.raw import RawClient

from bench.secured import tls
from headrace.broker.requests.access import Access
from headrace.client.admin import Admin, ClientQuotaEntity
from headrace.cluster.acl_authorizer import AclAuthorizer
from headrace.cluster.acls import Operation, PatternType, Permission, Resource
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.image import Image
from headrace.cluster.records import AccessControlEntryRecord
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.testing import BrokerProcess

RULES = 10_000
ASKED = 5_000
SEEN_US_MAX, UNSEEN_US_MAX = 5.0, 20.0
ROUNDS = 5
# How long each part of a flood is measured, and who floods how.
PART_S = 1.0
SETTLE_S = 2.0
QUOTAS: dict[str, float | None] = {"producer_byte_rate": 1e6, "request_percentage": 5.0}
NO_QUOTAS: dict[str, float | None] = dict.fromkeys(QUOTAS)
FLOOD_CONNECTIONS = 8
FLOOD_PIPELINED = 64
FLOODER, INNOCENT = "flooder", "innocent"
SLOWED_MAX = 0.10


# --- verdicts ---------------------------------------------------------------------------------------------------------


def authorizer_with_rules(count: int) -> tuple[AclAuthorizer, list[str]]:
    """As of a large company: many users and topics; literal and prefixed rules, some for one address, denials."""
    rng = random.Random(1)
    image = Image()
    topics = [f"{team}.{kind}.{number}" for team in range(100) for kind in ("orders", "events") for number in range(10)]
    for number in range(count):
        prefix = rng.random() < 0.2
        name = rng.choice(topics)
        image.acls[number.to_bytes(16, "big")] = AccessControlEntryRecord(
            id=number.to_bytes(16, "big"),
            resource_type=Resource.TOPIC,
            resource_name=name.rsplit(".", rng.randint(1, 2))[0] if prefix else name,
            pattern_type=PatternType.PREFIXED if prefix else PatternType.LITERAL,
            principal=f"User:{rng.randrange(500)}" if rng.random() < 0.98 else "User:*",
            host="*" if rng.random() < 0.9 else f"10.0.0.{rng.randrange(250)}",
            operation=rng.choice((Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL)),
            permission_type=Permission.ALLOW if rng.random() < 0.95 else Permission.DENY,
        )
    image.acls_version = 1
    return AclAuthorizer(image, BrokerConfig.parse({"log.dirs": "/nowhere"})), topics


def verdicts() -> bool:
    authorizer, topics = authorizer_with_rules(RULES)
    authorizer.verdict("User:1", "10.0.0.1", Operation.READ, Resource.TOPIC, topics[0])  # reads the rules
    seen, unseen = [], []
    for number in range(ROUNDS):
        access = Access()
        access.authorizer = authorizer
        rng = random.Random(number)
        wanted = [
            (access.rights(f"User:{rng.randrange(500)}", f"10.0.0.{rng.randrange(250)}"), rng.choice(topics))
            for _ in range(ASKED)
        ]
        for times in (unseen, seen):
            began = time.perf_counter()
            for rights, topic in wanted:
                rights.may(Operation.WRITE, Resource.TOPIC, topic)
            times.append((time.perf_counter() - began) / ASKED * 1e6)
    print(f"{RULES:,} rules, {ASKED:,} questions, best of {ROUNDS}")
    print(f"  asked before   {min(seen):6.2f} µs   (bound {SEEN_US_MAX:g})")
    print(f"  never asked    {min(unseen):6.2f} µs   (bound {UNSEEN_US_MAX:g})")
    return min(seen) <= SEEN_US_MAX and min(unseen) <= UNSEEN_US_MAX


# --- floods -----------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """What the innocent had of the broker for a while."""

    per_s: float
    median_ms: float
    longest_ms: float


def flood(port: int) -> None:
    """Requests in bursts on several connections, until the process is ended."""
    request = raw.frame(raw.produce_request(FLOODER, 0, raw.batch([bytes(1000)])), raw.PRODUCE_VERSION, 1, FLOODER)

    def one() -> None:
        with RawClient(port, timeout_s=600) as client:
            while True:
                client.socket.sendall(request * FLOOD_PIPELINED)
                for _ in range(FLOOD_PIPELINED):
                    client.read_frame()

    threads = [threading.Thread(target=one, daemon=True) for _ in range(FLOOD_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measured(port: int) -> Part:
    """A client at work: it writes a record, reads it, and now and then asks where its topic is."""
    produce = raw.produce_request(INNOCENT, 0, raw.batch([bytes(100)]))
    metadata = MetadataRequest(topics=[MetadataRequestTopic(name=INNOCENT)], allow_auto_topic_creation=False)
    waits: list[float] = []
    with RawClient(port) as client:
        client.request(produce, raw.PRODUCE_VERSION)
        began = time.monotonic()
        while time.monotonic() - began < PART_S:
            for message, version in ((produce, raw.PRODUCE_VERSION), (metadata, 9)):
                asked = time.monotonic()
                client.request(message, version)
                waits.append(time.monotonic() - asked)
            time.sleep(0.002)
    return Part(len(waits) / sum(waits), statistics.median(waits) * 1000, max(waits) * 1000)


def floods() -> bool:
    found: dict[str, list[Part]] = {"alone": [], "beside a flood": [], "beside one with quotas": []}
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, BrokerProcess(Path(directory) / "data") as broker:
        port = int(broker.address.rsplit(":", 1)[1])
        with RawClient(port) as client:
            client.request(raw.create_topics_request({FLOODER: 1, INNOCENT: 1}), raw.CREATE_TOPICS_VERSION)
        process = multiprocessing.get_context("spawn").Process(target=flood, args=(port,), daemon=True)
        process.start()
        assert process.pid is not None
        try:
            with Admin(bootstrap_servers=broker.address) as admin:
                for kind, quotas in (("beside a flood", NO_QUOTAS), ("beside one with quotas", QUOTAS)):
                    entity = ClientQuotaEntity.of({"client-id": FLOODER})
                    admin.alter_client_quotas({entity: quotas}).all()
                    time.sleep(SETTLE_S)
                    for _ in range(ROUNDS):
                        # One after the other, as whatever else the machine does changes.
                        os.kill(process.pid, signal.SIGSTOP)
                        time.sleep(SETTLE_S / 10)
                        found["alone"].append(measured(port))
                        os.kill(process.pid, signal.SIGCONT)
                        time.sleep(SETTLE_S / 10)
                        found[kind].append(measured(port))
        finally:
            process.kill()
            process.join()
    best = {name: min(parts, key=lambda part: part.median_ms) for name, parts in found.items()}
    alone = best["alone"].median_ms
    for name, part in best.items():
        print(
            f"  {name:24} {part.per_s:8,.0f} requests/s, median {part.median_ms:6.3f} ms "
            f"({part.median_ms / alone:5.2f} ×), longest {part.longest_ms:7.2f} ms"
        )
    return best["beside one with quotas"].median_ms <= alone * (1 + SLOWED_MAX)


PARTS: dict[str, Callable[[], bool]] = {"verdicts": verdicts, "floods": floods, "tls": tls}


def main() -> int:
    wanted = sys.argv[1:] or list(PARTS)
    unknown = set(wanted) - PARTS.keys()
    if unknown:
        print(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
        return 2
    kept = True
    for name in wanted:
        print(f"{name}:")
        kept = PARTS[name]() and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
