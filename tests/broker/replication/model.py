"""Random schedules of the model cluster, each from a seed; run as

    python -m tests.broker.replication.model SEEDS [FIRST]

A schedule is a few hundred steps: fetches, answers, appends, syncs, crashes with and without the loss of what was not
synced, pauses, clean stops, fences, elections, metadata that arrives late, topics deleted and made again. After every
step the invariants of `Cluster.check` hold. Nobody allows unclean elections, so records are lost only where no replica
is known to have them all and the last leader is trusted, which is an unclean election and marked as one. In `bounded`
schedules fewer than `min.insync.replicas` replicas are down uncleanly at a time: in those it never comes to that. At
the end everything heals, and all replicas are equal.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from tests.broker.replication.model_cluster import Cluster
from tests.broker.replication.model_node import LAG_MS, Node, ViolationError

STEPS = 400


class Schedule:
    """One run. What happens is drawn from the seed alone."""

    def __init__(self, seed: int, *, faults: frozenset[str] = frozenset(), steps: int = STEPS) -> None:
        self.rng = rng = random.Random(seed)
        self.steps = steps
        self.cluster = Cluster(rng.randint, min_isr=rng.choice((1, 2, 2, 3)), faults=faults)
        self.next_value = 1
        self.unacknowledged: list[tuple[bytes, int]] = []
        # How wild it gets differs from schedule to schedule: calm ones come further.
        wild = rng.choice((0.1, 0.4, 1.5))
        self.loss = rng.choice((0.0, 0.05, 0.3))
        self.in_order = rng.random() < 0.3
        self.bounded = rng.random() < 0.5
        choices: list[tuple[float, Callable[[], None]]] = [
            (30, self.fetch),
            (60, self.deliver),
            (15, self.learn),
            (12, self.produce),
            (20, self.write),
            (2, self.produce_again),
            (3, self.sync),
            (3, self.pass_time),
            (3 * wild, self.crash),
            (1.5 * wild, self.stop),
            (6, self.come_back),
            (1.5 * wild, self.pause),
            (1 * wild, self.bounce),
            (4, self.fence),
            (5, self.unfence),
            (1 + 2 * wild, self.elect),
            (10, self.alter_late),
            (0.3 * wild, self.make_anew),
            (0.5, self.delete_records),
            (0.5 * wild, self.configure),
        ]
        self.actions = [action for _, action in choices]
        total = 0.0
        self.weights = [total := total + weight for weight, _ in choices]

    def run(self) -> None:
        cluster, rng = self.cluster, self.rng
        for _ in range(self.steps):
            rng.choices(self.actions, cum_weights=self.weights)[0]()
            cluster.check()
        self.heal()
        if self.bounded and cluster.unclean_elections:
            raise ViolationError(f"11: an unclean election with fewer than {cluster.min_isr} down: {cluster.partition}")

    def _node(self) -> Node:
        return self.cluster.nodes[self.rng.randint(1, len(self.cluster.nodes))]

    # --- what happens

    def fetch(self) -> None:
        node = self._node()
        if not node.runs:
            return
        for topic_id, replica in node.replicas.items():
            if replica.outstanding is None or self.rng.random() < 0.05:
                node.fetch(topic_id)

    def deliver(self) -> None:
        messages = self.cluster.messages
        if not messages:
            return
        at = 0 if self.in_order else self.rng.randrange(len(messages))
        target = self.cluster.nodes.get(messages[at].target)
        if target is not None and target.paused:
            return
        message = messages.pop(at)
        if self.rng.random() >= self.loss:
            self.cluster.deliver(message)

    def learn(self) -> None:
        node = self._node()
        for _ in range(self.rng.randint(1, 4)):
            if node.runs and node.applied < len(self.cluster.decisions):
                node.apply(self.cluster.decisions[node.applied])

    def produce(self) -> None:
        """A client's record, to anyone who believes to be the leader."""
        for node in self.cluster.nodes.values():
            if node.runs:
                for topic_id, replica in list(node.replicas.items()):
                    if replica.leader is not None and self.rng.random() < 0.6:
                        node.produce(topic_id, self.next_value)
                        self.unacknowledged.append((topic_id, self.next_value))
                        self.next_value += 1

    def produce_again(self) -> None:
        """A client asks again for what it has no answer to, wherever it believes the leader is."""
        node = self._node()
        if self.unacknowledged and node.runs:
            at = self.rng.randrange(len(self.unacknowledged))
            topic_id, value = self.unacknowledged[at]
            if value in self.cluster.acknowledged.get(topic_id, ()):
                del self.unacknowledged[at]
            else:
                node.produce(topic_id, value)

    def write(self) -> None:
        node = self._node()
        if node.alive and node.queue:
            node.write_next()

    def sync(self) -> None:
        node = self._node()
        if node.runs:
            for log in node.logs.values():
                log.sync()

    def pass_time(self) -> None:
        self.cluster.now_ms += self.rng.choice((10.0, 200.0, LAG_MS / 2, LAG_MS * 1.5))
        for node in self.cluster.nodes.values():
            if node.runs:
                node.tick()

    def crash(self) -> None:
        node = self._node()
        if node.alive and self._may_crash(node):
            node.crash(power_loss=self.rng.random() < 0.5)

    def _may_crash(self, node: Node) -> bool:
        """Whether a schedule goes that far; the bounded ones leave one that everybody knows to have everything.

        Whoever is not stopped cleanly counts as having lost records, whether it has or not: the controller cannot know.
        """
        if not self.bounded:
            return True
        down = {node.id, *self._down_uncleanly()}
        if len(down) >= self.cluster.min_isr:
            return False
        partitions = [topic.partitions[0] for topic in self.cluster.image.topics.values()]
        return all({*state.isr, *state.eligible} - down for state in partitions)

    def _down_uncleanly(self) -> set[int]:
        nodes = self.cluster.nodes.values()
        return {node.id for node in nodes if not node.alive and node.stopped_in_epoch < 0}

    def stop(self) -> None:
        """In order, with or without an answer of the controller to the wish to stop."""
        node = self._node()
        if node.runs and node.is_ready:
            if self.rng.random() < 0.7:
                self.cluster.shut_down(node.id)
                if self.rng.random() < 0.5:
                    self.cluster.spread_metadata(node.id)
            node.stop()

    def come_back(self) -> None:
        node = self._node()
        if not node.alive:
            node.restart()
        elif node.paused:
            node.paused = False

    def bounce(self) -> None:
        """Restarted so quickly that what it asked for in its former life arrives in the next."""
        node = self._node()
        if node.alive and self._may_crash(node):
            for topic_id in node.replicas:
                node.fetch(topic_id)
            node.crash(power_loss=True)
            node.restart()
            self.cluster.spread_metadata(node.id)
            self.cluster.unfence(node.id)

    def pause(self) -> None:
        node = self._node()
        if node.alive:
            node.paused = True

    def fence(self) -> None:
        """A session is over: of a node that is dead or paused, and now and then of one that is neither."""
        node = self._node()
        if not node.runs or self.rng.random() < 0.2:
            self.cluster.fence(node.id)

    def unfence(self) -> None:
        node = self._node()
        if node.runs and node.is_ready:
            self.cluster.unfence(node.id)

    def elect(self) -> None:
        self.cluster.elect_preferred()

    def alter_late(self) -> None:
        node = self._node()
        if node.runs and node.sent_alter is not None:
            node.alter_timed_out()

    def make_anew(self) -> None:
        active = [node_id for node_id in self.cluster.nodes if self.cluster.image.is_active(node_id)]
        if self.bounded and len(active) < self.cluster.min_isr:
            return  # the only one that is thought to be alive may be down already
        self.cluster.delete_topic()
        self.cluster.create_topic()

    def delete_records(self) -> None:
        node, topic_id = self._node(), self.cluster.topic_id
        replica = node.replicas.get(topic_id)
        if node.runs and replica is not None and replica.leader is not None:
            node.delete_records(topic_id, self.rng.randint(0, replica.leader.high_watermark))

    def configure(self) -> None:
        """Another `min.insync.replicas`."""
        min_isr = self.rng.randint(1, 3)
        if not self.bounded or len(self._down_uncleanly()) < min_isr:
            self.cluster.set_min_isr(min_isr)

    # --- the end

    def heal(self) -> None:
        """Everybody is back and nothing is lost any more: all become equal, and everyone is in sync."""
        cluster = self.cluster
        self.loss = 0.0
        for node in cluster.nodes.values():
            node.paused = False
            if not node.alive:
                node.restart()
        for _ in range(400):
            for node in cluster.nodes.values():
                while node.queue:
                    node.write_next()
                cluster.spread_metadata(node.id)
                if node.is_ready:
                    cluster.unfence(node.id)
                if node.sent_alter is not None and not _is_under_way(cluster, node):
                    node.alter_timed_out()
                for topic_id, replica in node.replicas.items():
                    if replica.outstanding is None or not _is_fetching(cluster, node):
                        node.fetch(topic_id)
            for message in list(cluster.messages):
                cluster.messages.remove(message)
                cluster.deliver(message)
            cluster.now_ms += 20.0
            cluster.check()
            if self._is_healed():
                return
        state = [(node.id, node.replicas) for node in cluster.nodes.values()]
        raise ViolationError(f"16: it does not heal: {cluster.partition}, {state}, {cluster.messages}")

    def _is_healed(self) -> bool:
        cluster = self.cluster
        topic_id = cluster.topic_id
        if not topic_id:
            return True
        nodes = cluster.nodes.values()
        if any(topic_id not in node.replicas or list(node.logs) != [topic_id] for node in nodes):
            return False
        if len(cluster.partition.isr) < len(cluster.nodes) or cluster.partition.recovering:
            return False
        logs = [node.replicas[topic_id].log for node in nodes]
        # A leader that was not there when records were deleted may begin earlier than its followers.
        start = max(log.start_offset for log in logs)
        if any(log.records[start:] != logs[0].records[start:] for log in logs):
            return False
        return all(log.high_watermark == log.end_offset for log in logs)


def _is_under_way(cluster: Cluster, node: Node) -> bool:
    return any(
        message.body is node.sent_alter or getattr(message.body, "request", None) is node.sent_alter
        for message in cluster.messages
    )


def _is_fetching(cluster: Cluster, node: Node) -> bool:
    return any(
        (message.source == node.id and hasattr(message.body, "position"))
        or (message.target == node.id and hasattr(message.body, "asked"))
        for message in cluster.messages
    )


def run(seed: int, *, faults: frozenset[str] = frozenset(), steps: int = STEPS) -> Schedule:
    schedule = Schedule(seed, faults=faults, steps=steps)
    try:
        schedule.run()
    except ViolationError as violation:
        raise ViolationError(f"seed {seed}: {violation}") from violation
    return schedule


def main(arguments: list[str]) -> int:
    seeds = int(arguments[0]) if arguments else 1000
    first = int(arguments[1]) if len(arguments) > 1 else 0
    began = time.perf_counter()
    acknowledged = committed = unclean = bounded = broken = 0
    for seed in range(first, first + seeds):
        try:
            schedule = run(seed)
        except ViolationError as violation:
            print(violation, flush=True)
            broken += 1
            continue
        cluster, bounded = schedule.cluster, bounded + schedule.bounded
        unclean += cluster.unclean_elections
        acknowledged += sum(map(len, cluster.acknowledged.values()))
        committed += sum(map(len, cluster.committed.values()))
    took = time.perf_counter() - began
    print(
        f"{seeds} schedules in {took:.1f} s, {broken} broken; in the others {committed} records committed, "
        f"{acknowledged} acknowledged, none lost but in {unclean} elections of a last leader, none of them in the "
        f"{bounded} bounded schedules"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
