"""Every message and version, held against bytes that Apache Kafka's own classes wrote."""

from typing import Any

import pytest

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
HELD_BY_HAND = {("DelegationTokenRecord", 0), ("RemoveDelegationTokenRecord", 0), ("AbortTransactionRecord", 0)}
#: By bytes that an Apache Kafka 4.3.1 wrote into its own metadata log (of the registration, two of seven features).
WRITTEN_BY_KAFKA = {
    "01170001001212426f6f747374726170207265636f726473": metadata_records.BeginTransactionRecord(
        name="Bootstrap records"
    ),
    "01180000": metadata_records.EndTransactionRecord(),
    "011b00000000010aa7919336cb494cbe243c038b3e153000020b434f4e54524f4c4c45520a3132372e302e302e31b347000000"
    "030e67726f75702e76657273696f6e00000001000e6b726166742e76657273696f6e000000010000": (
        metadata_records.RegisterControllerRecord(
            controller_id=1,
            incarnation_id=bytes.fromhex("0aa7919336cb494cbe243c038b3e1530"),
            zk_migration_ready=False,
            end_points=[
                metadata_records.BrokerEndpoint(name="CONTROLLER", host="127.0.0.1", port=45895, security_protocol=0)
            ],
            features=[
                metadata_records.BrokerFeature(name=name, min_supported_version=0, max_supported_version=1)
                for name in ("group.version", "kraft.version")
            ],
        )
    ),
    "011c00145f5f73686172655f67726f75705f737461746500": metadata_records.ClearElrRecord(
        topic_name="__share_group_state"
    ),
}


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
    assert seen | HELD_BY_HAND | {(type(record).__name__, 0) for record in WRITTEN_BY_KAFKA.values()} == every


@pytest.mark.parametrize("written", WRITTEN_BY_KAFKA, ids=lambda text: type(WRITTEN_BY_KAFKA[text]).__name__)
def test_records_of_kafkas_own_controller_are_read_and_written_as_it_does(written: str) -> None:
    assert metadata_records.decode_record(bytes.fromhex(written)) == WRITTEN_BY_KAFKA[written]
    assert metadata_records.encode_record(WRITTEN_BY_KAFKA[written]).hex() == written


def test_the_end_of_an_aborted_transaction_has_the_bytes_that_kafka_declares() -> None:
    for reason, raw in ((None, b"\1\x19\0\0"), ("no", b"\1\x19\0\1\0\3\3no")):
        record = metadata_records.AbortTransactionRecord(reason=reason)
        assert metadata_records.encode_record(record) == raw
        assert metadata_records.decode_record(raw) == record


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
