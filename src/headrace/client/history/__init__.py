"""What happened to a group: its rebalances, read from `__consumer_offsets` of any Kafka, and what would happen if."""

from headrace.client.history.documents import plan_document, timeline_document
from headrace.client.history.reading import GroupLog, HistoryError, read_group
from headrace.client.history.timeline import Cause, CauseKind, Flapping, GroupTimeline, Rebalance, timeline
from headrace.client.history.what_if import AssignmentPlan, Change, MemberPlan, WhatIfError, what_if

__all__ = [
    "AssignmentPlan",
    "Cause",
    "CauseKind",
    "Change",
    "Flapping",
    "GroupLog",
    "GroupTimeline",
    "HistoryError",
    "MemberPlan",
    "Rebalance",
    "WhatIfError",
    "plan_document",
    "read_group",
    "timeline",
    "timeline_document",
    "what_if",
]
