"""Every message and version, held against bytes that Apache Kafka's own classes wrote."""

from typing import Any

from headrace.protocol.api import api, declared_keys
from headrace.protocol.codec import decode_from, encode
from headrace.protocol.stored import metadata_records

from .vectors import from_json, load, unbase64

# Of these there are no vectors.
HELD_AGAINST_KIO_ALONE = (
    "BrokerRegistration",
    "BrokerHeartbeat",
    "UnregisterBroker",
    "AllocateProducerIds",
    "DescribeQuorum",
    "AssignReplicasToDirs",
    "AddRaftVoter",
    "RemoveRaftVoter",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupDescribe",
    "ShareGroup",
    "ShareFetch",
    "ShareAcknowledge",
    "InitializeShareGroupState",
    "ReadShareGroupState",
    "WriteShareGroupState",
    "DeleteShareGroupState",
    "StreamsGroup",
    "DescribeShareGroupOffsets",
    "AlterShareGroupOffsets",
    "DeleteShareGroupOffsets",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
    "CreateDelegationToken",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeDelegationToken",
)
#: By bytes written by hand from Kafka's declarations, below.
HELD_BY_HAND = {("DelegationTokenRecord", 0), ("RemoveDelegationTokenRecord", 0)}


def declared_classes() -> dict[str, type[Any]]:
    apis = [api(key) for key in declared_keys()]
    return {cls.__name__: cls for found in apis for cls in (found.request, found.response)}


def test_every_message_is_written_and_read_as_kafka_writes_it() -> None:
    classes = declared_classes()
    seen = set()
    for row in load("messages.jsonl.gz"):
        cls = classes.get(row["name"])
        if cls is None:
            continue
        version, raw = row["version"], unbase64(row["bytes"]) or b""
        message = from_json(cls, row["fields"])
        assert encode(message, version) == raw, f"{row['name']} v{version}"
        assert decode_from(cls, version, raw) == (message, len(raw)), f"{row['name']} v{version}"
        seen.add((row["name"], version))
    every = {(n, v) for n, c in classes.items() for v in range(c.SCHEMA.versions.low, c.SCHEMA.versions.high + 1)}
    assert seen == {(name, version) for name, version in every if not name.startswith(HELD_AGAINST_KIO_ALONE)}


def test_every_metadata_record_is_written_and_read_as_kafka_writes_it() -> None:
    classes = {cls.__name__: cls for cls in metadata_records._CLASSES.values()}
    seen = set()
    for row in load("messages.jsonl.gz"):
        cls = classes.get(row["name"])
        if cls is None:
            continue
        record, raw = from_json(cls, row["fields"]), unbase64(row["bytes"]) or b""
        assert metadata_records.encode_record(record, row["version"]) == raw, f"{row['name']} v{row['version']}"
        assert metadata_records.decode_record(raw) == record, f"{row['name']} v{row['version']}"
        seen.add((row["name"], row["version"]))
    every = {(n, v) for n, c in classes.items() for v in range(c.SCHEMA.versions.low, c.SCHEMA.versions.high + 1)}
    assert seen | HELD_BY_HAND == every


def test_records_of_delegation_tokens_have_the_bytes_that_kafka_declares() -> None:
    token = metadata_records.DelegationTokenRecord(
        owner="User:alice",
        requester="User:admin",
        renewers=["User:bob"],
        issue_timestamp=1,
        max_timestamp=3,
        expiration_timestamp=2,
        token_id="id",
    )
    times = bytes(7) + b"\1" + bytes(7) + b"\3" + bytes(7) + b"\2"
    raw = b"\1\x0a\0" + b"\x0bUser:alice" + b"\x0bUser:admin" + b"\2\x09User:bob" + times + b"\3id" + b"\0"
    removal = metadata_records.RemoveDelegationTokenRecord(token_id="id")
    for record, expected in ((token, raw), (removal, b"\1\x1a\0\3id\0")):
        assert metadata_records.encode_record(record) == expected
        assert metadata_records.decode_record(expected) == record
