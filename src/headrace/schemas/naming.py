"""Under which subject a schema is registered: by the topic, by the record's type, or by both."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from headrace.client.errors import SerializationError
from headrace.config import ConfigError

SubjectName = Callable[[str, bool, str | None], str]
"""(topic, whether it is the key, the record's full name) → the subject."""


def topic_name(topic: str, is_key: bool, record: str | None) -> str:
    """`orders-value`: one shape per topic."""
    return f"{topic}-{'key' if is_key else 'value'}"


def record_name(topic: str, is_key: bool, record: str | None) -> str:
    """`shop.Order`: a topic may have records of many shapes, each of which evolves by itself."""
    return _needed(record, topic)


def topic_record_name(topic: str, is_key: bool, record: str | None) -> str:
    """`orders-shop.Order`: many shapes, and they evolve in each topic by themselves."""
    return f"{topic}-{_needed(record, topic)}"


_STRATEGIES: dict[str, SubjectName] = {
    "TopicNameStrategy": topic_name,
    "RecordNameStrategy": record_name,
    "TopicRecordNameStrategy": topic_record_name,
    "TOPIC": topic_name,
    "RECORD": record_name,
    "TOPIC_RECORD": topic_record_name,
}


def subject_name(settings: Mapping[str, Any], *, is_key: bool) -> SubjectName:
    """The strategy that is configured: one of Confluent's by name, or a function of one's own."""
    name = f"{'key' if is_key else 'value'}.subject.name.strategy"
    given = settings.get(name, settings.get("subject.name.strategy", "TopicNameStrategy"))
    if callable(given):
        found: SubjectName = given
        return found
    short = str(given).rpartition(".")[2]
    if short in _STRATEGIES:
        return _STRATEGIES[short]
    module, _, attribute = str(given).rpartition(".")
    try:
        own: SubjectName = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            {name: f"{name}={given} is none of {', '.join(_STRATEGIES)}, and cannot be loaded"}
        ) from error
    return own


def _needed(record: str | None, topic: str) -> str:
    if not record:
        raise SerializationError(f"the schema for {topic} has no name, and the subject is to be named after it")
    return record
