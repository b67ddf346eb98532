"""An answer that is turned into a refusal says so in every place that whoever asked may look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.broker.requests.refusals import refuse, tells
from headrace.errors import ErrorCode, NotCoordinatorError
from headrace.protocol.api import ApiKey, api, declared_keys
from headrace.protocol.schema import Array, Field, Primitive

#: Of a topic that was made: why its configuration is not shown.
_BESIDE_THE_POINT = "topic_config_error_code"


def _filled(struct: type[Any]) -> Any:
    """A message with one of everything."""
    made = struct()
    for field in made.SCHEMA.fields:
        kind = field.type.element if isinstance(field.type, Array) else field.type
        if not isinstance(kind, Primitive):
            setattr(made, field.name, [_filled(kind)] if isinstance(field.type, Array) else _filled(kind))
    return made


def _places(message: Any) -> Iterator[tuple[Field, int]]:
    for field in message.SCHEMA.fields:
        value = getattr(message, field.name)
        for item in value if isinstance(value, list) else [value]:
            if hasattr(item, "SCHEMA"):
                yield from _places(item)
        if field.name.endswith("error_code") and field.name != _BESIDE_THE_POINT:
            yield field, value


@pytest.mark.parametrize("key", declared_keys(), ids=lambda key: key.name)
def test_a_refusal_is_in_every_place(key: ApiKey) -> None:
    answer = _filled(api(key).response)
    refuse(answer, NotCoordinatorError("no more"), everywhere=True)
    assert all(code == ErrorCode.NOT_COORDINATOR for _, code in _places(answer))
    assert tells(answer, ErrorCode.NOT_COORDINATOR) is any(True for _ in _places(answer))
