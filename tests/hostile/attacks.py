"""What a hostile peer does: each attack goes on until it is told to stop, and says how often it was done."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.broker import raw
from tests.broker.raw import RawClient
from tests.waiting import eventually

from headrace.broker.requests.element_bound import ELEMENTS_ALWAYS
from headrace.protocol import codec
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.protocol.wire import uvarint
from headrace.records import Codec

from .batches import MIB, SMALLEST_RECORD, many_small, of_all_sizes, poisoned

TOPIC = "hostile"
_ESTABLISHED = 1
YEAR_MS = 365 * 86_400_000
GONE = (ConnectionError, TimeoutError, OSError)
Going = Callable[[], bool]
Attack = Callable[[int, Going], int]


def now_ms() -> int:
    return int(time.time() * 1000)


def asked(port: int, going: Going, message: Any, version: int) -> int:
    """Send it again and again, on one connection as long as that lasts."""
    times = 0
    while going():
        with contextlib.suppress(*GONE), RawClient(port, timeout_s=20) as client:
            client.request(ApiVersionsRequest(), 0)
            while going():
                times += 1
                client.request(message, version)
    return times


def produced(port: int, going: Going, records: bytes | bytearray) -> int:
    return asked(port, going, raw.produce_request(TOPIC, 0, bytes(records)), raw.PRODUCE_VERSION)


def nothing(port: int, going: Going) -> int:
    """What the innocent waits for without an attack, on this machine."""
    while going():
        time.sleep(0.01)
    return 0


def millions_of_records(port: int, going: Going) -> int:
    """3 KB of zstd that become 4.7 million records, all with timestamps of next year."""
    return produced(port, going, many_small(4_700_000, Codec.ZSTD, timestamp_ms=now_ms() + YEAR_MS))


def a_million_records(port: int, going: Going) -> int:
    """As many as are taken, all with timestamps of next year."""
    return produced(port, going, many_small(1_000_000, Codec.ZSTD, timestamp_ms=now_ms() + YEAR_MS))


def records_of_all_sizes(port: int, going: Going) -> int:
    """A million records, each of another size than the one before, so that each has to be looked at."""
    return produced(port, going, of_all_sizes(1_000_000, Codec.ZSTD, timestamp_ms=now_ms()))


def noise(port: int, going: Going) -> int:
    """Bytes that are no records, with a checksum that is right."""
    return produced(port, going, poisoned(bytes(range(256)) * 3000, 5000, Codec.GZIP, timestamp_ms=now_ms()))


def gzip_members(port: int, going: Going) -> int:
    """45,000 empty members of a gzip stream before the records."""
    payload = zlib.compress(b"", wbits=31) * 45_000 + zlib.compress(SMALLEST_RECORD, wbits=31)
    return produced(port, going, poisoned(payload, 1, Codec.GZIP, timestamp_ms=now_ms()))


def looked_up(port: int, going: Going) -> int:
    """A look-up by time for the last record of a batch of a million."""
    batch = many_small(1_000_000, Codec.ZSTD, timestamp_ms=now_ms())
    with RawClient(port) as client:
        client.request(raw.produce_request(TOPIC, 1, bytes(batch)), raw.PRODUCE_VERSION)
    part = ListOffsetsPartition(partition_index=1, timestamp=-3)
    return asked(port, going, ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[part])]), 7)


def small_topics(port: int, going: Going) -> int:
    """10 MB of topics of three bytes in one Metadata request."""
    count = 3_300_000
    body = struct.pack(">hhih", ApiKey.METADATA, 9, 7, 3) + b"raw\0"
    body += uvarint(count + 1) + b"\x02a\0" * count + b"\0\0\0\0"
    times = 0
    while going():
        with contextlib.suppress(*GONE), RawClient(port, timeout_s=20) as client:
            client.request(ApiVersionsRequest(), 0)
            times += 1
            client.socket.sendall(struct.pack(">i", len(body)) + body)
            client.read_frame()
    return times


def the_same_again(port: int, going: Going) -> int:
    """The configuration of one topic, asked for 500 times in 5 KB."""
    resource = DescribeConfigsResource(resource_type=2, resource_name=TOPIC, configuration_keys=None)
    return asked(port, going, DescribeConfigsRequest(resources=[resource] * 500, include_documentation=True), 4)


def just_inside(port: int, going: Going) -> int:
    """Requests of almost as many elements as are taken, each of another kind, on twenty connections at once."""
    names = [f"x{number}" for number in range(ELEMENTS_ALWAYS - 2)]
    numbers = list(range(ELEMENTS_ALWAYS - 2))
    messages: list[tuple[Any, int]] = [
        (
            MetadataRequest(
                topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
            ),
            9,
        ),
        (
            DescribeConfigsRequest(
                resources=[DescribeConfigsResource(resource_type=2, resource_name=name) for name in names]
            ),
            4,
        ),
        (
            DescribeConfigsRequest(
                resources=[DescribeConfigsResource(resource_type=32, resource_name=name) for name in names]
            ),
            4,
        ),
        (DescribeGroupsRequest(groups=names), 5),
        (DescribeProducersRequest(topics=[TopicRequest(name=TOPIC, partition_indexes=numbers)]), 0),
        (
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(
                        group_id="g", topics=[OffsetFetchRequestTopics(name=TOPIC, partition_indexes=numbers)]
                    )
                ]
            ),
            8,
        ),
        (
            ListOffsetsRequest(
                topics=[
                    ListOffsetsTopic(
                        name=TOPIC,
                        partitions=[ListOffsetsPartition(partition_index=number, timestamp=-1) for number in numbers],
                    )
                ]
            ),
            7,
        ),
        (
            WriteTxnMarkersRequest(
                markers=[WritableTxnMarker(topics=[WritableTxnMarkerTopic(name=TOPIC, partition_indexes=numbers)])]
            ),
            1,
        ),
    ]
    with ThreadPoolExecutor(20) as threads:
        sent = [threads.submit(asked, port, going, *messages[place % len(messages)]) for place in range(20)]
        return sum(one.result() for one in sent)


def cut_at_the_end(port: int, going: Going) -> int:
    """Requests of almost as many elements as are taken, and then no end, on 200 new connections at a time."""
    names = [MetadataRequestTopic(name=f"x{number}") for number in range(ELEMENTS_ALWAYS - 2)]
    cut = raw.frame(MetadataRequest(topics=names, allow_auto_topic_creation=False), 9, 1)[4:-3]
    request = struct.pack(">i", len(cut)) + cut
    times = 0
    while going():
        clients = [RawClient(port, timeout_s=20) for _ in range(200)]
        for client in clients:
            with contextlib.suppress(*GONE):
                client.socket.sendall(request)
        for client in clients:
            with contextlib.suppress(*GONE):
                client.socket.recv(1)
            client.close()
            times += 1
    return times


def small_but_costly(port: int, going: Going) -> int:
    """100 connections that send 300 small requests each at once, of those that take the longest to answer."""
    messages: list[tuple[Any, int]] = [
        (DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=4, resource_name="1")]), 4),
        (MetadataRequest(topics=None), 9),
        (DescribeLogDirsRequest(topics=None), 4),
        (ListGroupsRequest(), 4),
        (DescribeClusterRequest(), 0),
    ]
    with RawClient(port) as client:
        client.request(raw.create_topics_request({"many": 100}), raw.CREATE_TOPICS_VERSION)

    def requests(number: int) -> bytes:
        return b"".join(
            raw.frame(*messages[place % len(messages)], place)  # type: ignore[arg-type]  # a message and its version
            for place in range(number, number + 300)
        )

    return _unanswered(port, going, 100, requests, reads=True)


def _held(port: int, going: Going, count: int, sent_bytes: int, *, announced_bytes: int = 100 * MIB) -> int:
    held: list[socket.socket] = []
    times = 0
    try:
        while going():
            while len(held) < count and going():
                client = RawClient(port, timeout_s=2)
                held.append(client.socket)
                times += 1
                with contextlib.suppress(*GONE):
                    client.request(ApiVersionsRequest(), 0)
                    client.socket.sendall(struct.pack(">i", announced_bytes) + bytes(sent_bytes))
            for one in list(held):
                if _is_over(one):
                    one.close()
                    held.remove(one)
            time.sleep(0.05)
    finally:
        for one in held:
            one.close()
    return times


def _is_over(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def seven_large_frames(port: int, going: Going) -> int:
    """Seven connections that send 75 MB of a request of 100 MB, and then nothing."""
    return _held(port, going, 7, 75 * MIB)


def megabytes_without_end(port: int, going: Going) -> int:
    """300 connections that send all but the end of a request of a megabyte."""
    return _held(port, going, 300, MIB - 1024, announced_bytes=MIB)


def kept_buffers(port: int, going: Going) -> int:
    """300 connections that have sent 4 MB each, have read the answer, and stay."""
    produce = raw.produce_request(TOPIC, 0, bytes(4 * MIB - 1024))
    held: list[RawClient] = []
    times = 0
    while going():
        if len(held) < 300:
            held.append(RawClient(port))
            held[-1].request(ApiVersionsRequest(), 0)
            held[-1].request(produce, raw.PRODUCE_VERSION)
            times += 1
        else:
            for client in held:
                client.request(ApiVersionsRequest(), 0)  # they are not idle
    for client in held:
        client.close()
    return times


def behind_a_wait(port: int, going: Going) -> int:
    """500 connections with 16 KB of small requests behind a fetch that waits for ten minutes."""
    waiting = raw.frame(raw.fetch_request(TOPIC, 1, 0, max_wait_ms=600_000), raw.FETCH_VERSION, 1)
    small = raw.frame(ApiVersionsRequest(), 0, 2)
    requests = waiting + small * ((16 * 1024 - len(waiting)) // len(small))
    return _unanswered(port, going, 500, lambda number: requests)


def many_announced_frames(port: int, going: Going) -> int:
    """600 connections that announce 100 MB and send 17 KB."""
    return _held(port, going, 600, 17 * 1024)


def _unanswered(port: int, going: Going, count: int, requests: Callable[[int], bytes], *, reads: bool = False) -> int:
    """Connections that send requests and read nothing; or read, and throw away what they read."""
    held: list[RawClient] = []
    times = 0
    while going():
        if len(held) < count:
            with contextlib.suppress(*GONE):
                client = RawClient(port, timeout_s=0.2, receive_buffer_bytes=None if reads else 4096)
                held.append(client)
                times += 1
                client.socket.sendall(requests(times))
        for client in list(held):
            if reads:
                with contextlib.suppress(*GONE):
                    client.socket.setblocking(False)
                    client.socket.recv(1 << 20)
            if len(held) == count and _is_lost(client.socket):
                client.close()
                held.remove(client)
        time.sleep(0.001)
    for client in held:
        client.close()
    return times


def _is_lost(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED)


def unread_answers(port: int, going: Going) -> int:
    """300 connections that ask for seven megabytes of answers ten times and read none."""
    names = [f"x{number}" for number in range(ELEMENTS_ALWAYS - 2)]
    resources = [DescribeConfigsResource(resource_type=32, resource_name=name) for name in names]
    request = raw.frame(DescribeConfigsRequest(resources=resources, include_documentation=True), 4, 1)
    return _unanswered(port, going, 300, lambda number: request * 10)


def unread_records(port: int, going: Going) -> int:
    """300 connections that ask for 30 megabytes of records each and read none."""
    with RawClient(port) as client:
        for _ in range(30):
            batch = raw.batch([bytes(MIB - 1024)], timestamp_ms=now_ms())
            client.request(raw.produce_request(TOPIC, 0, batch), raw.PRODUCE_VERSION)
    wanted = raw.fetch_request(TOPIC, 0, 0, max_bytes=50 * MIB)
    request = raw.frame(wanted, raw.FETCH_VERSION, 1)
    return _unanswered(port, going, 300, lambda number: request)


def ids_of_members(port: int, going: Going) -> int:
    """Ids of members, of 32 KB each, that nobody joins with."""
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    request = JoinGroupRequest(
        group_id="hostile",
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    asked_for = b"".join(codec.encode_request(request, 4, 1, "x" * 32_000))
    times = 0
    with RawClient(port, timeout_s=20) as client:
        client.request(FindCoordinatorRequest(key="hostile"), 0)
        while going():
            client.socket.sendall(asked_for * 10)
            for _ in range(10):
                client.read_frame()
                times += 1
    return times


def large_joins(port: int, going: Going) -> int:
    """Members of 300 groups that tell a megabyte of themselves."""
    told = bytes(1000 * 1000)

    def joining(number: int) -> bytes:
        protocol = JoinGroupRequestProtocol(name="range", metadata=told)
        request = JoinGroupRequest(
            group_id=f"hostile-{number}",
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[protocol],
        )
        return raw.frame(request, 2, 1)

    with RawClient(port) as client:
        client.request(FindCoordinatorRequest(key="hostile"), 0)
    return _unanswered(port, going, 300, joining)


ATTACKS: tuple[Attack, ...] = (
    nothing,
    millions_of_records,
    a_million_records,
    records_of_all_sizes,
    noise,
    gzip_members,
    looked_up,
    small_topics,
    the_same_again,
    just_inside,
    cut_at_the_end,
    small_but_costly,
    seven_large_frames,
    megabytes_without_end,
    many_announced_frames,
    kept_buffers,
    behind_a_wait,
    unread_answers,
    unread_records,
    large_joins,
    ids_of_members,
)


@contextlib.contextmanager
def prepared(port: int) -> Iterator[None]:
    """With the topics that attacks and the innocent use."""
    with RawClient(port) as client:

        def are_there() -> bool:
            answer = client.request(
                raw.create_topics_request({TOPIC: 2, "innocent": 1}, message_timestamp_after_max_ms="3600000"),
                raw.CREATE_TOPICS_VERSION,
            )
            return all(topic.error_code in (0, 36) for topic in answer.topics)

        eventually(are_there, "the topics")
    yield
