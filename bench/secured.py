"""Bytes over TLS, handshakes and logins, next to Apache Kafka on the same work: a part of `bench.security`.

confluent-kafka writes and reads over TLS 1.3 at both; handshakes and SCRAM logins are made by two processes at once,
which derive the key of the password once, as good clients do. Both brokers take turns in every round.
The processor time that a broker took for a gigabyte (less is better) says more than its rate where others use the
machine, too.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import multiprocessing
import os
import socket
import ssl
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench import peers
from bench.broker import PARTITIONS, Watch, make_topic
from headrace.certificates import Authority
from headrace.client.admin import Admin, ScramMechanism, UserScramCredentialUpsertion
from headrace.runtime.free_ports import free_ports
from headrace.testing import BrokerProcess

ROUNDS = 3
SECONDS = 3.0
SIZES = (1_000, 10_000)
CLIENTS = 2
USER, PASSWORD = "alice", "alice-secret"
MECHANISM = "SCRAM-SHA-256"
AHEAD_MIN = 1.0


class Addresses(NamedTuple):
    plain: str
    tls: str
    login: str
    authority: str


def settings(directory: Path, authority: Authority, plain: int) -> tuple[dict[str, str], Addresses]:
    tls, login = free_ports(2)
    trusted = directory / "authority.pem"
    trusted.write_text(authority.certificate)
    listeners = f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls},SASL_PLAINTEXT://127.0.0.1:{login}"
    given = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "inter.broker.listener.name": "PLAINTEXT",
        "num.partitions": str(PARTITIONS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker").save(directory / "broker.pem")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
        "sasl.enabled.mechanisms": MECHANISM,
        f"listener.name.sasl_plaintext.{MECHANISM.lower()}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    return given, Addresses(*(f"127.0.0.1:{port}" for port in (plain, tls, login)), str(trusted))


@contextlib.contextmanager
def started(kind: str, directory: Path) -> Iterator[tuple[Addresses, int]]:
    directory.mkdir(exist_ok=True)
    authority = Authority()
    broker: Any
    if kind == "Kafka":
        broker = peers.ApacheKafka(directory / "kafka")
        given, addresses = settings(directory, authority, broker.port)
        (controller,) = free_ports(1)
        given["listeners"] += f",CONTROLLER://127.0.0.1:{controller}"
        given["controller.quorum.voters"] = f"1@127.0.0.1:{controller}"
        given["listener.security.protocol.map"] = (
            ",".join(f"{name}:{name}" for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT")) + ",CONTROLLER:PLAINTEXT"
        )
        broker.extra = given
        broker.prepare()
    else:
        broker = BrokerProcess(directory / "data")
        given, addresses = settings(directory, authority, broker.port)
        broker.overrides = given
    broker.start()
    try:
        with Admin(bootstrap_servers=addresses.plain, default_api_timeout_ms=60_000) as admin:
            change = UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_256, PASSWORD)
            admin.alter_user_scram_credentials([change]).all()
        yield addresses, broker.pid
    finally:
        broker.stop()


# --- bytes ------------------------------------------------------------------------------------------------------------


def _client(addresses: Addresses) -> dict[str, Any]:
    return {
        "bootstrap.servers": addresses.tls,
        "security.protocol": "SSL",
        "ssl.ca.location": addresses.authority,
        "enable.metrics.push": False,
    }


def produce(addresses: Addresses, size: int, out: Any) -> None:
    from confluent_kafka import Producer

    more = {"linger.ms": 5, "queue.buffering.max.kbytes": 262_144, "batch.size": 1_000_000, "acks": "all"}
    producer = Producer({**_client(addresses), **more})
    value, topic = os.urandom(size), f"bench-{size}"
    producer.list_topics(topic, timeout=30)
    sent, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + SECONDS:
        for _ in range(1000):
            try:
                producer.produce(topic, value)
            except BufferError:
                producer.poll(0.01)
                continue
            sent += 1
        producer.poll(0)
    sent -= producer.flush(60)
    out.put((sent, time.perf_counter() - begun))


def fetch(addresses: Addresses, size: int, records: int, out: Any) -> None:
    from confluent_kafka import Consumer, TopicPartition

    more = {
        "group.id": f"bench-{time.time_ns()}",
        "enable.auto.commit": False,
        "fetch.message.max.bytes": 4_000_000,
        "queued.max.messages.kbytes": 262_144,
        "queued.min.messages": 5_000_000,
        "fetch.queue.backoff.ms": 10,
        "check.crcs": False,
    }
    consumer = Consumer({**_client(addresses), **more})
    consumer.assign([TopicPartition(f"bench-{size}", partition, 0) for partition in range(PARTITIONS)])
    got, begun = len(consumer.consume(1, timeout=30)), time.perf_counter()
    while got < records:
        batch = consumer.consume(10_000, timeout=5)
        if not batch:
            break
        got += len(batch)
    out.put((got, time.perf_counter() - begun))
    consumer.close()


# --- handshakes and logins --------------------------------------------------------------------------------------------


def handshakes(addresses: Addresses, out: Any) -> None:
    host, _, port = addresses.tls.rpartition(":")
    count, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + SECONDS:
        # A context each: nothing of an earlier connection is taken up.
        context = ssl.create_default_context(cafile=addresses.authority)
        with (
            socket.create_connection((host, int(port))) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            _ask(tls, 18, 0, b"")
        count += 1
    out.put((count, time.perf_counter() - begun))


def logins(addresses: Addresses, out: Any) -> None:
    host, _, port = addresses.login.rpartition(":")
    salted: dict[tuple[bytes, int], bytes] = {}
    count, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + SECONDS:
        with socket.create_connection((host, int(port))) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _log_in(sock, salted)
        count += 1
    out.put((count, time.perf_counter() - begun))


def _log_in(sock: socket.socket, salted: dict[tuple[bytes, int], bytes]) -> None:
    name = MECHANISM.encode()
    _ask(sock, 17, 1, struct.pack(">h", len(name)) + name)
    nonce = base64.b64encode(os.urandom(18)).decode()
    bare = f"n={USER},r={nonce}"
    server = _token(_ask(sock, 36, 1, _sized(f"n,,{bare}".encode()))).decode()
    said = dict(part.split("=", 1) for part in server.split(","))
    key = base64.b64decode(said["s"]), int(said["i"])
    if key not in salted:
        salted[key] = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), *key)
    client = hmac.digest(salted[key], b"Client Key", "sha256")
    last = f"c=biws,r={said['r']}"
    stored = hashlib.sha256(client).digest()
    signature = hmac.digest(stored, f"{bare},{server},{last}".encode(), "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client, signature))).decode()
    assert _token(_ask(sock, 36, 1, _sized(f"{last},p={proof}".encode()))).startswith(b"v=")


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _token(answer: bytes) -> bytes:
    (error,) = struct.unpack_from(">h", answer)
    assert error == 0, answer
    (message,) = struct.unpack_from(">h", answer, 2)
    at = 4 + max(message, 0)
    (length,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + length]


def _ask(sock: socket.socket, api_key: int, version: int, body: bytes) -> bytes:
    sock.sendall(_sized(struct.pack(">hhih", api_key, version, 1, 1) + b"b" + body))
    (length,) = struct.unpack(">i", _read(sock, 4))
    return _read(sock, length)[4:]


def _read(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = sock.recv(length - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data


# --- all of it --------------------------------------------------------------------------------------------------------


def in_processes(count: int, target: Callable[..., None], *arguments: Any) -> tuple[float, float]:
    """How much they did together, in how many seconds."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    processes = [context.Process(target=target, args=(*arguments, out)) for _ in range(count)]
    for process in processes:
        process.start()
    found = [out.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    return sum(done for done, _ in found), max(seconds for _, seconds in found)


def tls() -> bool:
    kinds = ["Headrace", "Kafka"]
    if peers.kafka_libs() is None:
        print(f"  Apache Kafka is not measured: {peers.why_no_kafka()}")
        kinds.remove("Kafka")
    rates: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    with contextlib.ExitStack() as stack:
        there: dict[str, Addresses] = {}
        pids: dict[str, int] = {}
        for kind in kinds:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"bench-{kind}-")))
            there[kind], pids[kind] = stack.enter_context(started(kind, directory))
            for size in SIZES:
                make_topic(there[kind].plain, f"bench-{size}")

        def note(kind: str, name: str, done: float, seconds: float, unit: float = 1.0) -> None:
            rates[kind].setdefault(name, []).append(done * unit / seconds)

        written = {kind: dict.fromkeys(SIZES, 0) for kind in kinds}
        for turn in range(ROUNDS + 1):  # the first is for Java to warm up
            for kind in kinds:
                address = there[kind]
                for size in SIZES:
                    watch = Watch(pids[kind])
                    done, seconds = in_processes(1, produce, address, size)
                    write_s = watch.cpu_seconds()
                    written[kind][size] += int(done)
                    read, read_s = in_processes(1, fetch, address, size, written[kind][size])
                    if turn:
                        note(kind, f"produce {size} B MB/s", done, seconds, size / 1e6)
                        note(kind, f"produce {size} B CPU s/GB", write_s, done * size / 1e9)
                        note(kind, f"fetch {size} B MB/s", read, read_s, size / 1e6)
                        note(kind, f"fetch {size} B CPU s/GB", watch.cpu_seconds() - write_s, read * size / 1e9)
                for name, target in (("TLS connections/s", handshakes), ("SCRAM logins/s", logins)):
                    done, seconds = in_processes(CLIENTS, target, address)
                    if turn:
                        note(kind, name, done, seconds)
    kept = True
    for name, ours in rates["Headrace"].items():
        value = statistics.median(ours)
        line = f"  {name:26}{value:10,.1f}"
        if "Kafka" in rates:
            theirs = statistics.median(rates["Kafka"][name])
            line += f"   Kafka {theirs:10,.1f}   {value / theirs:5.2f} ×"
            kept = kept and (value >= AHEAD_MIN * theirs or "MB/s" not in name)
        print(line, flush=True)
    return kept
