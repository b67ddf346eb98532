"""What brokers say of groups whose coordinator assigns, as an Admin gives it."""

from __future__ import annotations

from headrace.client.admin.newer_groups import NEWER_KINDS
from headrace.net.node import Node
from headrace.protocol.messages import share_group_describe as share
from headrace.protocol.messages import streams_group_describe as streams

NODE = Node(1, "here", 9092)
_, SHARE, STREAMS = NEWER_KINDS


def test_a_member_of_a_streams_group_has_tasks_and_the_partitions_that_they_read() -> None:
    topology = streams.Topology(
        epoch=0,
        subtopologies=[
            streams.Subtopology(subtopology_id="0", source_topics=["orders"], repartition_sink_topics=["r"]),
            streams.Subtopology(
                subtopology_id="1", repartition_source_topics=[streams.TopicInfo(name="r", partitions=2)]
            ),
        ],
    )
    has = streams.Assignment(
        active_tasks=[streams.TaskIds(subtopology_id="0", partitions=[1, 0])],
        standby_tasks=[streams.TaskIds(subtopology_id="1", partitions=[1])],
    )
    wanted = streams.Assignment(active_tasks=[streams.TaskIds(subtopology_id="1", partitions=[0])])
    group = STREAMS.read(
        streams.DescribedGroup(
            group_id="app",
            group_state="Reconciling",
            group_epoch=5,
            assignment_epoch=4,
            topology=topology,
            members=[streams.Member(member_id="m", member_epoch=3, assignment=has, target_assignment=wanted)],
        ),
        NODE,
    )
    assert (group.type, group.state, group.epoch, group.assignment_epoch) == ("streams", "Reconciling", 5, 4)
    [member] = group.members
    assert (member.tasks, member.standby_tasks, member.epoch) == (("0_0", "0_1"), ("1_1",), 3)
    assert list(map(str, member.assignment)) == ["orders-0", "orders-1"]
    assert list(map(str, member.target or ())) == ["r-0"]


def test_members_of_a_share_group_may_have_the_same_partitions() -> None:
    parts = share.Assignment(topic_partitions=[share.TopicPartitions(topic_name="t", partitions=[0])])
    members = [share.Member(member_id=name, member_epoch=2, assignment=parts) for name in ("a", "b")]
    group = SHARE.read(share.DescribedGroup(group_id="queue", group_state="Stable", members=members), NODE)
    assert [list(map(str, member.assignment)) for member in group.members] == [["t-0"], ["t-0"]]
    assert (group.type, group.members[0].target) == ("share", None)
