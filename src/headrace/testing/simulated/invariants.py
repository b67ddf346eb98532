"""What must hold at every moment, looked at in the brokers themselves while they run."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.broker import Broker
from headrace.broker.partitions.partition import Partition
from headrace.cluster.image import Image, PartitionImage
from headrace.testing.simulated.cluster import SimulatedCluster
from headrace.testing.simulated.history import BrokenError
from headrace.testing.simulated.metadata_prefix import MetadataPrefixes
from headrace.testing.simulated.timeline import CLUSTER, Timeline

#: A partition of one topic: a topic of the same name that was made later is another.
Key = tuple[bytes, int]


@dataclass(slots=True)
class Known:
    """What was ever seen of a partition."""

    name: str
    #: The highest watermark that any leader had: all below it may have been acknowledged, or read.
    committed: int = 0
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()


@dataclass(slots=True)
class _Seen:
    """What a replica was like when it was looked at, and what was committed then."""

    known: Known
    watermark: int
    end: int
    epoch: int
    leads: bool
    committed: int


class Invariants:
    """Compares what brokers think with one another, and with what they thought before. `check` is called often."""

    def __init__(self, cluster: SimulatedCluster, timeline: Timeline, *, stays_in_sync: bool = False) -> None:
        """`stays_in_sync`: nothing happens for which a replica should leave those that are in sync."""
        self._cluster = cluster
        self._stays_in_sync = stays_in_sync
        self._timeline = timeline
        self._known: dict[Key, Known] = {}
        # The highest watermark of a life of a broker in a leader epoch.
        self._watermarks: dict[tuple[bytes, Key, int], int] = {}
        # Who was seen to lead, by partition and leader epoch.
        self._leaders: dict[tuple[Key, int], bytes] = {}
        # Replicas that are as they were need not be looked at again, unless something has been decided.
        self._seen: dict[Partition, _Seen] = {}
        # Whether each replica takes itself for the leader, and of which epoch.
        self._beliefs: dict[Partition, tuple[bool, int]] = {}
        self._controller: int | None = None
        self._controller_epoch = -1
        self._image_offset = -1
        # Whether something has been decided since the last look.
        self._is_new = True
        self._prefixes = MetadataPrefixes(cluster.store)
        self.checks = 0

    def check(self) -> None:
        self.checks += 1
        alive = self._cluster.alive
        image = max((broker.image for broker in alive), key=lambda found: found.offset, default=None)
        if image is None:
            return
        self._check_controllers(alive)
        self._prefixes.check(alive)
        # When the broker dies that knew most, others may know less for a while.
        if image.offset < self._image_offset:
            return
        self._is_new = image.offset > self._image_offset
        if self._is_new:
            self._image_offset = image.offset
            self._check_image(image)
        # Also machines whose number another has been given: nobody else may lead in an epoch of theirs.
        for broker in self._cluster.processes:
            for partition in broker.replicas.partitions.values():
                if (self._is_new or not self._is_unchanged(partition)) and not partition.is_offline:
                    self._check_replica(image, broker, partition)

    # --- the controller

    def _check_controllers(self, alive: list[Broker]) -> None:
        active = [broker for broker in alive if broker.metadata.active.is_active]
        epochs = {broker.metadata.active.epoch: broker for broker in active}
        if len(epochs) < len(active):
            raise BrokenError(f"brokers {[broker.node_id for broker in active]} are controllers of one epoch")
        if len(active) > 1:
            self._timeline.saw("two brokers take themselves for the controller")
        if not epochs:
            return
        epoch = max(epochs)
        if epoch > self._controller_epoch:
            self._controller_epoch = epoch
            self._timeline.add(CLUSTER, "controller", f"broker {epochs[epoch].node_id} decides, epoch {epoch}")
            self._timeline.saw(f"controller epoch {min(epoch, 8)}")

    # --- the metadata

    def _check_image(self, image: Image) -> None:
        for topic in image.topics.values():
            for index, state in enumerate(topic.partitions):
                key = (topic.topic_id, index)
                known = self._known.get(key)
                if known is None:
                    known = self._known[key] = Known(f"{topic.name}-{index}")
                if state.partition_epoch != known.partition_epoch or state.leader_epoch != known.leader_epoch:
                    self._check_state(known, state)
                self._check_in_sync(image, known, state)

    def _check_in_sync(self, image: Image, known: Known, state: PartitionImage) -> None:
        """Whoever is in sync is alive as far as is known; but for the last one, where nobody leads (KIP-841)."""
        fenced = [node_id for node_id in state.isr if not image.is_active(node_id)]
        if fenced and state.leader >= 0:
            raise BrokenError(f"{known.name}: brokers {fenced} are fenced or stopping, and in sync {state.isr}")

    def _check_state(self, known: Known, state: PartitionImage) -> None:
        name = known.name
        if state.leader_epoch < known.leader_epoch:
            raise BrokenError(f"{name}: the leader epoch went from {known.leader_epoch} back to {state.leader_epoch}")
        if state.partition_epoch < known.partition_epoch:
            raise BrokenError(
                f"{name}: the partition epoch went from {known.partition_epoch} back to {state.partition_epoch}"
            )
        if state.leader >= 0 and state.leader not in state.isr:
            raise BrokenError(f"{name}: broker {state.leader} leads, but the in-sync replicas are {state.isr}")
        if not set(state.isr) <= set(state.replicas):
            raise BrokenError(f"{name}: in sync are {state.isr}, but the replicas are {state.replicas}")
        if state.leader != known.leader or state.leader_epoch != known.leader_epoch:
            who = "nobody leads" if state.leader < 0 else f"broker {state.leader} leads"
            self._timeline.add(CLUSTER, "leader", f"{name}: {who}, epoch {state.leader_epoch}")
            self._timeline.saw("nobody leads a partition" if state.leader < 0 else "a leader changes")
        if self._stays_in_sync and len(state.isr) < len(known.isr):
            raise BrokenError(f"{name}: in sync are only {state.isr}, though no broker was ever away")
        if state.isr != known.isr:
            eligible = f", eligible {list(state.eligible)}" if state.eligible else ""
            self._timeline.add(CLUSTER, "isr", f"{name}: in sync {list(state.isr)}{eligible}")
            self._timeline.saw(f"{len(state.isr)} of {len(state.replicas)} in sync")
            if state.eligible:
                self._timeline.saw("replicas are eligible without being in sync")
        if state.recovering:
            self._timeline.saw("a partition was elected uncleanly")
        known.leader, known.leader_epoch = state.leader, state.leader_epoch
        known.partition_epoch, known.isr = state.partition_epoch, state.isr

    # --- replicas

    def _is_unchanged(self, partition: Partition) -> bool:
        seen, log = self._seen.get(partition), partition.log
        return (
            seen is not None
            and seen.watermark == log.high_watermark
            and seen.end == log.end_offset
            and seen.epoch == partition.leader_epoch
            and seen.leads == partition.is_leader
            and seen.committed == seen.known.committed
        )

    def _check_replica(self, image: Image, broker: Broker, partition: Partition) -> None:
        log = partition.log
        topic = image.topics_by_id.get(log.topic_id) if log.topic_id is not None else None
        if topic is None or partition.key.partition >= len(topic.partitions):
            return
        key = (topic.topic_id, partition.key.partition)
        known = self._known.get(key)
        if known is None:
            return
        watermark, epoch = log.high_watermark, partition.leader_epoch
        if watermark > log.end_offset:
            raise BrokenError(f"{known.name}: broker {broker.node_id} has watermark {watermark}, end {log.end_offset}")
        leads = partition.is_leader
        if self._beliefs.get(partition) != (leads, epoch):
            if leads or self._beliefs.get(partition, (False, 0))[0]:
                what = "takes itself for the leader" if leads else "does not lead any more"
                text = f"{known.name}: {what}, epoch {epoch}; its log ends at {log.end_offset}"
                self._timeline.add(f"broker-{broker.node_id}", "belief", text)
            self._beliefs[partition] = (leads, epoch)
        if leads and (partition.state is None or broker.incarnation is None):
            return
        self._seen[partition] = _Seen(known, watermark, log.end_offset, epoch, leads, max(known.committed, watermark))
        if not leads:
            return
        life = broker.incarnation
        if self._leaders.setdefault((key, epoch), life) != life:
            raise BrokenError(f"{known.name}: two brokers lead in leader epoch {epoch}, one is {broker.node_id}")
        before = self._watermarks.get((life, key, epoch), 0)
        if watermark < before:
            raise BrokenError(f"{known.name}: broker {broker.node_id} took its watermark back: {before}, {watermark}")
        if watermark == before and self._is_new:
            # Others may be in sync by now.
            self._check_followers(image, known, key, broker, watermark)
        if watermark != before:
            self._watermarks[life, key, epoch] = watermark
            if watermark > known.committed:
                known.committed = watermark
                self._timeline.committed(known.name, watermark)
            self._check_followers(image, known, key, broker, watermark)
        if epoch < known.leader_epoch:
            self._timeline.saw("a former leader still thinks that it leads")
        elif log.end_offset < known.committed and epoch == known.leader_epoch:
            raise BrokenError(
                f"{known.name}: broker {broker.node_id} leads in epoch {epoch} with a log that ends at "
                f"{log.end_offset}, but all below {known.committed} was committed"
            )

    def _check_followers(self, image: Image, known: Known, key: Key, leader: Broker, watermark: int) -> None:
        """Whoever is in sync has what is committed, so that each of them may lead next."""
        state = image.topics_by_id[key[0]].partitions[key[1]]
        for broker in self._cluster.alive:
            registered = image.brokers.get(broker.node_id)
            if broker.node_id not in state.isr or registered is None or registered.epoch != broker.broker_epoch:
                continue
            partition = broker.replicas.partitions.get((image.topics_by_id[key[0]].name, key[1]))
            if partition is None or partition.is_offline or partition.log.topic_id != key[0]:
                continue
            if partition.log.end_offset < watermark:
                raise BrokenError(
                    f"{known.name}: broker {leader.node_id} has committed up to {watermark}, but broker "
                    f"{broker.node_id} is in sync and ends at {partition.log.end_offset}"
                )
