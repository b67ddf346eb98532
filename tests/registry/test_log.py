"""The topic of schemas: one writes at a time, and a record that is none of the registry's is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import headrace
from headrace.registry import records
from headrace.registry.log import LogUnavailableError, NoLongerWriterError, TopicLog
from headrace.registry.records import SchemaChange, UnreadableSchemaRecordError, read
from headrace.registry.state import RegistryState
from headrace.schemas.schema import Schema
from headrace.testing import EmbeddedBroker, broker, free_port

CHANGE = SchemaChange(records.CONFIG, "a", None, {"compatibilityLevel": "FULL"})


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker() as running:
        yield running


def log_of(address: str, topic: str) -> TopicLog:
    return TopicLog({"bootstrap.servers": address}, topic, writer=f"{topic}-writer", replicas=1, start_timeout_s=20)


def test_a_former_writer_is_fenced_and_the_next_one_has_all_that_it_wrote(kafka: EmbeddedBroker) -> None:
    async def scenario() -> None:
        former, heir = log_of(kafka.address, "fenced"), log_of(kafka.address, "fenced")
        states = RegistryState(), RegistryState()
        await former.start(states[0].apply)
        await heir.start(states[1].apply)
        await former.take_over()
        await former.write([CHANGE])
        await heir.take_over()
        assert states[1].configs == {"a": {"compatibilityLevel": "FULL"}}
        with pytest.raises(NoLongerWriterError):
            await former.write([SchemaChange(records.CONFIG, "a")])
        await heir.write([SchemaChange(records.MODE, None, None, {"mode": "READONLY"})])
        assert states[1].configs["a"]
        assert states[1].mode("x") == "READONLY"
        await former.close()
        await heir.close()

    asyncio.run(scenario())


def test_records_of_others_are_left_out(kafka: EmbeddedBroker) -> None:
    good = records.schema_record("s", 1, 7, Schema('"string"'), deleted=False)
    with headrace.Producer(bootstrap_servers=kafka.address) as producer:
        for key, value in [
            (b"no json", b"{}"),
            (b'{"keytype":"SCHEMA"}', b"{}"),
            (b'{"keytype":"LATER","x":1}', b"{}"),
            (b'{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}', b'{"id":8}'),
            (None, b"x"),
            # Written by an older registry: another order, and null for the registry as a whole.
            (b'{"magic":0,"subject":null,"keytype":"CONFIG"}', b'{"compatibilityLevel":"NONE"}'),
            (good.key_bytes(), good.value_bytes()),
        ]:
            producer.send("strange", value, key=key)

    async def scenario() -> None:
        log, state = log_of(kafka.address, "strange"), RegistryState()
        await log.start(state.apply)
        assert [one.id for one in state.versions("s")] == [7]
        assert state.level("s") == "NONE"
        await log.close()

    asyncio.run(scenario())


def test_a_topic_of_several_partitions_is_refused(kafka: EmbeddedBroker) -> None:
    with headrace.Admin(bootstrap_servers=kafka.address) as admin:
        admin.create_topics([headrace.NewTopic("wide", 2)]).all()
    with pytest.raises(LogUnavailableError, match="2 partitions"):
        asyncio.run(log_of(kafka.address, "wide").start(lambda change: None))


def test_without_a_kafka_it_says_so() -> None:
    log = TopicLog({"bootstrap.servers": f"127.0.0.1:{free_port()}"}, "t", writer="w", replicas=1, start_timeout_s=0.5)
    with pytest.raises(LogUnavailableError, match=r"kafkastore\.init\.timeout\.ms=500"):
        asyncio.run(log.start(lambda change: None))


@pytest.mark.parametrize("key", [None, b"", b"[]", b"{", b'{"keytype": 3}', b'{"keytype": "CONFIG", "subject": 3}'])
def test_keys_that_are_none(key: bytes | None) -> None:
    with pytest.raises(UnreadableSchemaRecordError):
        read(key, b"{}")
