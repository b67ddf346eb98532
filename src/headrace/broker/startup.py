"""What a broker does once, before it serves: open its directories, register, take over what it finds on disk."""

from __future__ import annotations

import base64
import logging
import os
from typing import TYPE_CHECKING

from headrace.broker.listeners import SECURITY_PROTOCOLS
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.brokers import Registration
from headrace.cluster.decision import Decision
from headrace.cluster.features import SUPPORTED_FEATURES
from headrace.cluster.image import Listener, PartitionImage, partition_record
from headrace.cluster.records import ConfigRecord, MetadataRecord, ResourceType, TopicRecord
from headrace.cluster.store.local import DIRECTORY_NAME, LocalStore
from headrace.cluster.topic_names import INTERNAL_TOPICS, name_problem
from headrace.errors import KafkaStorageError
from headrace.log import Found, Log, LogDirectories
from headrace.runtime import Runtime
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker")

HELD_BYTES_DEFAULT = 512 * 1024 * 1024


def address_overrides(config: BrokerConfig) -> dict[str, int]:
    """`max.connections.per.ip.overrides`: address:count, separated by commas."""
    text = str(config["max.connections.per.ip.overrides"] or "")
    pairs = (item.rpartition(":") for item in text.split(",") if item.strip())
    return {address.strip(): int(count) for address, _, count in pairs}


def held_bytes_max(config: BrokerConfig) -> int:
    """`queued.max.request.bytes`. Kafka's default is no limit at all, which is none to have."""
    given = config.get_int("queued.max.request.bytes")
    return given if given > 0 else HELD_BYTES_DEFAULT


def open_directories(runtime: Runtime, config: BrokerConfig) -> LogDirectories:
    """Lock the log directories and find out who we are. Blocking."""
    return LogDirectories.open(
        runtime,
        config.log_dirs,
        node_id=config.node_id if config.node_id >= 0 else None,
        producer_expiration_ms=config.get_int("producer.id.expiration.ms"),
    )


def open_store(runtime: Runtime, directories: LogDirectories, config: BrokerConfig) -> LocalStore:
    """The metadata log, in `metadata.log.dir`, or where it is, or in the first log directory. Blocking."""
    named = config["metadata.log.dir"]
    if named:
        return LocalStore.open(runtime, str(named))
    online = directories.online_paths
    holding = [path for path in online if runtime.disk.is_dir(os.path.join(path, DIRECTORY_NAME))]
    offline = [path for path in directories.paths if path not in online]
    if not holding and offline:
        # A new metadata log would not know the topics there are, and would be there twice later on.
        raise KafkaStorageError(
            f"{', '.join(offline)} cannot be used, and may hold the metadata of this cluster: repair it, or set "
            "metadata.log.dir to begin with new metadata elsewhere"
        )
    return LocalStore.open(runtime, (holding or online)[0])


def registration(broker: Broker) -> Registration:
    """What this broker tells of itself."""
    listeners = [
        Listener(setting.name, setting.advertised_host, setting.public_port, SECURITY_PROTOCOLS[setting.protocol])
        for setting in broker.listener_settings
    ]
    rack = broker.started_with["broker.rack"]
    return Registration(
        node_id=broker.node_id,
        incarnation_id=broker.runtime.uuid(),
        listeners=listeners,
        rack=None if rack is None else str(rack),
        directories=[_raw_id(text) for text in broker.directories.directory_ids().values()],
        features=[(name, known.low, known.high) for name, known in SUPPORTED_FEATURES.items()],
    )


def _raw_id(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


async def open_logs(broker: Broker) -> dict[TopicPartition, Log]:
    """Open every log; those that no metadata knows, on a first start, are taken over as topics."""
    unknown: list[Found] = []
    if not broker.image.topics:
        unknown = await broker.runtime.offload(broker.directories.scan)
    logs = await broker.directories.open_logs_in_parallel(broker.log_config)
    if unknown:
        await broker.metadata.change(lambda: adopt(broker, unknown, logs))
        for partition, opened in logs.items():
            opened.config = broker.log_config(partition.topic)
    return logs


def adopt(broker: Broker, found: list[Found], logs: dict[TopicPartition, Log]) -> Decision[None]:
    """Make topics of the logs of a data directory that came without metadata, such as one of Apache Kafka.

    Their configs are not known. So that nothing is deleted that was meant to stay, they keep everything until someone
    sets `retention.ms`.
    """
    by_topic: dict[str, dict[int, Found]] = {}
    for entry in found:
        if name_problem(entry.partition.topic) is None:
            by_topic.setdefault(entry.partition.topic, {})[entry.partition.partition] = entry
    records: list[MetadataRecord] = []
    for topic, partitions in sorted(by_topic.items()):
        known = next((entry.topic_id for entry in partitions.values() if entry.topic_id is not None), None)
        topic_id = known or broker.runtime.uuid()
        records.append(TopicRecord(name=topic, topic_id=topic_id))
        for index in range(max(partitions) + 1):
            opened = logs.get(TopicPartition(topic, index))
            epoch = 0 if opened is None else opened.leader_epoch + 1
            node = (broker.node_id,)
            state = PartitionImage(
                replicas=node, isr=node, leader=broker.node_id, leader_epoch=epoch, partition_epoch=0
            )
            records.append(partition_record(topic_id, index, state))
        configs = {"retention.ms": "-1"}
        if topic in INTERNAL_TOPICS:
            internal = broker.controller.internal_topic(broker.image, topic)
            configs = {entry.name: entry.value or "" for entry in internal.configs}
        records += [
            ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic, name=name, value=value)
            for name, value in configs.items()
        ]
        log.warning("%s was found on disk without metadata and is taken over (%s)", topic, _shown(configs))
    return Decision(None, records)


def _shown(configs: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in configs.items())
