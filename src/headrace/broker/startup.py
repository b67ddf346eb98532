"""What a broker does once, before it serves: open its directories, register, take over what it finds on disk."""

from __future__ import annotations

import base64
import contextlib
import functools
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.broker.listeners import SECURITY_PROTOCOLS, ListenerSetting
from headrace.broker.metadata.service import MetadataService
from headrace.broker.view import ClusterView
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.brokers import Registration
from headrace.cluster.decision import Decision
from headrace.cluster.features import SUPPORTED_FEATURES
from headrace.cluster.image import Endpoint, Image, InconsistentMetadataError, PartitionImage, partition_record
from headrace.cluster.records import ConfigRecord, MetadataRecord, ProducerIdsRecord, ResourceType, TopicRecord
from headrace.cluster.store import Store
from headrace.cluster.store.directory_session import DirectorySession
from headrace.cluster.store.kazoo_session import KazooSession, ZooKeeperAccess
from headrace.cluster.store.metadata_log import DIRECTORY_NAME, MetadataLog
from headrace.cluster.store.node_store import NodeStore
from headrace.cluster.store.session import StoreSession
from headrace.cluster.topic_names import INTERNAL_TOPICS, name_problem
from headrace.config import ConfigError, Password
from headrace.errors import KafkaStorageError
from headrace.log import FoundLog, Log, LogConfig, LogDirectories, LogFate, meta_properties
from headrace.net.sasl.jaas import InvalidJaasError, parse_jaas
from headrace.net.zookeeper import kazoo_handler, zookeeper_context
from headrace.runtime import DiskError, Runtime
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.broker")

PRODUCER_IDS_SPARED = 1_000_000
"""Ids above those in the logs that may have been given out: in blocks of 1,000, to brokers and transactional ids."""

LEADER_EPOCH_MAX = 2**31 - 1
"""In the protocol it has 32 bits; one that could not rise any more can only be damage."""

_DIGEST_LOGIN = "org.apache.zookeeper.server.auth.DigestLoginModule"


def shared_store(runtime: Runtime, config: BrokerConfig) -> Store | None:
    """The store that this broker shares with others; None for a cluster of one."""
    zookeeper, directory = config["zookeeper.connect"], config["headrace.metadata.dir"]
    if zookeeper and directory:
        raise ConfigError(
            {"headrace.metadata.dir": "headrace.metadata.dir: give this or zookeeper.connect, a cluster has one store"}
        )
    timeout_s = config.get_int("zookeeper.session.timeout.ms") / 1000
    session: Callable[[], StoreSession]
    if zookeeper:
        access = zookeeper_access(config)
        session = functools.partial(KazooSession, runtime, str(zookeeper), timeout_s=timeout_s, access=access)
        where = f"ZooKeeper ({zookeeper})"
    elif directory:
        session = functools.partial(DirectorySession, runtime, str(directory), timeout_s=timeout_s)
        where = str(directory)
    else:
        return None
    _check_number(config)
    return NodeStore(runtime, session, timeout_s=timeout_s, where=where)


def zookeeper_access(config: BrokerConfig) -> ZooKeeperAccess:
    """Whether connections to ZooKeeper are TLS, and as whom this broker comes to it."""
    make_handler = None
    if config.get_bool("zookeeper.ssl.client.enable"):
        try:
            make_handler = functools.partial(kazoo_handler, zookeeper_context(config.values))
        except (ValueError, OSError) as error:
            key = "zookeeper.ssl.client.enable"
            raise ConfigError({key: f"{key}: TLS cannot be set up by zookeeper.ssl.*: {error}"}) from error
    given = config["headrace.zookeeper.digest"]
    digest = given.value if isinstance(given, Password) else None
    if digest is not None and not all(digest.partition(":")):
        raise ConfigError({"headrace.zookeeper.digest": "headrace.zookeeper.digest: give it as user:password"})
    login = _zookeeper_login(config)
    sets_acl = config.get_bool("zookeeper.set.acl")
    has_name = digest is not None or login is not None
    if sets_acl and not has_name and (make_handler is None or not config["zookeeper.ssl.keystore.location"]):
        words = (
            "ZooKeeper has to know whose the nodes are: give headrace.zookeeper.sasl.jaas.config, "
            "headrace.zookeeper.digest, or zookeeper.ssl.client.enable with a certificate in "
            "zookeeper.ssl.keystore.location, the same for all brokers"
        )
        raise ConfigError({"zookeeper.set.acl": f"zookeeper.set.acl: {words}"})
    return ZooKeeperAccess(make_handler, digest, sets_acl, login)


def _zookeeper_login(config: BrokerConfig) -> tuple[str, str] | None:
    """User and password for SASL, from the line that Kafka 3 had in the section Client of a JAAS file."""
    key = "headrace.zookeeper.sasl.jaas.config"
    given = config[key]
    if not isinstance(given, Password) or not given.value.strip():
        return None
    try:
        entry = parse_jaas(given.value)
    except InvalidJaasError as error:
        raise ConfigError({key: f"{key}: {error}"}) from error
    if entry.module != _DIGEST_LOGIN:
        words = f"the login module {entry.module} is not there towards ZooKeeper, only {_DIGEST_LOGIN} (DIGEST-MD5)"
        raise ConfigError({key: f"{key}: {words}"})
    user, password = entry.options.get("username", ""), entry.options.get("password", "")
    if not user or not password:
        raise ConfigError({key: f'{key}: {_DIGEST_LOGIN} needs username="…" and password="…"'})
    return user, password


def _check_number(config: BrokerConfig) -> None:
    """A broker that shares its metadata has a number of its own, which no other is given."""
    is_given_out, reserved = config.get_bool("broker.id.generation.enable"), config.get_int("reserved.broker.max.id")
    if config.node_id < 0 and not is_given_out:
        words = "each broker that shares its metadata needs a number of its own, or broker.id.generation.enable=true"
        raise ConfigError({"node.id": f"node.id: {words}"})
    if config.node_id > reserved and is_given_out:
        words = (
            f"{config.node_id} is above reserved.broker.max.id={reserved}, where numbers are given out: take a smaller "
            "one, raise reserved.broker.max.id, or set broker.id.generation.enable=false"
        )
        raise ConfigError({"node.id": f"node.id: {words}"})


def known_identity(runtime: Runtime, config: BrokerConfig) -> tuple[str | None, int | None]:
    """The cluster that the log directories are of, and this broker's number, as far as they say. Blocking."""
    for path in config.log_dirs:
        with contextlib.suppress(DiskError):
            found = meta_properties.read(runtime.disk, os.path.abspath(path))
            if found is not None:
                return found.cluster_id, found.node_id
    return None, None


def open_directories(
    runtime: Runtime, config: BrokerConfig, cluster_id: str | None = None, node_id: int | None = None
) -> LogDirectories:
    """Lock the log directories and find out who we are; `node_id` is for where neither they nor the settings say so.

    Blocking.
    """
    return LogDirectories.open(
        runtime,
        config.log_dirs,
        node_id=config.node_id if config.node_id >= 0 else node_id,
        cluster_id=cluster_id,
        metadata_path=str(config["metadata.log.dir"]) if config["metadata.log.dir"] else None,
        producer_expiration_ms=config.get_int("producer.id.expiration.ms"),
    )


def open_metadata_log(runtime: Runtime, directories: LogDirectories, config: BrokerConfig) -> MetadataLog:
    """The metadata log, in `metadata.log.dir`, or where it is, or in the first log directory. Blocking."""
    online = directories.online_paths
    holding = [path for path in online if runtime.disk.is_dir(os.path.join(path, DIRECTORY_NAME))]
    named = config["metadata.log.dir"]
    if named:
        parent = os.path.abspath(str(named))
        others = [path for path in holding if path != parent]
        if others and not runtime.disk.is_dir(os.path.join(parent, DIRECTORY_NAME)):
            raise InconsistentMetadataError(
                f"the metadata of this cluster is in {', '.join(others)}, but metadata.log.dir is {parent}: move "
                f"{DIRECTORY_NAME} there, or take it away to begin with new metadata"
            )
        if others:
            log.warning("the metadata log in %s is not used: metadata.log.dir is %s", ", ".join(others), parent)
        return MetadataLog.open(runtime, parent)
    if len(holding) > 1:
        raise InconsistentMetadataError(
            f"{' and '.join(holding)} each hold a metadata log: say with metadata.log.dir which of them counts"
        )
    offline = [path for path in directories.paths if path not in online]
    if not holding and offline:
        # A new metadata log would not know the topics there are, and would be there twice later on.
        raise KafkaStorageError(
            f"{', '.join(offline)} cannot be used, and may hold the metadata of this cluster: repair it, or set "
            "metadata.log.dir to begin with new metadata elsewhere"
        )
    return MetadataLog.open(runtime, (holding or online)[0])


@dataclass(frozen=True, slots=True)
class StartData:
    """A broker's directories, and what the metadata says of them."""

    runtime: Runtime
    cluster: ClusterView
    directories: LogDirectories
    metadata: MetadataService
    #: The configuration in effect for the logs of a topic.
    log_config: Callable[[str], LogConfig]
    #: Whether no other broker shares the metadata.
    is_alone: bool


def missing_directories(data: StartData, logs: Mapping[TopicPartition, Log]) -> list[bytes]:
    """The ids of directories that were here and are not: not mounted, say, or taken out of `log.dirs`.

    Only as long as there are partitions whose logs may be in them.
    """
    missing = _ids_not_here(data)
    unopened = data.directories.unopened
    for topic in data.cluster.image.topics.values() if missing else ():
        for index, state in enumerate(topic.partitions):
            key = TopicPartition(topic.name, index)
            if data.cluster.node_id in state.replicas and key not in logs and key not in unopened:
                return missing
    return []


def _ids_not_here(data: StartData) -> list[bytes]:
    known = data.cluster.image.brokers.get(data.cluster.node_id)
    here = {_raw_id(text) for text in data.directories.directory_ids().values()}
    return [directory for directory in (known.directories if known is not None else ()) if directory not in here]


def _lacks_a_log(data: StartData, logs: Mapping[TopicPartition, Log]) -> bool:
    """Whether there is no log of a replica that had everything when it was stopped: its directory is gone, say."""
    node_id = data.cluster.node_id
    return any(
        TopicPartition(topic.name, index) not in logs
        for topic in data.cluster.image.topics.values()
        for index, state in enumerate(topic.partitions)
        if node_id in state.isr or node_id in state.eligible
    )


def registration(
    data: StartData, listeners: Sequence[ListenerSetting], missing: list[bytes], logs: Mapping[TopicPartition, Log]
) -> Registration:
    """What this broker tells of itself. `missing` directories stay its own, so that the next start looks for them.

    Where a log is missing it does not count as stopped cleanly: nobody is to take it for one that has everything.
    """
    endpoints = [
        Endpoint(setting.name, setting.advertised_host, setting.public_port, SECURITY_PROTOCOLS[setting.protocol])
        for setting in listeners
    ]
    rack = data.cluster.started_with["broker.rack"]
    return Registration(
        node_id=data.cluster.node_id,
        incarnation_id=data.cluster.incarnation,
        listeners=endpoints,
        rack=None if rack is None else str(rack),
        directories=[*map(_raw_id, data.directories.directory_ids().values()), *missing],
        features=[(name, known.low, known.high) for name, known in SUPPORTED_FEATURES.items()],
        stopped_in_epoch=-1 if _lacks_a_log(data, logs) else data.directories.stopped_in_epoch,
    )


def _raw_id(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


async def open_logs(data: StartData) -> dict[TopicPartition, Log]:
    """Open every log of a topic that the metadata knows; where there is no metadata yet, make topics of the logs."""
    was_used = data.cluster.node_id in data.cluster.image.brokers or data.metadata.deleted_before
    if not data.cluster.image.topics and not was_used and data.is_alone:
        # No broker ever came to serve with this metadata: it is new, and the logs are from before it. What several
        # share is never made from what one of them has.
        return await _adopt_all(data)
    return await data.directories.open_logs_in_parallel(
        data.log_config, functools.partial(fate_of, data), bring_back=not _ids_not_here(data)
    )


def fate_of(data: StartData, partition: TopicPartition, topic_id: bytes | None) -> LogFate:
    """What the metadata says of a log. One that it does not know is kept: it may be the metadata that is wrong."""
    if topic_id is None:
        # It is damaged, from before there were ids, or its id was lost in a crash, before anything was written to it.
        # So its name has to do.
        return LogFate.SET_ASIDE if data.cluster.image.partition(*partition) is None else LogFate.OPENED
    topic = data.cluster.image.topics_by_id.get(topic_id)
    if topic is None:
        return LogFate.DELETED if topic_id in data.metadata.deleted_before else LogFate.SET_ASIDE
    is_here = topic.name == partition.topic and partition.partition < len(topic.partitions)
    return LogFate.OPENED if is_here else LogFate.SET_ASIDE


async def _adopt_all(data: StartData) -> dict[TopicPartition, Log]:
    found = await data.runtime.offload(data.directories.scan)
    partitions = {entry.partition for entry in found}
    logs = await data.directories.open_logs_in_parallel(
        data.log_config, lambda partition, _: LogFate.OPENED if partition in partitions else LogFate.SET_ASIDE
    )
    if found:
        await data.metadata.change(lambda image: adopt(data, found, logs))
        for partition, opened in logs.items():
            opened.config = data.log_config(partition.topic)
    return logs


def adopt(data: StartData, found: list[FoundLog], logs: dict[TopicPartition, Log]) -> Decision[None]:
    """Make topics of the logs of a data directory that came without metadata, such as one of Apache Kafka.

    Their configs are not known. So that nothing is deleted that was meant to stay, they keep everything until someone
    sets `retention.ms`. Logs of another topic id than most of a topic's are left out.
    """
    by_topic: dict[str, dict[int, FoundLog]] = {}
    for entry in found:
        if name_problem(entry.partition.topic) is None:
            by_topic.setdefault(entry.partition.topic, {})[entry.partition.partition] = entry
    records: list[MetadataRecord] = []
    taken: set[bytes] = set()
    for topic, partitions in sorted(by_topic.items()):
        ids = Counter(entry.topic_id for entry in partitions.values() if entry.topic_id is not None)
        topic_id = ids.most_common(1)[0][0] if ids else data.runtime.uuid()
        if topic_id in taken:
            log.error("%s has the id of another topic, of which it is a copy: it is not taken over", topic)
            continue
        taken.add(topic_id)
        count = 1 + max(index for index, entry in partitions.items() if entry.topic_id in (None, topic_id))
        records += _adopted(data, topic, topic_id, count, logs)
    known = [producer_id for opened in logs.values() for producer_id in opened.producers.producers]
    if known:
        # A new producer with an id that a log knows would have its first records taken for ones that are there already.
        first = max(known) + 1 + PRODUCER_IDS_SPARED
        records.append(ProducerIdsRecord(broker_id=data.cluster.node_id, broker_epoch=-1, next_producer_id=first))
    return Decision(None, records)


def _adopted(
    data: StartData, topic: str, topic_id: bytes, count: int, logs: dict[TopicPartition, Log]
) -> list[MetadataRecord]:
    records: list[MetadataRecord] = [TopicRecord(name=topic, topic_id=topic_id)]
    node = (data.cluster.node_id,)
    for index in range(count):
        opened = logs.get(TopicPartition(topic, index))
        epoch = 0 if opened is None else opened.leader_epoch + 1
        state = PartitionImage(
            replicas=node, isr=node, leader=data.cluster.node_id, leader_epoch=epoch, partition_epoch=0
        )
        records.append(partition_record(topic_id, index, state))
    configs = {"retention.ms": "-1"}
    if topic in INTERNAL_TOPICS:
        internal = data.metadata.controller.internal_topic(data.cluster.image, topic)
        configs = {entry.name: entry.value or "" for entry in internal.configs}
    records += [
        ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic, name=name, value=value)
        for name, value in configs.items()
    ]
    log.warning("%s was found on disk without metadata and is taken over (%s)", topic, _shown(configs))
    return records


async def raise_epochs(data: StartData, logs: Mapping[TopicPartition, Log]) -> None:
    """Let the metadata know of no older leader epochs than the logs do, before any of them is led.

    A topic was taken over while the directory of one of its logs was away, say, or an older copy of the metadata put
    back. What is appended has to be of a later epoch than what is there. Metadata that brokers share is no broker's to
    correct: one of an older epoch may be right where another's log is wrong.
    """
    if data.is_alone:
        await data.metadata.change(lambda image: _epochs_above(image, logs))


def _epochs_above(image: Image, logs: Mapping[TopicPartition, Log]) -> Decision[None]:
    records: list[MetadataRecord] = []
    for key, opened in logs.items():
        state = image.partition(*key)
        if state is None or opened.topic_id not in (None, image.topics[key.topic].topic_id):
            continue
        if state.leader_epoch < opened.leader_epoch < LEADER_EPOCH_MAX:
            log.warning(
                "%s: its log is of leader epoch %d, of which the metadata does not know (%d): it goes on after that",
                key,
                opened.leader_epoch,
                state.leader_epoch,
            )
            raised = replace(state, leader_epoch=opened.leader_epoch + 1, partition_epoch=state.partition_epoch + 1)
            records.append(partition_record(image.topics[key.topic].topic_id, key.partition, raised))
    return Decision(None, records)


def _shown(configs: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in configs.items())
