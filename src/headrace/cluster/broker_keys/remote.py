"""Broker configuration of tiered storage, which is not done: every key is accepted and changes nothing."""

from __future__ import annotations

from headrace.cluster.broker_keys.row import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    LONG,
    LOW,
    STRING,
    BrokerKey,
    broker_key,
)
from headrace.config import INT64_MAX, at_least, between, non_empty

REMOTE_KEYS: tuple[BrokerKey, ...] = (
    broker_key("follower.fetch.last.tiered.offset.enable", BOOLEAN, False, mode=CLUSTER_WIDE),
    broker_key("log.local.retention.bytes", LONG, -2, check=at_least(-2), mode=CLUSTER_WIDE),
    broker_key("log.local.retention.ms", LONG, -2, check=at_least(-2), mode=CLUSTER_WIDE),
    broker_key("remote.fetch.max.wait.ms", INT, 500, check=at_least(1), mode=CLUSTER_WIDE),
    broker_key("remote.list.offsets.request.timeout.ms", LONG, 30_000, check=at_least(1), mode=CLUSTER_WIDE),
    broker_key(
        "remote.log.index.file.cache.total.size.bytes",
        LONG,
        1_073_741_824,
        check=at_least(1),
        mode=CLUSTER_WIDE,
        importance=LOW,
    ),
    broker_key("remote.log.index.file.cache.ttl.ms", LONG, 900_000, check=at_least(-1), importance=LOW, internal=True),
    broker_key("remote.log.manager.copier.thread.pool.size", INT, 10, check=at_least(1), mode=CLUSTER_WIDE),
    broker_key("remote.log.manager.copy.max.bytes.per.second", LONG, INT64_MAX, check=at_least(1), mode=CLUSTER_WIDE),
    broker_key("remote.log.manager.copy.quota.window.num", INT, 11, check=at_least(1)),
    broker_key("remote.log.manager.copy.quota.window.size.seconds", INT, 1, check=at_least(1)),
    broker_key("remote.log.manager.expiration.thread.pool.size", INT, 10, check=at_least(1), mode=CLUSTER_WIDE),
    broker_key("remote.log.manager.fetch.max.bytes.per.second", LONG, INT64_MAX, check=at_least(1), mode=CLUSTER_WIDE),
    broker_key("remote.log.manager.fetch.quota.window.num", INT, 11, check=at_least(1)),
    broker_key("remote.log.manager.fetch.quota.window.size.seconds", INT, 1, check=at_least(1)),
    broker_key("remote.log.manager.follower.thread.pool.size", INT, 2, check=at_least(1), mode=CLUSTER_WIDE),
    broker_key("remote.log.manager.task.interval.ms", LONG, 30_000, check=at_least(1), importance=LOW),
    broker_key(
        "remote.log.manager.task.retry.backoff.max.ms", LONG, 30_000, check=at_least(1), importance=LOW, internal=True
    ),
    broker_key("remote.log.manager.task.retry.backoff.ms", LONG, 500, check=at_least(1), importance=LOW, internal=True),
    broker_key(
        "remote.log.manager.task.retry.jitter", DOUBLE, 0.2, check=between(0, 0.5), importance=LOW, internal=True
    ),
    broker_key("remote.log.manager.thread.pool.size", INT, 2, check=at_least(1)),
    broker_key("remote.log.metadata.custom.metadata.max.bytes", INT, 128, check=at_least(0), importance=LOW),
    broker_key(
        "remote.log.metadata.manager.class.name",
        STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        check=non_empty(),
    ),
    broker_key("remote.log.metadata.manager.class.path", STRING, None),
    broker_key("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config.", check=non_empty()),
    broker_key("remote.log.metadata.manager.listener.name", STRING, None, check=non_empty()),
    broker_key("remote.log.reader.max.pending.tasks", INT, 100, check=at_least(1)),
    broker_key("remote.log.reader.threads", INT, 10, check=at_least(1), mode=CLUSTER_WIDE),
    broker_key("remote.log.storage.manager.class.name", STRING, None, check=non_empty()),
    broker_key("remote.log.storage.manager.class.path", STRING, None),
    broker_key("remote.log.storage.manager.impl.prefix", STRING, "rsm.config.", check=non_empty()),
    broker_key("remote.log.storage.system.enable", BOOLEAN, False),
)
