"""Several real brokers for a test, each a process of its own, and what can happen to them.

with headrace.testing.cluster(3) as kafka:
    producer = Producer(bootstrap_servers=kafka.address)
    kafka.kill(1)                # SIGKILL
    kafka.partition([2], [3])    # neither hears of the other; both keep their clients
    kafka.heal()
    kafka.start(1)

They share their metadata through a directory, so neither Java nor a ZooKeeper is needed.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.client.admin import Admin
from headrace.errors import HeadraceError
from headrace.testing.fillable import marker_of
from headrace.testing.links import Links
from headrace.testing.processes import BrokerProcess
from headrace.testing.server_process import free_port

#: What makes tests quick: who is gone is missed soon, but not on a busy machine, and few partitions have to be moved.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "10000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
_WHOLE_S = 120.0
_LOOK_S = 0.05


class Cluster:
    """Brokers 1 to `brokers`. Faults last until they are ended: by `start`, `resume`, `heal`, `empty_disk`, or all of
    them by `restore`."""

    def __init__(self, directory: Path, brokers: int, overrides: Mapping[str, str] | None = None) -> None:
        node_ids = range(1, brokers + 1)
        self._links = Links(node_ids)
        copies = str(min(3, brokers))
        between = {node_id: free_port() for node_id in node_ids}
        self._links.lead_to(between)
        self.brokers: dict[int, BrokerProcess] = {}
        for node_id in node_ids:
            port = free_port()
            own = {
                "node.id": str(node_id),
                "headrace.metadata.dir": str(directory / "metadata"),
                # The first is the one that brokers find one another by: through the links, which can be cut.
                "listeners": f"BROKERS://127.0.0.1:{between[node_id]},PLAINTEXT://127.0.0.1:{port}",
                "advertised.listeners": (
                    f"BROKERS://127.0.0.1:{self._links.ports[node_id]},PLAINTEXT://127.0.0.1:{port}"
                ),
                "listener.security.protocol.map": "BROKERS:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                "inter.broker.listener.name": "BROKERS",
                "default.replication.factor": copies,
                "offsets.topic.replication.factor": copies,
                "transaction.state.log.replication.factor": copies,
                "transaction.state.log.min.isr": str(min(2, brokers)),
                **SETTINGS,
                **(overrides or {}),
            }
            data = directory / f"broker-{node_id}"
            self.brokers[node_id] = BrokerProcess(data, own, port, module="headrace.testing.fillable")
        self._paused: set[int] = set()

    @property
    def address(self) -> str:
        """`bootstrap.servers`: all of them."""
        return ",".join(broker.address for broker in self.brokers.values())

    bootstrap_servers = address

    # --- life

    def start(self, node_id: int | None = None) -> None:
        """Start a broker that was killed or stopped; without a number, all that do not run. Returns once it serves."""
        chosen = self.brokers if node_id is None else [node_id]
        down = [self.brokers[one] for one in chosen if not self.brokers[one].is_running]
        if down:
            with ThreadPoolExecutor(len(down)) as pool:
                list(pool.map(lambda broker: broker.start(), down))

    def close(self) -> None:
        """End all of them at once: nobody needs what they have."""
        for broker in self.brokers.values():
            broker.kill()
        self._links.close()

    def await_whole(self, timeout_s: float = _WHOLE_S) -> None:
        """Wait until all brokers are members, and every replica of every partition is in sync."""
        deadline = time.monotonic() + timeout_s
        with Admin(bootstrap_servers=self.address) as admin:
            while (lacking := self._lacking(admin)) is not None:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the cluster is not whole after {timeout_s:g} s: {lacking}")
                time.sleep(_LOOK_S)

    def _lacking(self, admin: Admin) -> str | None:
        try:
            nodes = admin.describe_cluster().nodes
            if len(nodes) < len(self.brokers):
                return f"{len(nodes)} of {len(self.brokers)} brokers are there"
            topics = admin.describe_topics(admin.list_topics(list_internal=True)).ok
        except (HeadraceError, TimeoutError) as error:
            return str(error)
        for name, topic in topics.items():
            for info in topic.partitions:
                if info.leader < 0 or len(info.isr) < len(info.replicas):
                    return f"{name}-{info.partition}: leader {info.leader}, in sync {sorted(info.isr)}"
        return None

    def leader(self, topic: str, partition: int = 0) -> int:
        """The number of the broker that leads a partition; -1 while nobody does."""
        with Admin(bootstrap_servers=self.address) as admin:
            return admin.describe_topics([topic]).all()[topic].partitions[partition].leader

    # --- what goes wrong

    def kill(self, node_id: int) -> None:
        """End a broker's process at once, as a crash does."""
        self.brokers[node_id].kill()
        self._paused.discard(node_id)

    def stop(self, node_id: int) -> None:
        """Shut a broker down in order: it hands over what it leads."""
        self.brokers[node_id].stop()

    def pause(self, node_id: int) -> None:
        """Let a broker hang: it does nothing, and its connections stay open."""
        self.brokers[node_id].pause()
        self._paused.add(node_id)

    def resume(self, node_id: int) -> None:
        self._paused.discard(node_id)
        self.brokers[node_id].resume()

    def partition(self, ones: Iterable[int], others: Iterable[int] | None = None, *, one_way: bool = False) -> None:
        """Cut brokers off from others (all that are left, unless named) until `heal`. All of them keep their clients,
        and what they share of the metadata."""
        ones = list(ones)
        rest = [node_id for node_id in self.brokers if node_id not in ones] if others is None else list(others)
        self._links.cut(ones, rest, one_way=one_way)

    def heal(self) -> None:
        """End all partitions of the network."""
        self._links.heal()

    def fill_disk(self, node_id: int) -> None:
        """Let a broker find no more room on its disk."""
        Path(marker_of(str(self.brokers[node_id].directory))).touch()

    def empty_disk(self, node_id: int) -> None:
        """Give it room again. A log directory that has failed comes back when its broker is started again."""
        Path(marker_of(str(self.brokers[node_id].directory))).unlink(missing_ok=True)

    def restore(self) -> None:
        """End all faults, start all that do not run, and wait until the cluster is whole."""
        self.heal()
        for node_id in list(self._paused):
            self.resume(node_id)
        for node_id, broker in self.brokers.items():
            if Path(marker_of(str(broker.directory))).exists():
                self.empty_disk(node_id)
                self.kill(node_id)
        self.start()
        self.await_whole()


@contextlib.contextmanager
def cluster(
    brokers: int = 3, overrides: Mapping[str, str] | None = None, *, directory: str | Path | None = None
) -> Iterator[Cluster]:
    """Start brokers that are one cluster, and end them when the block ends. Without a directory their data is thrown
    away."""
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))
        made = Cluster(Path(directory), brokers, overrides)
        stack.callback(made.close)
        made.start()
        made.await_whole()
        yield made
