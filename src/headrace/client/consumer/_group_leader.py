"""The leader of a group: asks the assignor who gets what, tells it what it wants to know, watches for partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from headrace.assignors import (
    NEED_LAG,
    NEED_SIZE,
    AssignableTopics,
    Assignor,
    GroupAssignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from headrace.client.cluster.core import ClientCore
from headrace.client.cluster.list_offsets import OffsetLookup
from headrace.client.consumer._commits import OffsetCommits
from headrace.client.consumer._subscription import Subscriptions
from headrace.client.consumer.config import LATEST_TIMESTAMP
from headrace.client.flows import All, Flow, UserCode, When
from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_groups import DescribeGroupsResponse
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.consumer")

_METADATA_WAIT_S = 30.0

_PASSING = frozenset({ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT})

_STABLE = "Stable"

Snapshot = dict[str, tuple[tuple[str | None, ...], ...]]
"""Topic → per partition, the racks of its replicas: when it differs, the assignment may have to."""


def _assigned(described: DescribeGroupsResponse | None) -> set[TopicPartition] | None:
    """All that members of the group have; None: not known."""
    group = described.groups[0] if described is not None and described.groups else None
    if group is None or group.error_code or group.group_state != _STABLE:
        return None
    told = [decode_assignment(member.member_assignment) for member in group.members if member.member_assignment]
    return {partition for assignment in told for partition in assignment.partitions}


class GroupLeader:
    """What only the leader does."""

    def __init__(
        self, core: ClientCore, subscriptions: Subscriptions, lookup: OffsetLookup, notify: Callable[[], None]
    ) -> None:
        self.commits: OffsetCommits | None = None
        self._core = core
        self._subscriptions = subscriptions
        self._lookup = lookup
        self._notify = notify
        self._assigned_for: Snapshot | None = None
        self._seen_version = -1

    def reset(self) -> None:
        """A new rebalance: whoever leads next watches."""
        self._assigned_for = None
        self._subscriptions.group_topics = set()

    def has_changed(self) -> bool:
        """Whether topics or partitions are not those that were assigned any more."""
        if self._assigned_for is None or self._core.view.version == self._seen_version:
            return False
        self._seen_version = self._core.view.version
        return self._snapshot(self._assigned_for) != self._assigned_for

    def watch(self, joined: JoinGroupResponse, described: DescribeGroupsResponse | None) -> None:
        """Keep an eye on the topics of all members, as one that comes back and leads. Partitions may have been added
        while it was away: what the coordinator tells that all have is what was assigned."""
        topics = {topic for member in joined.members for topic in decode_subscription(member.metadata).topics}
        self._subscriptions.group_topics = topics
        for topic in topics:
            self._core.add_topic(topic)
        self._assigned_for = self._snapshot(topics)
        assigned = _assigned(described)
        if assigned is not None:
            self._seen_version = -1
            self._assigned_for = {
                topic: tuple(racks for index, racks in enumerate(found) if TopicPartition(topic, index) in assigned)
                for topic, found in self._assigned_for.items()
            }

    def assign(self, assignor: Assignor, joined: JoinGroupResponse) -> Flow[dict[str, bytes]]:
        """The encoded assignment of every member."""
        subscriptions = {
            member.member_id: decode_subscription(member.metadata, member.group_instance_id)
            for member in joined.members
        }
        topics = {topic for one in subscriptions.values() for topic in one.topics}
        self._subscriptions.group_topics = topics
        yield from self._know(topics)
        cluster = self._cluster(topics)
        if NEED_LAG in assignor.needs:
            cluster.lag = yield from self._lag(cluster)
        if NEED_SIZE in assignor.needs:
            cluster.size_bytes = yield from self._sizes(topics)
        snapshot = self._snapshot(topics)
        made: GroupAssignment = yield UserCode(assignor.assign, (cluster, subscriptions))
        self._assigned_for, self._seen_version = snapshot, self._core.view.version
        self._warn(made, subscriptions, cluster)
        return {member: encode_assignment(assignment) for member, assignment in made.items()}

    def _know(self, topics: set[str]) -> Flow[None]:
        """Until the metadata of every member's topics is there."""
        view = self._core.view
        if all(topic in view.topics for topic in topics):
            for topic in topics:
                self._core.add_topic(topic)
            return
        for topic in topics:
            self._core.add_topic(topic)
        self._core.refresh_metadata()
        until = self._core.clock.monotonic() + _METADATA_WAIT_S
        version = view.version
        known = yield When(lambda: self._core.view.version > version and topics <= self._core.view.topics.keys(), until)
        if not known:
            log.warning("some topics of the group are not known: %s", sorted(topics - self._core.view.topics.keys()))

    def _cluster(self, topics: set[str]) -> AssignableTopics:
        view = self._core.view
        racks = {node.id: node.rack for node in view.nodes.values()}
        known = {topic: view.topics[topic] for topic in sorted(topics) if topic in view.topics}
        return AssignableTopics(
            partitions={topic: len(one.partitions) for topic, one in known.items() if one.partitions},
            replica_racks={
                topic: [[racks.get(replica) for replica in part.replicas] for part in one.partitions]
                for topic, one in known.items()
            },
            broker_racks=racks,
        )

    def _snapshot(self, topics: Mapping[str, object] | set[str]) -> Snapshot:
        view = self._core.view
        racks = {node.id: node.rack for node in view.nodes.values()}
        snapshot: Snapshot = {}
        for topic in topics:
            found = view.topics.get(topic)
            if found is not None and found.error_code in _PASSING and not found.partitions and self._assigned_for:
                # Not told for a moment is not the same as deleted.
                snapshot[topic] = self._assigned_for.get(topic, ())
                continue
            partitions = () if found is None else found.partitions
            snapshot[topic] = tuple(
                tuple(sorted({racks.get(replica) for replica in part.replicas} - {None}, key=str))
                for part in partitions
            )
        return snapshot

    def _lag(self, cluster: AssignableTopics) -> Flow[dict[TopicPartition, int]]:
        partitions = [TopicPartition(topic, i) for topic, count in cluster.partitions.items() for i in range(count)]
        if self.commits is None or not partitions:
            return {}
        committed = yield from self.commits.fetch(partitions)
        ends, _ = yield from self._lookup.round(dict.fromkeys(partitions, LATEST_TIMESTAMP))
        lag: dict[TopicPartition, int] = {}
        for partition in partitions:
            end = ends.get(partition)
            if end is not None:
                start = committed.get(partition)
                lag[partition] = max(0, end.offset - (0 if start is None else start.offset))
        return lag

    def _sizes(self, topics: set[str]) -> Flow[dict[TopicPartition, int]]:
        nodes = list(self._core.view.nodes)
        request = DescribeLogDirsRequest(topics=None)
        calls = [self._core.submit(node, request, lambda _: self._notify()) for node in nodes]
        yield All(calls)
        sizes: dict[TopicPartition, int] = {}
        for call in calls:
            if call.error is not None:
                log.warning("a broker did not tell the sizes of its partitions: %s", call.error)
                continue
            for result in call.response.results:
                for topic in result.topics:
                    if topic.name in topics:
                        for part in topic.partitions:
                            name = TopicPartition(topic.name, part.partition_index)
                            sizes[name] = max(sizes.get(name, 0), part.partition_size)
        return sizes

    @staticmethod
    def _warn(made: GroupAssignment, subscriptions: Mapping[str, Subscription], cluster: AssignableTopics) -> None:
        unknown = {topic for one in subscriptions.values() for topic in one.topics} - cluster.partitions.keys()
        if unknown:
            log.warning("subscribed topics that do not exist (yet): %s", ", ".join(sorted(unknown)))
        missing = subscriptions.keys() - made.keys()
        if missing:
            log.warning("the assignor gave nothing at all to members %s", ", ".join(sorted(missing)))
