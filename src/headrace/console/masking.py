"""Parts of messages that the console does not show: by topic and field, before anything is searched or sent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MASKED = "•••"
_ROOTS = ("key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Mask:
    """Fields of the messages of topics. `key` or `value` alone is all of it; `value.a.b` a field of JSON."""

    topics: re.Pattern[str]
    fields: tuple[tuple[str, ...], ...]


def masks_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Mask, ...]:
    """Masks as they stand in a file; ValueError says what is wrong with one."""
    masks = []
    for row in rows:
        pattern, fields = row.get("topics"), row.get("fields")
        if not isinstance(pattern, str) or not isinstance(fields, list) or not fields:
            raise ValueError('a mask needs topics = "a pattern" and fields = ["value.card", …]')
        paths = tuple(tuple(str(name).split(".")) for name in fields)
        wrong = [".".join(path) for path in paths if path[0] not in _ROOTS]
        if wrong:
            raise ValueError(f"{wrong[0]!r} does not begin with {', '.join(_ROOTS)}")
        try:
            masks.append(Mask(re.compile(pattern), paths))
        except re.error as error:
            raise ValueError(f"topics = {pattern!r} is no pattern: {error}") from error
    return tuple(masks)


class Masking:
    """What of one topic's messages is masked."""

    def __init__(self, masks: Sequence[Mask], topic: str) -> None:
        self._paths = [path for mask in masks if mask.topics.fullmatch(topic) for path in mask.fields]

    @property
    def is_any(self) -> bool:
        return bool(self._paths)

    def header(self, name: str, value: bytes | None) -> bytes | None:
        if any(path[0] == "headers" and path[1:] in ((), (name,)) for path in self._paths):
            return MASKED.encode()
        return value

    def body(self, root: str, data: bytes | None) -> bytes | None:
        """A key or value with what is masked gone. What should be JSON and is not is masked as a whole."""
        paths = [path[1:] for path in self._paths if path[0] == root]
        if not paths or data is None:
            return data
        if () in paths:
            return MASKED.encode()
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return MASKED.encode()
        for path in paths:
            document = _masked(document, path)
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _masked(document: Any, path: tuple[str, ...]) -> Any:
    if not path:
        return MASKED
    if isinstance(document, list):
        return [_masked(one, path) for one in document]
    if isinstance(document, dict) and path[0] in document:
        return {**document, path[0]: _masked(document[path[0]], path[1:])}
    return document
