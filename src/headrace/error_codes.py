"""Kafka's error codes, as they travel: number, name, whether trying again may help, and what to tell a person."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Every error that Kafka 4.3 knows. `headrace.errors` has an exception for each."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed when it is sent again, possibly to another broker."""
        return self in _RETRIABLE

    @property
    def message(self) -> str:
        """What it means, in a sentence, where the sender of the error said no more."""
        return _MESSAGES[self]


_RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)

_MESSAGES = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker failed in a way it did not expect; its log says more",
    ErrorCode.NONE: "no error",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset lies outside the partition's log",
    ErrorCode.CORRUPT_MESSAGE: "the batch is damaged: its checksum, size or format is wrong",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the broker does not know that topic or does not host that partition",
    ErrorCode.INVALID_FETCH_SIZE: "the fetch size is not allowed",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader right now; an election is under way",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the broker is not the partition's leader, or not one of its replicas",
    ErrorCode.REQUEST_TIMED_OUT: "the request was not completed in time",
    ErrorCode.BROKER_NOT_AVAILABLE: "the broker is not available",
    ErrorCode.REPLICA_NOT_AVAILABLE: "the replica is not available on that broker",
    ErrorCode.MESSAGE_TOO_LARGE: "a batch is larger than the topic or the broker allows (max.message.bytes)",
    ErrorCode.STALE_CONTROLLER_EPOCH: "another controller has taken over",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the metadata of a committed offset is longer than the broker allows",
    ErrorCode.NETWORK_EXCEPTION: "the connection broke before the answer came",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is still loading its state",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "there is no coordinator right now",
    ErrorCode.NOT_COORDINATOR: "the broker does not coordinate that group or transactional id",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic's name is not allowed, or the operation is not allowed on that topic",
    ErrorCode.RECORD_LIST_TOO_LARGE: "the batches of a partition are larger than a log segment",
    ErrorCode.NOT_ENOUGH_REPLICAS: "too few replicas are in sync (min.insync.replicas); nothing was written",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "the records were written, but to fewer in-sync replicas than required",
    ErrorCode.INVALID_REQUIRED_ACKS: "acks must be -1, 0 or 1",
    ErrorCode.ILLEGAL_GENERATION: "the group has moved on to another generation",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the member has no protocol in common with the group, or names none",
    ErrorCode.INVALID_GROUP_ID: "the group's id is not allowed",
    ErrorCode.UNKNOWN_MEMBER_ID: "the coordinator does not know that member",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the session time-out lies outside what the broker allows",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is rebalancing; the member has to join again",
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "the committed offset and its metadata are too large to be kept",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "not authorized for that topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "not authorized for that group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "not authorized for the cluster",
    ErrorCode.INVALID_TIMESTAMP: "a record's timestamp lies too far from the broker's clock",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "the broker does not offer that SASL mechanism",
    ErrorCode.ILLEGAL_SASL_STATE: "the request does not fit the state of the SASL exchange",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not serve that version of the request",
    ErrorCode.TOPIC_ALREADY_EXISTS: "a topic of that name exists already",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions is not allowed",
    ErrorCode.INVALID_REPLICATION_FACTOR: "the replication factor is below 1 or above the number of brokers",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "the assignment of replicas to brokers is not allowed",
    ErrorCode.INVALID_CONFIG: "the configuration is not allowed",
    ErrorCode.NOT_CONTROLLER: "the broker is not the controller",
    ErrorCode.INVALID_REQUEST: "the request contradicts itself or breaks the protocol",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the topic's message format does not support the request",
    ErrorCode.POLICY_VIOLATION: "a policy of the broker forbids it",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "a batch of the producer is missing before this one",
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "the batch was appended already",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a newer producer has taken over this producer id",
    ErrorCode.INVALID_TXN_STATE: "the transaction is in a state that does not allow the operation",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the producer id does not belong to the transactional id",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the transaction time-out is too long (transaction.max.timeout.ms)",
    ErrorCode.CONCURRENT_TRANSACTIONS: "an earlier operation on the transaction is still under way",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "a newer transaction coordinator has taken over",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "not authorized for that transactional id",
    ErrorCode.SECURITY_DISABLED: "the broker has no authorizer",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "not tried, because another part of the request failed",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker could not read or write its disk",
    ErrorCode.LOG_DIR_NOT_FOUND: "the broker has no such log directory",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "authentication failed",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the partition no longer remembers that producer",
    ErrorCode.REASSIGNMENT_IN_PROGRESS: "the partition is being moved to other brokers",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "delegation tokens are switched off",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "there is no such delegation token",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "the principal is neither owner nor renewer of the delegation token",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "delegation tokens may not be asked for over this connection",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "not authorized for that delegation token",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "the delegation token has expired",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "the type of principal is not known",
    ErrorCode.NON_EMPTY_GROUP: "the group still has members",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "the broker has forgotten that fetch session",
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: "the fetch session's epoch is not the expected one",
    ErrorCode.LISTENER_NOT_FOUND: "the leader has no listener of the name that the client is connected to",
    ErrorCode.TOPIC_DELETION_DISABLED: "deleting topics is switched off (delete.topic.enable)",
    ErrorCode.FENCED_LEADER_EPOCH: "the client knows an older leader epoch than the broker",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "the client knows a newer leader epoch than the broker",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "this version of the request may not carry that compression codec",
    ErrorCode.STALE_BROKER_EPOCH: "the broker has registered again in the meantime",
    ErrorCode.OFFSET_NOT_AVAILABLE: "the new leader does not know the high watermark yet",
    ErrorCode.MEMBER_ID_REQUIRED: "the member has to join again with the id it was given",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "the preferred leader is not available",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full",
    ErrorCode.FENCED_INSTANCE_ID: "another member with the same group.instance.id has taken over",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "no replica that could lead without loss is available",
    ErrorCode.ELECTION_NOT_NEEDED: "the partition has the leader it should have",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "the partition is not being moved",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "the group still reads that topic, so its offsets stay",
    ErrorCode.INVALID_RECORD: "a record breaks a rule of its topic",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "an open transaction may still change the offset",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "too many changes in too short a time; a quota is exceeded",
    ErrorCode.PRODUCER_FENCED: "a newer producer with the same transactional id has taken over",
    ErrorCode.RESOURCE_NOT_FOUND: "there is no such resource",
    ErrorCode.DUPLICATE_RESOURCE: "the request names the same resource twice",
    ErrorCode.UNACCEPTABLE_CREDENTIAL: "the credential does not meet the requirements",
    ErrorCode.INCONSISTENT_VOTER_SET: "sender or receiver is not a voter",
    ErrorCode.INVALID_UPDATE_VERSION: "the version of the update is not allowed",
    ErrorCode.FEATURE_UPDATE_FAILED: "the features could not be changed",
    ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE: "the principal of a forwarded request could not be read",
    ErrorCode.SNAPSHOT_NOT_FOUND: "there is no such snapshot",
    ErrorCode.POSITION_OUT_OF_RANGE: "the position lies outside the snapshot",
    ErrorCode.UNKNOWN_TOPIC_ID: "the broker does not know a topic of that id",
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: "another broker uses that id",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "no broker of that id is registered",
    ErrorCode.INCONSISTENT_TOPIC_ID: "the partition's topic id is another one; its topic was probably made anew",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the request is meant for another cluster",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id",
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: "the fetch session mixes topics with and without ids",
    ErrorCode.INELIGIBLE_REPLICA: "a replica may not join the in-sync replicas now",
    ErrorCode.NEW_LEADER_ELECTED: "the change was made, and another broker leads the partition since",
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: "the offset is in tiered storage now",
    ErrorCode.FENCED_MEMBER_EPOCH: "the member's epoch is over; it has to give up its partitions and join again",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another member still has that instance id",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "the group does not support that assignor",
    ErrorCode.STALE_MEMBER_EPOCH: "the member's epoch is old; the next heartbeat tells the new one",
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: "the request went to a broker instead of a controller, or the other way round",
    ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: "the type of endpoint is not supported",
    ErrorCode.UNKNOWN_CONTROLLER_ID: "there is no controller of that id",
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: "the telemetry subscription is not known any more",
    ErrorCode.TELEMETRY_TOO_LARGE: "the telemetry is larger than the broker accepts",
    ErrorCode.INVALID_REGISTRATION: "the controller refuses the broker's registration",
    ErrorCode.TRANSACTION_ABORTABLE: "the transaction has failed; abort it and go on",
    ErrorCode.INVALID_RECORD_STATE: "the record is not in a state to be acknowledged",
    ErrorCode.SHARE_SESSION_NOT_FOUND: "the broker has forgotten that share session",
    ErrorCode.INVALID_SHARE_SESSION_EPOCH: "the share session's epoch is not the expected one",
    ErrorCode.FENCED_STATE_EPOCH: "the state epoch of the share group is not the expected one",
    ErrorCode.INVALID_VOTER_KEY: "the voter's key is not the receiver's",
    ErrorCode.DUPLICATE_VOTER: "the voter is in the set already",
    ErrorCode.VOTER_NOT_FOUND: "the voter is not in the set",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "the regular expression is not valid",
    ErrorCode.REBOOTSTRAP_REQUIRED: "what the client knows of the cluster is too old; it has to start afresh",
    ErrorCode.STREAMS_INVALID_TOPOLOGY: "the topology is not valid",
    ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH: "the epoch of the topology is not valid",
    ErrorCode.STREAMS_TOPOLOGY_FENCED: "a newer topology has taken over",
    ErrorCode.SHARE_SESSION_LIMIT_REACHED: "the broker has no room for another share session",
}
