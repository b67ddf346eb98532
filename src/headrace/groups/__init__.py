"""Who may read and commit what? Consumer groups and their offsets, as a pure state machine over records."""

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
