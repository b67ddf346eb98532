"""Every client writes with every codec what every other client reads (SPEC 1.1)."""

from __future__ import annotations

import pytest

from headrace.testing import EmbeddedBroker

from .clients import CLIENTS, CODECS, PYTHON_CLIENTS, Client, Kcat, Message, create_topic, sample

NAMES = [client.name for client in CLIENTS]
PYTHON_NAMES = [client.name for client in PYTHON_CLIENTS]


def need(client: Client, codec: str) -> None:
    reason = client.why_not(codec)
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", PYTHON_CLIENTS, ids=PYTHON_NAMES)
def test_all_clients_read_what_one_wrote(kafka: EmbeddedBroker, topic: str, writer: Client, codec: str) -> None:
    need(writer, codec)
    create_topic(kafka.address, topic, retention_ms="-1")
    messages = sample(100, null_headers=writer.name != "kafka-python")
    writer.produce(kafka.address, topic, messages, codec)
    for reader in PYTHON_CLIENTS:
        if reader.why_not(codec) is None:
            assert reader.consume(kafka.address, topic, len(messages)) == messages, reader.name


def text_messages(count: int) -> list[Message]:
    messages = [Message(b"key %d" % n, b"value %d" % n, 0, (("from", b"kcat"), ("n", b"1"))) for n in range(count)]
    return [*messages, Message(b"null", None, 0)]


def without_time(messages: list[Message]) -> list[Message]:
    return [Message(message.key, message.value, 0, message.headers) for message in messages]


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_writes_what_all_read_and_reads_what_they_wrote(kafka: EmbeddedBroker, topic: str, codec: str) -> None:
    kcat = Kcat()
    need(kcat, codec)
    create_topic(kafka.address, topic)
    messages = text_messages(10)
    kcat.produce(kafka.address, topic, messages, codec)
    for reader in CLIENTS:
        if reader.why_not(codec) is None:
            found = reader.consume(kafka.address, topic, len(messages))
            assert without_time(found) == messages, reader.name


@pytest.mark.parametrize("writer", PYTHON_CLIENTS, ids=PYTHON_NAMES)
def test_an_idempotent_producer_writes_everything_once_and_in_order(
    kafka: EmbeddedBroker, topic: str, writer: Client
) -> None:
    create_topic(kafka.address, topic, retention_ms="-1")
    setting = {"enable.idempotence": True} if writer.name == "confluent-kafka" else {"enable_idempotence": True}
    messages = sample(500, null_headers=False)
    writer.produce(kafka.address, topic, messages, "gzip", **setting)
    assert PYTHON_CLIENTS[0].consume(kafka.address, topic, len(messages)) == messages
    described = kafka.call(lambda broker: list(broker.partition(topic, 0).log.producers.producers.values()))
    assert len(described) == 1
    assert described[0].last_sequence == len(messages) - 1


@pytest.mark.slow
@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("writer", CLIENTS, ids=NAMES)
def test_every_level_of_acks(kafka: EmbeddedBroker, topic: str, writer: Client, acks: int) -> None:
    need(writer, "none")
    create_topic(kafka.address, topic)
    if writer.name in ("confluent-kafka", "kcat"):
        setting: dict[str, object] = {"acks": acks}
    else:
        setting = {"acks": "all" if acks == -1 else acks, "enable_idempotence": False}
        if writer.name == "aiokafka":
            setting["acks"] = acks
    messages = text_messages(20)
    now = [Message(m.key, m.value, 1_700_000_000_000, m.headers) for m in messages]
    writer.produce(kafka.address, topic, now, **setting)
    assert without_time(PYTHON_CLIENTS[0].consume(kafka.address, topic, len(messages))) == messages


LIMIT_BYTES = 1_048_588  # max.message.bytes of a topic that does not say otherwise


@pytest.mark.parametrize("writer", PYTHON_CLIENTS, ids=PYTHON_NAMES)
def test_messages_just_below_the_limit_pass_and_above_are_refused(
    kafka: EmbeddedBroker, topic: str, writer: Client
) -> None:
    create_topic(kafka.address, topic, retention_ms="-1")
    names = {
        "confluent-kafka": {"message.max.bytes": 4_000_000, "batch.size": 4_000_000},
        "kafka-python": {"max_request_size": 4_000_000},
        "aiokafka": {"max_request_size": 4_000_000},
    }
    setting = names[writer.name]
    overhead = 61 + 5 + 1 + 1 + 6 + 1 + 4 + 1  # a batch's header, then the fields of one record around its value
    largest = Message(None, b"x" * (LIMIT_BYTES - overhead - 10), 1_700_000_000_000)
    writer.produce(kafka.address, topic, [largest], **setting)
    too_large = Message(None, b"x" * LIMIT_BYTES, 1_700_000_000_000)
    with pytest.raises(Exception, match=r"(?i)MSG_SIZE_TOO_LARGE|MessageSizeTooLarge|RecordTooLarge|larger than"):
        writer.produce(kafka.address, topic, [too_large], **setting)
    for reader in PYTHON_CLIENTS:
        assert reader.consume(kafka.address, topic, 1) == [largest], reader.name


@pytest.mark.slow
def test_a_topic_may_allow_larger_messages(kafka: EmbeddedBroker, topic: str) -> None:
    create_topic(kafka.address, topic, max_message_bytes="9000000", retention_ms="-1")
    large = Message(b"key", bytes(range(256)) * 32_000, 1_700_000_000_000)
    PYTHON_CLIENTS[0].produce(kafka.address, topic, [large], **{"message.max.bytes": 9_000_000})
    for reader in PYTHON_CLIENTS:
        assert reader.consume(kafka.address, topic, 1) == [large], reader.name
