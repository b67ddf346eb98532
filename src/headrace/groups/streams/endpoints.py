"""Where the members of an application can be asked for their state (interactive queries), and for which partitions."""

from __future__ import annotations

from headrace.groups.streams.group import StreamsGroup, StreamsMember
from headrace.groups.streams.tasks import Numbers
from headrace.protocol.messages.streams_group_heartbeat import Endpoint, EndpointToPartitions, TopicPartition


def partitions_by_endpoint(group: StreamsGroup, last: StreamsMember) -> list[EndpointToPartitions]:
    """Of all members that can be asked; of this one, whose heartbeat it is, last."""
    members = [member for member in group.members.values() if member is not last]
    return [_of_member(group, member) for member in (*members, last) if member.endpoint is not None]


def _of_member(group: StreamsGroup, member: StreamsMember) -> EndpointToPartitions:
    assert member.endpoint is not None
    host, port = member.endpoint
    return EndpointToPartitions(
        user_endpoint=Endpoint(host=host, port=port),
        active_partitions=_partitions(group, member.assigned.active),
        standby_partitions=_partitions(group, member.assigned.standby),
    )


def _partitions(group: StreamsGroup, tasks: Numbers) -> list[TopicPartition]:
    configured = group.configured
    subtopologies = {} if configured is None or configured.subtopologies is None else configured.subtopologies
    found: list[TopicPartition] = []
    for name, numbers in tasks.items():
        if configured is None or name not in subtopologies:
            continue
        for topic in sorted(subtopologies[name].sources):
            # A topic with fewer partitions than there are tasks is in the first ones only.
            held = sorted(numbers)[: configured.counts.get(topic, 0)]
            found.append(TopicPartition(topic=topic, partitions=held))
    return found
