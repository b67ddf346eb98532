"""Who may read and commit what? Groups of all kinds and their offsets, as a pure state machine over records.

`coordinator.py` is the room's face. Offsets (`offsets.py`, `fetching.py`, `group_offsets.py`) do not depend on the kind
of a group; they ask it through `group.Group` who may commit. `shards.py` knows which groups are served, `loading.py`
reads them back. Each kind has a folder: `classic/`, `consumer/`, `share/`, `streams/`. What the newer kinds have in
common is in `epochs/`: they are assigned by the coordinator, and led from epoch to epoch.

How a kind is made (`consumer/` is the example):

1. `GroupKind` gets its name. A subclass of `epochs.group.EpochGroup` holds its members, which are `EpochMember`s with
   fields of their own, and their targets. It says how its records look (`epoch_record`, `target_record`, …,
   `records_of_end`) and who may commit (`may_commit`). Whoever changes a member's topics does it by `set_topics`,
   so that `topic_counts` is true.
2. A class with the methods of `kinds.KindOfGroup` loads its groups from their records, runs their timers and hears of
   changed topics. `GroupCoordinator` makes one of it, keeps it in `_kinds`, and names it for the requests that only
   this kind is asked (`coordinator.consumer.heartbeat`): methods that take (caller, request, now) and give an
   `Outcome`. Its settings come from `settings.GroupSettings` where a group may have its own, else from a config class
   beside it that `GroupConfig` has a field for.
3. A heartbeat checks first, by `epochs.finding`, and raises `RefusedError` while nothing is changed. Then it makes a
   `GroupStep`, changes the group at once, and puts each changed record into the step, in Kafka's order. The rest goes
   on in a function that `Targets.refresh` calls, which computes a new target first when one is due, on another thread
   when that takes long: it reconciles the member, renews its session (`heard_from`) and replies. `refresh` ends the
   step: one batch, and the reply once that is written. See `epochs/steps.py` for what holds when a write fails.
4. Members go by cancelling their timers (`cancel_member_timers`), `remove_member`, and the tombstones of their
   records. A timer asks `sessions.is_over`, since a heartbeat moves the deadline and leaves the timer alone. What takes
   long (matching expressions) is a `Job` of the outcome; its end asks whether the group `is_live`.
5. The broker gets a file per API key in `broker/handlers/`, which asks whether the feature of the kind is finalized
   (`cluster/features.py`), and its rights in `broker/authorization/groups.py`. `Administration` lists and deletes
   groups of any kind; `DescribeGroups` tells the newer ones as dead, as Kafka does.
"""

from headrace.coordination import Caller as Caller
from headrace.coordination import CoordinatorRecord as CoordinatorRecord
from headrace.coordination import Now as Now
from headrace.coordination import Reply as Reply
from headrace.coordination import StoredRecord as StoredRecord
from headrace.coordination import Timer as Timer
from headrace.coordination import TimerChange as TimerChange
from headrace.groups.classic.state import GroupState as GroupState
from headrace.groups.config import GroupConfig as GroupConfig
from headrace.groups.coordinator import GroupCoordinator as GroupCoordinator
from headrace.groups.group import Group as Group
from headrace.groups.group import GroupKind as GroupKind
from headrace.groups.loading import LoadReport as LoadReport
from headrace.groups.outcome import Outcome as Outcome
from headrace.groups.outcome import TimerKind as TimerKind
from headrace.groups.outcome import TransactionalProducer as TransactionalProducer
from headrace.groups.topics import TopicLookup as TopicLookup
