"""librdkafka's names of settings (confluent-kafka's): those that mean the same as one of Kafka's are understood, others
are answered with what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.config import ConfigDefinition, ConfigError

SAME = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.id": "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "sasl.oauthbearer.client.credentials.client.secret",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
    "compression.codec": "compression.type",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
}
"""librdkafka's name → Kafka's, of the same meaning and unit."""

INSTEAD = {
    "batch.num.messages": "batch.size, in bytes",
    "enable.auto.offset.store": "enable.auto.commit=false and commit_sync(offsets)",
    "enable.partition.eof": "current_lag(partition), which is 0 at the end",
    "error_cb": "the errors that calls raise, and logging (headrace.client)",
    "log_level": "Python's logging (headrace)",
    "logger": "Python's logging (headrace)",
    "debug": "Python's logging (headrace) at DEBUG",
    "message.max.bytes": "max.request.size",
    "oauth_cb": "sasl.oauthbearer.token.callback: a function that returns (token, seconds since 1970)",
    "on_delivery": "send(…, on_delivery=…)",
    "queue.buffering.max.kbytes": "buffer.memory, in bytes",
    "queue.buffering.max.messages": "buffer.memory, in bytes",
    "queued.max.messages.kbytes": "fetch.max.bytes",
    "queued.min.messages": "fetch.min.bytes",
    "sasl.kerberos.service.name": "PLAIN, SCRAM or OAUTHBEARER: GSSAPI is not spoken here",
    "statistics.interval.ms": "metrics()",
    "stats_cb": "metrics()",
    "throttle_cb": "metrics()",
}
"""librdkafka's name → what to use here."""


def in_kafkas_words(given: Mapping[str, Any], definition: ConfigDefinition) -> dict[str, Any]:
    """The settings under Kafka's names, where librdkafka's were given and this client has the setting."""
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, value in given.items():
        known = SAME.get(name, name)
        if name in definition or known not in definition:
            found[name] = value
        elif known in given:
            problems[known] = f"{name} and {known} are the same configuration; give only one of them"
        else:
            found[known] = value
    if problems:
        raise ConfigError(problems)
    return found


def equivalent(name: str) -> str:
    """What to use instead of a setting of librdkafka's that there is none of here; nothing for any other name."""
    return f"; it is librdkafka's, use {INSTEAD[name]}" if name in INSTEAD else ""
