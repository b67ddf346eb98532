"""Settings under the names of other libraries: librdkafka's (confluent-kafka's), kafka-python's and aiokafka's.

Those that mean the same as one of Kafka's are understood, others are answered with what to use instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.config import ConfigDefinition, ConfigError

LIBRDKAFKA_SAME = {
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

LIBRDKAFKA_INSTEAD = {
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
    "partitioner": "partitioner.class; keys are placed as Java's clients do, librdkafka's murmur2_random",
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

PYTHON_SAME = {
    "max.batch.size": "batch.size",
    "sasl.plain.password": "sasl.password",
    "sasl.plain.username": "sasl.username",
    "ssl.cafile": "ssl.truststore.location",
    "ssl.certfile": "ssl.certificate.location",
    "ssl.keyfile": "ssl.key.location",
    "ssl.password": "ssl.key.password",
}
"""kafka-python's or aiokafka's name, with dots for underscores → Kafka's, of the same meaning and unit."""

PYTHON_INSTEAD = {
    "api.version": "nothing: versions are agreed on with each broker",
    "consumer.timeout.ms": "poll(seconds), which ends with what came",
    "default.offset.commit.callback": "commit_async(callback=…)",
    "loop": "nothing: headrace.aio runs on the loop that it is used in",
    "rebalance.timeout.ms": "max.poll.interval.ms",
    "sasl.oauth.token.provider": "sasl.oauthbearer.token.callback: a function that returns (token, seconds since 1970)",
    "ssl.check.hostname": "ssl.endpoint.identification.algorithm: https, or nothing for no check",
    "ssl.ciphers": "ssl.cipher.suites, separated by commas",
    "ssl.context": "ssl.truststore.location, ssl.certificate.location and ssl.key.location",
}
"""kafka-python's or aiokafka's name → what to use here."""

SAME = {**LIBRDKAFKA_SAME, **PYTHON_SAME}


def in_kafkas_words(given: Mapping[str, Any], definition: ConfigDefinition) -> dict[str, Any]:
    """The settings under Kafka's names, where another library's were given and this client has the setting."""
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
    """What to use instead of another library's setting that there is none of here; nothing for any other name."""
    for whose, instead in (("librdkafka's", LIBRDKAFKA_INSTEAD), ("kafka-python's or aiokafka's", PYTHON_INSTEAD)):
        if name in instead:
            return f"; it is {whose}, use {instead[name]}"
    return ""
