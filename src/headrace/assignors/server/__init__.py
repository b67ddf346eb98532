"""Assignors that a group's coordinator runs, for consumer groups: who gets what, decided by the broker.

One of your own is a class with a `name` and an `assign` that takes a `GroupSpec`, made known to brokers by an entry
point of the group `headrace.server_assignors` and named in `group.consumer.assignors`:

    [project.entry-points."headrace.server_assignors"]
    by-weight = "my_package:ByWeight"

It must give the same answer to the same question, must not change what it is given, and may take its time: it runs on
a thread of its own, not where the broker serves its clients. If it raises, the group keeps its assignment and the
member that waits is told so.
"""

from headrace.assignors.server.base import Assignments as Assignments
from headrace.assignors.server.base import GroupSpec as GroupSpec
from headrace.assignors.server.base import MemberSpec as MemberSpec
from headrace.assignors.server.base import ServerAssignor as ServerAssignor
from headrace.assignors.server.base import ServerAssignorError as ServerAssignorError
from headrace.assignors.server.base import TopicSpec as TopicSpec
from headrace.assignors.server.ranges import ServerRangeAssignor as ServerRangeAssignor
from headrace.assignors.server.registry import BUILT_IN as BUILT_IN
from headrace.assignors.server.registry import server_assignors as server_assignors
from headrace.assignors.server.uniform import UniformAssignor as UniformAssignor
