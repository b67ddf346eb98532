"""Turning an answer that promised something into one that says it could not be done."""

from __future__ import annotations

from typing import Any

from headrace.errors import KafkaError
from headrace.protocol.schema import Schema


def _is_place(name: str) -> bool:
    """Whether a field of an answer says if what was asked for is done. Some answers have several, of several things."""
    return name.endswith("error_code") and name != "topic_config_error_code"  # why a configuration is not shown


def refuse(response: Any, error: KafkaError, *, everywhere: bool = False) -> bool:
    """Put the error in every place of a response that said there was none; whether there was such a place.

    `everywhere`: also where it said that there was another, which may be as wrong.
    """
    if isinstance(response, list):
        refused = [refuse(item, error, everywhere=everywhere) for item in response]
        return any(refused)
    schema = getattr(response, "SCHEMA", None)
    if not isinstance(schema, Schema):
        return False
    found = False
    for declared in schema.fields:
        value = getattr(response, declared.name)
        if not _is_place(declared.name):
            found |= refuse(value, error, everywhere=everywhere)
            continue
        found = True
        if value == 0 or everywhere:
            setattr(response, declared.name, error.code)
            if (everywhere and hasattr(response, "error_message")) or getattr(response, "error_message", "") is None:
                response.error_message = error.message
    return found


def refuse_topics(response: Any, name: str, error: KafkaError) -> None:
    """Put the error where an answer said of a topic of that name that all was well (CreateTopics, CreatePartitions)."""
    for result in (*getattr(response, "topics", ()), *getattr(response, "results", ())):
        if getattr(result, "name", None) == name:
            refuse(result, error)


def tells(response: Any, code: int) -> bool:
    """Whether an answer has this error in one of its places."""
    if isinstance(response, list):
        return any(tells(item, code) for item in response)
    schema = getattr(response, "SCHEMA", None)
    if not isinstance(schema, Schema):
        return False
    return any(
        getattr(response, declared.name) == code
        if _is_place(declared.name)
        else tells(getattr(response, declared.name), code)
        for declared in schema.fields
    )
