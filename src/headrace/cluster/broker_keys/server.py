"""Broker configuration of the server itself: identity, listeners, connections, requests, topic defaults, metrics."""

from __future__ import annotations

from headrace.cluster.broker_keys.row import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    PER_BROKER,
    STRING,
    BrokerKey,
    broker_key,
)
from headrace.config import INT32_MAX, INT64_MAX, at_least, list_of, list_of_any

SERVER_KEYS: tuple[BrokerKey, ...] = (
    broker_key(
        "advertised.listeners",
        LIST,
        None,
        check=list_of_any(allow_empty=False, allow_null=True),
        importance=HIGH,
        doc="Addresses that clients are told to connect to; the listeners themselves when not given.",
    ),
    broker_key("alter.config.policy.class.name", CLASS, None, importance=LOW),
    broker_key(
        "auto.create.topics.enable",
        BOOLEAN,
        True,
        importance=HIGH,
        doc="Whether asking for the metadata of an unknown topic creates it.",
    ),
    broker_key("background.threads", INT, 10, check=at_least(1), mode=CLUSTER_WIDE, importance=HIGH),
    broker_key(
        "broker.id", INT, -1, importance=HIGH, doc="The older name of node.id; the same number when both are given."
    ),
    broker_key("broker.rack", STRING, None, doc="The rack (or zone) of this broker; replicas are spread over racks."),
    broker_key("client.quota.callback.class", CLASS, None, importance=LOW),
    broker_key("config.providers", LIST, (), check=list_of_any(), mode=CLUSTER_WIDE, importance=LOW),
    broker_key(
        "connections.max.idle.ms", LONG, 600_000, doc="A connection on which nothing happens for so long is closed."
    ),
    broker_key("create.topic.policy.class.name", CLASS, None, importance=LOW),
    broker_key("default.replication.factor", INT, 1, doc="Replicas of a topic created without saying how many."),
    broker_key("delete.records.purgatory.purge.interval.requests", INT, 1),
    broker_key("delete.topic.enable", BOOLEAN, True, importance=HIGH, doc="Whether topics can be deleted."),
    broker_key("early.start.listeners", LIST, None, check=list_of_any(allow_null=True), importance=HIGH),
    broker_key(
        "fetch.max.bytes", INT, 57_671_680, check=at_least(1024), doc="Most bytes that one fetch is answered with."
    ),
    broker_key("fetch.purgatory.purge.interval.requests", INT, 1000),
    broker_key("inter.broker.listener.name", STRING, None, doc="The listener that brokers use among themselves."),
    broker_key("kafka.metrics.polling.interval.secs", INT, 10, check=at_least(1), importance=LOW),
    broker_key("kafka.metrics.reporters", LIST, (), check=list_of_any(), importance=LOW),
    broker_key(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        mode=PER_BROKER,
        importance=LOW,
        doc="The security protocol of each listener name.",
    ),
    broker_key(
        "listeners",
        LIST,
        ("PLAINTEXT://:9092",),
        check=list_of_any(allow_empty=False),
        mode=PER_BROKER,
        importance=HIGH,
        doc="Addresses to listen on, as NAME://host:port.",
    ),
    broker_key(
        "max.connection.creation.rate",
        INT,
        INT32_MAX,
        check=at_least(0),
        mode=CLUSTER_WIDE,
        doc="Most new connections per second.",
    ),
    broker_key(
        "max.connections",
        INT,
        INT32_MAX,
        check=at_least(0),
        mode=CLUSTER_WIDE,
        doc="Most connections at the same time.",
    ),
    broker_key(
        "max.connections.per.ip",
        INT,
        INT32_MAX,
        check=at_least(0),
        mode=CLUSTER_WIDE,
        doc="Most connections at the same time from one address.",
    ),
    broker_key(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        mode=CLUSTER_WIDE,
        doc="Limits for single addresses, as host:number,host:number.",
    ),
    broker_key(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        check=at_least(0),
        doc="Most incremental fetch sessions kept at the same time.",
    ),
    broker_key(
        "max.request.partition.size.limit",
        INT,
        2000,
        check=at_least(1),
        doc="Most partitions in one answer to DescribeTopicPartitions.",
    ),
    broker_key(
        "metric.reporters",
        LIST,
        ("org.apache.kafka.common.metrics.JmxReporter",),
        check=list_of_any(),
        mode=CLUSTER_WIDE,
        importance=LOW,
    ),
    broker_key("metrics.num.samples", INT, 2, check=at_least(1), importance=LOW),
    broker_key("metrics.recording.level", STRING, "INFO", importance=LOW),
    broker_key("metrics.sample.window.ms", LONG, 30_000, check=at_least(1), importance=LOW),
    broker_key(
        "node.id",
        INT,
        -1,
        check=at_least(-1),
        importance=HIGH,
        doc="The number of this broker; -1 has one generated, which is then kept.",
    ),
    broker_key(
        "num.io.threads",
        INT,
        8,
        check=at_least(1),
        mode=CLUSTER_WIDE,
        importance=HIGH,
        doc="Number of threads for disk reads that would make the network wait.",
    ),
    broker_key("num.network.threads", INT, 3, check=at_least(1), mode=CLUSTER_WIDE, importance=HIGH),
    broker_key(
        "num.partitions", INT, 1, check=at_least(1), doc="Partitions of a topic created without saying how many."
    ),
    broker_key(
        "process.roles",
        LIST,
        ("broker", "controller"),
        check=list_of("broker", "controller", allow_empty=False),
        importance=HIGH,
        doc="What this process is: broker, controller or both.",
    ),
    broker_key("producer.purgatory.purge.interval.requests", INT, 1000),
    broker_key("queued.max.request.bytes", LONG, -1, doc="Most bytes of requests being handled; -1 is no limit."),
    broker_key(
        "queued.max.requests",
        INT,
        500,
        check=at_least(1),
        importance=HIGH,
        doc="Most requests being handled at the same time.",
    ),
    broker_key(
        "quota.window.num", INT, 11, check=at_least(1), importance=LOW, doc="Number of samples kept for client quotas."
    ),
    broker_key(
        "quota.window.size.seconds",
        INT,
        1,
        check=at_least(1),
        importance=LOW,
        doc="Length of each sample of client quotas.",
    ),
    broker_key(
        "request.timeout.ms", INT, 30_000, importance=HIGH, doc="How long a broker waits for an answer of another."
    ),
    broker_key("server.max.startup.time.ms", LONG, INT64_MAX, check=at_least(0), internal=True),
    broker_key(
        "socket.connection.setup.timeout.max.ms",
        LONG,
        30_000,
        doc="Longest wait for a connection to be set up, after several failures.",
    ),
    broker_key("socket.connection.setup.timeout.ms", LONG, 10_000, doc="How long setting up a connection may take."),
    broker_key(
        "socket.listen.backlog.size", INT, 50, check=at_least(1), doc="Connections that may wait for being accepted."
    ),
    broker_key(
        "socket.receive.buffer.bytes",
        INT,
        102_400,
        importance=HIGH,
        doc="Receive buffer of a connection; -1 leaves it to the system.",
    ),
    broker_key(
        "socket.request.max.bytes",
        INT,
        104_857_600,
        check=at_least(1),
        importance=HIGH,
        doc="Largest request that is taken.",
    ),
    broker_key(
        "socket.send.buffer.bytes",
        INT,
        102_400,
        importance=HIGH,
        doc="Send buffer of a connection; -1 leaves it to the system.",
    ),
    broker_key("telemetry.max.bytes", INT, 1_048_576, check=at_least(1), importance=LOW),
    broker_key("unstable.api.versions.enable", BOOLEAN, False, importance=HIGH, internal=True),
    broker_key("unstable.feature.versions.enable", BOOLEAN, False, importance=HIGH, internal=True),
)
