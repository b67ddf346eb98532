"""What happened to a group: its rebalances, read from `__consumer_offsets` of any Kafka, and what would happen if."""

from headrace.client.history.documents import plan_document, timeline_document
from headrace.client.history.reading import GroupLog, HistoryError, read_group
from headrace.client.history.timeline import Cause, CauseKind, Flapping, Rebalance, Timeline, timeline
from headrace.client.history.what_if import Change, MemberPlan, Plan, WhatIfError, what_if

__all__ = [
    "Cause",
    "CauseKind",
    "Change",
    "Flapping",
    "GroupLog",
    "HistoryError",
    "MemberPlan",
    "Plan",
    "Rebalance",
    "Timeline",
    "WhatIfError",
    "plan_document",
    "read_group",
    "timeline",
    "timeline_document",
    "what_if",
]
