"""The records of which cluster metadata is made: KRaft's own types, as they stand in `__cluster_metadata-0`.

The types and their frames are declared in `protocol/stored`; here are the names for the numbers in them, and which
version of each is written (the one that Kafka's `metadata.version` 4.3 writes, so that its tools can read the log).
"""

from __future__ import annotations

import enum
from typing import Final

from headrace.protocol.stored.coordinator import Unknown as Unknown
from headrace.protocol.stored.metadata_records import AbortTransactionRecord as AbortTransactionRecord
from headrace.protocol.stored.metadata_records import AccessControlEntryRecord as AccessControlEntryRecord
from headrace.protocol.stored.metadata_records import BeginTransactionRecord as BeginTransactionRecord
from headrace.protocol.stored.metadata_records import BrokerEndpoint as BrokerEndpoint
from headrace.protocol.stored.metadata_records import BrokerFeature as BrokerFeature
from headrace.protocol.stored.metadata_records import BrokerRegistrationChangeRecord as BrokerRegistrationChangeRecord
from headrace.protocol.stored.metadata_records import ClearElrRecord as ClearElrRecord
from headrace.protocol.stored.metadata_records import ClientQuotaRecord as ClientQuotaRecord
from headrace.protocol.stored.metadata_records import ConfigRecord as ConfigRecord
from headrace.protocol.stored.metadata_records import DelegationTokenRecord as DelegationTokenRecord
from headrace.protocol.stored.metadata_records import EndTransactionRecord as EndTransactionRecord
from headrace.protocol.stored.metadata_records import EntityData as EntityData
from headrace.protocol.stored.metadata_records import FeatureLevelRecord as FeatureLevelRecord
from headrace.protocol.stored.metadata_records import MetadataRecord as MetadataRecord
from headrace.protocol.stored.metadata_records import NoOpRecord as NoOpRecord
from headrace.protocol.stored.metadata_records import PartitionChangeRecord as PartitionChangeRecord
from headrace.protocol.stored.metadata_records import PartitionRecord as PartitionRecord
from headrace.protocol.stored.metadata_records import ProducerIdsRecord as ProducerIdsRecord
from headrace.protocol.stored.metadata_records import RegisterBrokerRecord as RegisterBrokerRecord
from headrace.protocol.stored.metadata_records import RegisterControllerRecord as RegisterControllerRecord
from headrace.protocol.stored.metadata_records import RemoveAccessControlEntryRecord as RemoveAccessControlEntryRecord
from headrace.protocol.stored.metadata_records import RemoveDelegationTokenRecord as RemoveDelegationTokenRecord
from headrace.protocol.stored.metadata_records import RemoveTopicRecord as RemoveTopicRecord
from headrace.protocol.stored.metadata_records import RemoveUserScramCredentialRecord as RemoveUserScramCredentialRecord
from headrace.protocol.stored.metadata_records import TopicRecord as TopicRecord
from headrace.protocol.stored.metadata_records import UnregisterBrokerRecord as UnregisterBrokerRecord
from headrace.protocol.stored.metadata_records import UserScramCredentialRecord as UserScramCredentialRecord
from headrace.protocol.stored.metadata_records import decode_record as decode_record
from headrace.protocol.stored.metadata_records import encode_record as encode_record

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"

NO_LEADER: Final = -1
"""The leader of a partition that has none."""

LEADER_UNCHANGED: Final = -2
"""In a change of a partition: the leader (and so the leader epoch) stays."""

DIRECTORY_UNASSIGNED: Final = bytes(16)
"""The directory of a replica whose broker has not yet chosen one."""

DIRECTORY_LOST: Final = bytes(15) + b"\x02"
"""The directory of a replica whose log its broker cannot use."""


class ResourceType(enum.IntEnum):
    """What configuration belongs to."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Fencing(enum.IntEnum):
    """What a change of a broker's registration does to its fence."""

    UNFENCE = -1
    NO_CHANGE = 0
    FENCE = 1


class ControlledShutdown(enum.IntEnum):
    NO_CHANGE = 0
    IN_CONTROLLED_SHUTDOWN = 1
