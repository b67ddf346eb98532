"""Consumers of share groups (KIP-932): records of a partition go to many members, each acknowledged by itself."""

from headrace.client.share.blocking import ShareConsumer as ShareConsumer
from headrace.client.share.records import AcknowledgeType as AcknowledgeType
from headrace.client.share.records import ShareRecord as ShareRecord
