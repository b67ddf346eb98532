"""Whoever reads a range of offsets reads it from the replica that the leader names, and from the leader when that one
is of no use; nobody asks a broker again and again without a pause, whatever it answers."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.client.consumer.fake_driver import FakeClient, blocking_consumer, range_clients
from tests.client.consumer.fake_group import FakeGroupCluster
from tests.client.fake import CUT, SILENCE, VirtualClock

import headrace
from headrace.cli.reading import PrintedRange as CliRange
from headrace.cli.reading import read_ranges
from headrace.client.configs import COMMON_KEYS, ConnectionConfig, read_config
from headrace.client.ranges import RangeReader, refuse_loss
from headrace.config import ConfigDefinition
from headrace.errors import ErrorCode, RequestTimedOutError
from headrace.parallel import deadletters
from headrace.parallel.ranges import _Reader
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.topics import TopicPartition

T0 = TopicPartition("t", 0)
RACK = {"bootstrap.servers": "fake:9001,fake:9002", "client.rack": "b"}
END = 30


# --- everyone who reads ranges ----------------------------------------------------------------------------------------


def by_client(cluster: FakeGroupCluster, timeout: float) -> list[int]:
    with range_clients(cluster), RangeReader(RACK, clock=cluster.clock) as reader:
        return [record.offset for record in reader.read_records({T0: (0, END)}, timeout=timeout)]


def by_batches(cluster: FakeGroupCluster, timeout: float) -> list[int]:
    with range_clients(cluster), RangeReader(RACK, clock=cluster.clock) as reader:
        found = list(reader.read_batches({T0: (0, END)}, timeout=timeout))
        return [offset for _, header in found for offset in range(header.base_offset, header.next_offset)]


def by_cli(cluster: FakeGroupCluster, timeout: float) -> list[int]:
    with range_clients(cluster), RangeReader(RACK, clock=cluster.clock) as reader:
        pieces = list(read_ranges(reader, {T0: CliRange(0, END)}, timeout))
        return [offset for _, columns in pieces for offset in columns.offsets.tolist()]


def by_spark(cluster: FakeGroupCluster, timeout: float) -> list[int]:
    pytest.importorskip("pyarrow")
    from headrace.spark.planning import OffsetRange
    from headrace.spark.reading import RangeFetcher, ReadPlan

    config = read_config(ConfigDefinition(COMMON_KEYS), {"bootstrap.servers": RACK["bootstrap.servers"]})
    client: Any = FakeClient(cluster, ConnectionConfig.of(config))
    plan = ReadPlan.of(RACK, read_committed=False, timeout_ms=int(timeout * 1000))
    pieces = list(RangeFetcher(client, plan, OffsetRange(T0, 0, END)).pieces())
    return [offset for piece in pieces for offset in piece.columns.offsets.tolist()]


def by_parallel(cluster: FakeGroupCluster, timeout: float) -> list[int]:
    """As model 2's readers do: one short range after the other, the next one asked for before the last is handled."""
    with range_clients(cluster):
        own = RangeReader({**RACK, "fetch.max.wait.ms": 1}, clock=cluster.clock)
        reader = _Reader(own, refuse_loss)
        found: list[int] = []
        bounds = [*range(0, END, 10), END]
        deadline = cluster.clock.now + timeout
        for start, end in pairwise(bounds):
            reader.turn_to(T0, start, end)
            while reader.position < end:
                found += [record.offset for record in reader.poll(end - reader.position)]
                if cluster.clock.now > deadline:
                    raise RequestTimedOutError("nothing came")
            if end < END:
                reader.turn_ahead_to(T0, end, END)
        reader.close()
        return found


def by_dead_letters(cluster: FakeGroupCluster, timeout: float) -> list[int]:
    with (
        blocking_consumer(cluster, group_id="t.redriven", **{k.replace(".", "_"): v for k, v in RACK.items()}) as made,
        range_clients(cluster),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(deadletters, "Consumer", lambda config: made)
        patch.setattr(deadletters, "RangeReader", lambda config: RangeReader(config, clock=cluster.clock))
        patch.setattr(deadletters, "_QUIET_S", timeout)
        with deadletters.DeadLetters(RACK, "t") as letters:
            return [letter.record.offset for letter in letters.letters()]


USERS = [by_client, by_batches, by_cli, by_spark, by_parallel, by_dead_letters]
every_user = pytest.mark.parametrize("user", USERS, ids=lambda user: user.__name__)

User = Callable[[FakeGroupCluster, float], list[int]]


class Brokers:
    """Broker 1 leads, and sends whoever names a rack on to `named`; broker 2 answers `replica` (None: with the log)."""

    def __init__(self, replica: Any = None, named: int = 2) -> None:
        self.cluster = FakeGroupCluster(VirtualClock(), 2, {"t": 1})
        self.cluster.leaders[T0] = (1, 0)
        for _ in range(3):
            self.cluster.write("t", 0, 10)
        self.cluster.script = self._script
        self.asked: list[tuple[int, str]] = []
        self.times: list[float] = []
        self._replica, self._named = replica, named
        self.is_stubborn = False
        """Whether the leader names the other also to those who say no rack."""

    @property
    def nodes(self) -> list[int]:
        return [node for node, _ in self.asked]

    def _script(self, node: int, name: str, request: Any) -> Any:
        if name != "Fetch" or (request.session_epoch == -1 and not request.topics):
            return None
        self.asked.append((node, request.rack_id))
        self.times.append(self.cluster.clock.now)
        if node == 1:
            if not (request.rack_id or self.is_stubborn):
                return None
            return self._answer(
                PartitionData(partition_index=0, high_watermark=END, preferred_read_replica=self._named)
            )
        if self._replica in (CUT, SILENCE):
            return self._replica
        if self._replica is not None:
            return self._answer(self._replica)
        before = self.cluster.leaders[T0]
        self.cluster.leaders[T0] = (2, 0)
        try:
            return self.cluster._do_Fetch(2, request, 13)
        finally:
            self.cluster.leaders[T0] = before

    def _answer(self, data: PartitionData) -> FetchResponse:
        topic = FetchableTopicResponse(topic="t", topic_id=self.cluster.topic_ids["t"], partitions=[data])
        return FetchResponse(session_id=0, responses=[topic])


@every_user
def test_a_range_is_read_from_the_replica_that_the_leader_names(user: User) -> None:
    brokers = Brokers()
    assert user(brokers.cluster, 20.0) == list(range(END))
    assert brokers.nodes[:2] == [1, 2]
    assert set(brokers.nodes[1:]) == {2}
    assert len(brokers.nodes) < 10


REFUSALS = {
    code.name: PartitionData(partition_index=0, error_code=code)
    for code in (
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    )
}
TROUBLES = {**REFUSALS, "nothing": PartitionData(partition_index=0, high_watermark=0), "cut": CUT, "silence": SILENCE}


@every_user
@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_a_replica_that_is_of_no_use_leads_back_to_the_leader(user: User, trouble: Any) -> None:
    brokers = Brokers(trouble)
    assert user(brokers.cluster, 60.0) == list(range(END))
    assert brokers.nodes[:2] == [1, 2]
    # Asked without a rack, the leader answers itself; it is asked so for a while.
    assert set(brokers.asked[2:]) == {(1, "")}
    assert len(brokers.nodes) < 10


@every_user
def test_a_replica_that_cannot_be_reached_leads_back_to_the_leader(user: User) -> None:
    brokers = Brokers()
    brokers.cluster.down = {2}
    assert user(brokers.cluster, 60.0) == list(range(END))
    assert set(brokers.nodes) == {1}
    assert len(brokers.nodes) < 10


@every_user
@pytest.mark.parametrize("named", [99, 1], ids=["unknown", "itself"])
def test_a_leader_that_names_nobody_to_go_to_is_asked_for_itself(user: User, named: int) -> None:
    brokers = Brokers(named=named)
    assert user(brokers.cluster, 20.0) == list(range(END))
    assert brokers.asked[0] == (1, "b")
    assert set(brokers.asked[1:]) == {(1, "")}
    assert len(brokers.nodes) < 10


@pytest.mark.slow
@every_user
@pytest.mark.parametrize("named", [99, 2, 1], ids=["unknown", "a replica that has nothing", "itself"])
def test_nobody_asks_in_a_tight_loop_whatever_is_answered(user: User, named: int) -> None:
    brokers = Brokers(PartitionData(partition_index=0, high_watermark=0), named=named)
    brokers.is_stubborn = True
    with pytest.raises(RequestTimedOutError):
        user(brokers.cluster, 10.0)
    # Twice in a row without a pause: the leader names the replica, and that one is asked at once.
    assert all(later - earlier > 0.05 for earlier, later in zip(brokers.times, brokers.times[3:]))


class FickleBrokers(Brokers):
    """Both answer anything that brokers may, for a while."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        self._left = self._rng.randrange(1, 12)

    def _script(self, node: int, name: str, request: Any) -> Any:
        if name not in ("Fetch", "ListOffsets", "OffsetForLeaderEpoch"):
            return None
        if self._left <= 0 or self._rng.random() < 0.3:
            return super()._script(node, name, request)
        self._left -= 1
        kind = self._rng.choice(["cut", "refused", "nothing", "named", "elected"])
        if kind == "cut":
            return CUT
        if kind == "elected":
            leader, epoch = self.cluster.leaders[T0]
            if name == "Fetch" and leader == 1:
                # Elected again, in a new epoch: the old one is fenced.
                self.cluster.leaders[T0] = (1, epoch + 1)
            return None
        if name != "Fetch":
            return None
        if kind == "refused":
            return self._answer(self._rng.choice(list(REFUSALS.values())))
        named = self._rng.choice([1, 2, 99]) if kind == "named" else -1
        watermark = self._rng.randrange(END)
        data = PartitionData(partition_index=0, high_watermark=watermark, preferred_read_replica=named)
        self.asked.append((node, request.rack_id))
        self.times.append(self.cluster.clock.now)
        return self._answer(data)


@every_user
@pytest.mark.parametrize("seed", range(12))
def test_a_range_is_read_whole_and_once_whatever_is_answered_for_a_while(user: User, seed: int) -> None:
    brokers = FickleBrokers(seed)
    assert user(brokers.cluster, 300.0) == list(range(END))
    assert len(brokers.nodes) < 60


def test_letters_behind_those_that_retention_deletes_meanwhile_are_listed() -> None:
    brokers = Brokers()
    cluster = brokers.cluster

    def script(node: int, name: str, request: Any) -> Any:
        if name == "Fetch" and not cluster.starts:
            cluster.starts[T0] = 10
            del cluster.batches[T0][0]
        return None

    cluster.script = script
    assert by_dead_letters(cluster, 20.0) == list(range(10, END))


# --- how they are built -----------------------------------------------------------------------------------------------

SOURCE = Path(headrace.__file__).parent
READING = ("protocol.messages.fetch", "protocol.messages.list_offsets", "protocol.messages.offset_for_leader_epoch")


def modules(*rooms: str) -> list[Path]:
    return [path for room in rooms for path in sorted((SOURCE / room).rglob("*.py"))]


@cache
def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return found


@pytest.mark.slow
def test_requests_to_read_are_made_by_the_client_alone() -> None:
    """So nobody else chooses their versions: the client negotiates them."""
    found = {
        (path.name, name)
        for path in modules("spark", "parallel", "cli")
        for name in imported(path)
        if name.removeprefix("headrace.").startswith(READING)
    }
    assert not found


def test_what_is_built_on_the_client_uses_its_public_names() -> None:
    """Spark, parallel consuming and the command line: no module of the client whose name begins with an underscore."""
    found = {
        (path.name, name)
        for path in modules("spark", "parallel", "cli")
        for name in imported(path)
        if name.startswith("headrace.client.") and any(part.startswith("_") for part in name.split("."))
    }
    assert not found


def test_the_range_reader_chooses_no_versions() -> None:
    for path in (SOURCE / "client/ranges.py", SOURCE / "client/consumer/_ranges.py"):
        assert "version" not in path.read_text().lower()
