"""What the console may change, where it was started with `--allow-changes`; each by its name, with what it needs.

What destroys something has to be confirmed by typing the name of what goes. Every change is written to the audit log,
whether it was done or refused.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from headrace.aio import Producer
from headrace.client.admin import AlterConfigOp, ConfigResource, ElectionType, NewTopic, OpType, ResourceType
from headrace.client.other_names import in_kafkas_words
from headrace.client.producer.config import PRODUCER_CONFIGS
from headrace.console.cluster import Cluster
from headrace.console.groups import preview_reset, reset_to
from headrace.parallel.deadletters import DeadLetters
from headrace.topics import TopicPartition

Change: TypeAlias = Callable[[Cluster, Mapping[str, Any]], Awaitable[Any]]


class ChangeError(ValueError):
    """A change lacks something, or is not confirmed."""


def _text(wanted: Mapping[str, Any], name: str) -> str:
    found = wanted.get(name)
    if not isinstance(found, str) or not found:
        raise ChangeError(f"{name} is missing")
    return found


def _number(wanted: Mapping[str, Any], name: str, default: int | None = None) -> int:
    found = wanted.get(name, default)
    if not isinstance(found, int) or isinstance(found, bool):
        raise ChangeError(f"{name} is no whole number")
    return found


def _confirmed(wanted: Mapping[str, Any], name: str) -> None:
    if wanted.get("confirm") != name:
        raise ChangeError(f"type {name!r} to confirm")


async def create_topic(cluster: Cluster, wanted: Mapping[str, Any]) -> Any:
    configs = wanted.get("configs") or {}
    if not isinstance(configs, dict):
        raise ChangeError("configs is no object")
    topic = NewTopic(
        _text(wanted, "topic"), _number(wanted, "partitions", -1), _number(wanted, "replicas", -1), configs
    )
    made = (await cluster.admin.create_topics([topic])).all()[topic.name]
    return {"topic": made.name, "partitions": made.num_partitions}


async def delete_topic(cluster: Cluster, wanted: Mapping[str, Any]) -> Any:
    topic = _text(wanted, "topic")
    _confirmed(wanted, topic)
    (await cluster.admin.delete_topics([topic])).all()
    return {"topic": topic}


async def truncate_topic(cluster: Cluster, wanted: Mapping[str, Any]) -> Any:
    """Delete all records that are there now; the topic stays."""
    topic = _text(wanted, "topic")
    _confirmed(wanted, topic)
    described = (await cluster.admin.describe_topics([topic]))[topic]
    ends = await cluster.ends([TopicPartition(topic, info.partition) for info in described.partitions])
    (await cluster.admin.delete_records(ends)).all()
    return {"topic": topic, "before": {str(one.partition): end for one, end in ends.items()}}


async def add_partitions(cluster: Cluster, wanted: Mapping[str, Any]) -> Any:
    topic = _text(wanted, "topic")
    (await cluster.admin.create_partitions({topic: _number(wanted, "partitions")})).all()
    return {"topic": topic}


async def set_config(cluster: Cluster, wanted: Mapping[str, Any]) -> Any:
    """Set a topic's configuration, or with the value null take it back to its default."""
    resource = ConfigResource(ResourceType.TOPIC, _text(wanted, "topic"))
    name, value = _text(wanted, "name"), wanted.get("value")
    operation = AlterConfigOp(name, None, OpType.DELETE) if value is None else AlterConfigOp(name, str(value))
    (await cluster.admin.incremental_alter_configs({resource: [operation]})).all()
    return {"name": name}


async def produce(cluster: Cluster, wanted: Mapping[str, Any]) -> Any:
    """One message. Key and value are texts, or base64."""
    words = in_kafkas_words({"client.id": "headrace-console", **cluster.settings.client}, PRODUCER_CONFIGS)
    settings = {name: value for name, value in words.items() if name in PRODUCER_CONFIGS}
    headers = [(str(name), str(value).encode()) for name, value in dict(wanted.get("headers") or {}).items()]
    partition = wanted.get("partition")
    async with Producer(settings) as producer:
        told = await producer.send(
            _text(wanted, "topic"),
            _bytes(wanted, "value"),
            key=_bytes(wanted, "key"),
            headers=headers,
            partition=partition if isinstance(partition, int) else None,
        )
    return {"partition": told.partition, "offset": told.offset}


def _bytes(wanted: Mapping[str, Any], name: str) -> bytes | None:
    found = wanted.get(name)
    if found is None:
        return None
    if wanted.get(f"{name}_format") == "base64":
        return base64.b64decode(str(found), validate=True)
    return str(found).encode()


async def reset_group(cluster: Cluster, wanted: Mapping[str, Any]) -> Any:
    group = _text(wanted, "group")
    _confirmed(wanted, group)
    return await preview_reset(cluster, group, reset_to(wanted), topics_of(wanted), dry_run=False)


def topics_of(wanted: Mapping[str, Any]) -> list[str | TopicPartition] | None:
    """What a reset is limited to: topics, or partitions as `[topic, number]`."""
    given = wanted.get("topics")
    if not given:
        return None
    return [TopicPartition(str(one[0]), int(one[1])) if isinstance(one, list) else str(one) for one in given]


async def delete_group(cluster: Cluster, wanted: Mapping[str, Any]) -> Any:
    group = _text(wanted, "group")
    _confirmed(wanted, group)
    (await cluster.admin.delete_groups([group])).all()
    return {"group": group}


async def abort_transaction(cluster: Cluster, wanted: Mapping[str, Any]) -> Any:
    """End a hanging transaction in one partition: its records there are never read as committed."""
    partition = TopicPartition(_text(wanted, "topic"), _number(wanted, "partition"))
    _confirmed(wanted, str(partition))
    epoch = wanted.get("coordinator_epoch")
    await cluster.admin.abort_transaction(
        partition,
        _number(wanted, "producer"),
        _number(wanted, "epoch"),
        epoch if isinstance(epoch, int) else None,
    )
    return {"partition": str(partition)}


async def put_back(cluster: Cluster, wanted: Mapping[str, Any]) -> Any:
    """A dead letter goes back to the topic that it came from, without what the retries added."""
    topic, partition, offset = _text(wanted, "topic"), _number(wanted, "partition"), _number(wanted, "offset")
    put: list[str] = []

    def work() -> int:
        with DeadLetters(cluster.consumer_settings(), topic) as letters:
            return letters.redrive(
                lambda one: (one.record.partition, one.record.offset) == (partition, offset),
                on_each=lambda letter, target: put.append(target),
            )

    if not await asyncio.to_thread(work):
        raise ChangeError("there is no such dead letter, or it was put back already")
    return {"topic": put[0]}


async def elect_preferred(cluster: Cluster, wanted: Mapping[str, Any]) -> Any:
    """Let the first replicas lead again, of these partitions or of all."""
    given = wanted.get("partitions")
    partitions = [TopicPartition(str(one[0]), int(one[1])) for one in given] if given else None
    done = await cluster.admin.elect_leaders(partitions, election_type=ElectionType.PREFERRED)
    return {"elected": len(done.ok), "errors": sorted({str(error) for error in done.errors.values()})}


async def cancel_move(cluster: Cluster, wanted: Mapping[str, Any]) -> Any:
    partition = TopicPartition(_text(wanted, "topic"), _number(wanted, "partition"))
    (await cluster.admin.alter_partition_reassignments({partition: None})).all()
    return {"partition": str(partition)}


CHANGES: dict[str, Change] = {
    "create-topic": create_topic,
    "delete-topic": delete_topic,
    "truncate-topic": truncate_topic,
    "add-partitions": add_partitions,
    "set-config": set_config,
    "produce": produce,
    "reset-group": reset_group,
    "delete-group": delete_group,
    "abort-transaction": abort_transaction,
    "put-back": put_back,
    "elect-preferred": elect_preferred,
    "cancel-move": cancel_move,
}
#: What of a change the audit log does not have: messages are not its business.
NOT_AUDITED = frozenset({"value", "key", "headers", "confirm"})
