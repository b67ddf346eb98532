"""Turning an answer that promised something into one that says it could not be done."""

from __future__ import annotations

from typing import Any

from headrace.errors import KafkaError
from headrace.protocol.schema import Schema


def refuse(response: Any, error: KafkaError) -> bool:
    """Put the error in every place of a response that said there was none; whether there was such a place."""
    if isinstance(response, list):
        refused = [refuse(item, error) for item in response]
        return any(refused)
    schema = getattr(response, "SCHEMA", None)
    if not isinstance(schema, Schema):
        return False
    found = False
    for declared in schema.fields:
        value = getattr(response, declared.name)
        if declared.name != "error_code":
            found |= refuse(value, error)
            continue
        found = True
        if value == 0:
            response.error_code = error.code
            if getattr(response, "error_message", "") is None:
                response.error_message = error.message
    return found


def refuse_topics(response: Any, name: str, error: KafkaError) -> None:
    """Put the error where an answer said of a topic of that name that all was well (CreateTopics, CreatePartitions)."""
    for result in (*getattr(response, "topics", ()), *getattr(response, "results", ())):
        if getattr(result, "name", None) == name:
            refuse(result, error)
