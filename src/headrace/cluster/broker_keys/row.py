"""The tables of all broker configuration keys of Kafka 4.3 (`*.txt` beside this, one per area), as they are loaded.

A row is `name | type | default | what values may be; importance; who may change it`, with its documentation below it,
indented. Of medium importance, read-only and for every value of the type is what says nothing else. A key without
documentation is taken so that a configuration made for Kafka works, and changes nothing here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.config import (
    Check,
    ConfigKey,
    ConfigType,
    Importance,
    any_of,
    at_least,
    between,
    list_of,
    list_of_any,
    non_empty,
    one_of,
    parse_value,
)


class UpdateMode(enum.Enum):
    """Whether a key can change while the broker runs, and for whom at once; the values are Kafka's words."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


AREAS: Final = ("server", "log", "replication", "groups", "security", "remote")
_INERT_DOC: Final = "Accepted, as Kafka has it; it changes nothing here."
_IMPORTANCE: Final = {"high": Importance.HIGH, "low": Importance.LOW}
_MODES: Final = {mode.value: mode for mode in UpdateMode}
_LISTS: Final = {
    "no element twice": list_of_any(),
    "no element twice, not empty": list_of_any(allow_empty=False),
    "null or no element twice": list_of_any(allow_null=True),
    "null or no element twice, not empty": list_of_any(allow_empty=False, allow_null=True),
    "not empty": non_empty(),
}


@dataclass(frozen=True, slots=True)
class BrokerKey:
    """A key of the broker: how it may change, and whether it does anything.

    `internal` keys are not shown by DescribeConfigs, and `dynamic_only` ones (throttles) exist only as dynamic
    configuration.
    """

    key: ConfigKey
    mode: UpdateMode
    inert: bool
    internal: bool
    dynamic_only: bool

    @property
    def name(self) -> str:
        return self.key.name


def load(area: str) -> Iterator[BrokerKey]:
    """The rows of one table."""
    row, doc = "", ""
    for line in Path(__file__).with_name(f"{area}.txt").read_text("utf-8").splitlines():
        if line.startswith(" "):
            doc = f"{doc} {line.strip()}" if doc else line.strip()
        elif line and not line.startswith("#"):
            if row:
                yield _key(row, doc)
            row, doc = line, ""
    yield _key(row, doc)


def _key(row: str, doc: str) -> BrokerKey:
    name, type_name, default, rest = [column.strip() for column in f"{row} |".split("|")][:4]
    type_ = ConfigType[type_name.upper()]
    check, importance, mode, flags = None, Importance.MEDIUM, UpdateMode.READ_ONLY, set()
    for word in filter(None, rest.split("; ")):
        if word in _IMPORTANCE:
            importance = _IMPORTANCE[word]
        elif word in _MODES:
            mode = _MODES[word]
        elif word in ("internal", "dynamic only"):
            flags.add(word)
        else:
            check = _check(word)
    value = None if default == "null" else parse_value(type_, default)
    key = ConfigKey(name, type_, value, check, doc=doc or _INERT_DOC, importance=importance)
    return BrokerKey(key, mode, not doc, "internal" in flags, "dynamic only" in flags)


def _check(words: str) -> Check:
    if words in _LISTS:
        return _LISTS[words]
    if words.startswith("at least "):
        return at_least(_number(words.removeprefix("at least ")))
    for start, check in (("some of ", list_of), ("any of ", list_of)):
        if words.startswith(start):
            return check(*words.removeprefix(start).split(), allow_empty=start == "any of ")
    if words.startswith(("one of ", "in any case one of ")):
        allowed = words.partition("one of ")[2].split()
        return one_of(*allowed, ignore_case=words.startswith("in any case"))
    if " or " in words:
        return any_of(*map(_check, words.split(" or ")))
    low, _, high = words.partition(" to ")
    return between(_number(low), _number(high)) if high else one_of(int(low))


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)
