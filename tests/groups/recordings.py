"""Plays recorded conversations with a real broker on a coordinator, without a socket.

The rules of comparison are those of `tests/reference/behaviour/replay.py`; sleeps pass in virtual time, a connection is
only the name of one who waits.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import ErrorCode
from headrace.protocol import messages
from headrace.protocol.codec import decode, encode
from headrace.protocol.schema import UUID, ZERO_UUID, Array, Primitive

from .driver import Driver

BEHAVIOUR = Path(__file__).parent.parent / "reference" / "behaviour"
VARIABLE = re.compile(r"\$\{([^}]+)\}")
TRANSACTION_APIS = {"init_producer_id", "add_offsets_to_txn", "describe_transactions", "end_txn"}
# Fields to which the recordings give another name than Kafka's schema does: times lose their unit.
TIMES = {
    "throttle_time_ms",
    "session_timeout_ms",
    "rebalance_timeout_ms",
    "retention_time_ms",
    "transaction_timeout_ms",
    "transaction_start_time_ms",
}


def cases(name: str) -> Iterator[dict[str, Any]]:
    with (BEHAVIOUR / name).open() as lines:
        for line in lines:
            yield json.loads(line)


def apis_of(case: dict[str, Any]) -> set[str]:
    return {step["api"] for step in case["steps"] if "api" in step}


# --- values -----------------------------------------------------------------------------------------------------------


def as_bytes(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"x" * int(value["fill"])
    return bytes.fromhex(value[4:]) if value.startswith("hex:") else value.encode()


def as_text(raw: bytes) -> str:
    plain = raw.isascii() and raw.decode().isprintable() and not raw.startswith(b"hex:")
    return raw.decode() if plain else "hex:" + raw.hex()


def uuid_text(raw: bytes) -> str:
    return "" if raw == ZERO_UUID else base64.urlsafe_b64encode(raw).decode().rstrip("=")


def recorded_name(name: str) -> str:
    return name.removesuffix("_ms") if name in TIMES else name


def build(cls: type[Any], values: dict[str, Any]) -> Any:
    """A message from a recorded request; a field that is left out has its default."""
    fields = {recorded_name(field.name): field for field in cls.SCHEMA.fields}  # type: ignore[attr-defined]
    unknown = values.keys() - fields.keys()
    assert not unknown, f"{cls.__name__} has no {unknown}"
    return cls(**{fields[name].name: _build_value(fields[name].type, value) for name, value in values.items()})


def _build_value(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, Array):
        return [_build_value(kind.element, item) for item in value]
    if not isinstance(kind, Primitive):
        return build(kind, value)
    if kind is UUID:
        return base64.urlsafe_b64decode(value + "==") if value else ZERO_UUID
    if kind.name == "string":
        return as_bytes(value).decode()
    return as_bytes(value) if kind.name == "bytes" else value


def show(message: Any, version: int) -> dict[str, Any]:
    """A response as recordings write it: only the fields of that version."""
    out: dict[str, Any] = {}
    for field in message.SCHEMA.fields:
        if version in field.versions:
            value = getattr(message, field.name)
            if field.name.endswith("error_code"):
                out[field.name] = ErrorCode(value).name
            else:
                out[recorded_name(field.name)] = _show_value(field.type, value, version)
    return out


def _show_value(kind: Any, value: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(kind, Array):
        return [_show_value(kind.element, item, version) for item in value]
    if not isinstance(kind, Primitive):
        return show(value, version)
    if kind is UUID:
        return uuid_text(value)
    return as_text(value) if kind.name == "bytes" else value


def expand(value: Any, variables: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {expand(k, variables): expand(v, variables) for k, v in value.items()}
    if isinstance(value, list):
        return [expand(v, variables) for v in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    whole = VARIABLE.fullmatch(value)
    if whole:
        return variables[whole[1]]
    return VARIABLE.sub(lambda match: str(variables[match[1]]), value)


def differences(want: Any, got: Any, path: str = "") -> list[str]:
    if want == "<int>=0>":
        return [] if isinstance(got, int) and got >= 0 else [f"{path}: {want} is {got!r}"]
    if want in ("<text>", "<member-id>"):
        return [] if isinstance(got, str) and got else [f"{path}: {want} is {got!r}"]
    if want == "<now>":
        return [] if isinstance(got, int) and got > 0 else [f"{path}: {want} is {got!r}"]
    if want == "<any>" or (want == "<list>" and isinstance(got, list)):
        return []
    assert not (isinstance(want, str) and want.startswith("<")), f"marker {want} is not known here"
    if isinstance(want, dict) and len(want) == 1 and next(iter(want)) in ("<unordered>", "<contains>"):
        return _compare_bag(*next(iter(want.items())), got, path)
    if isinstance(want, dict) and isinstance(got, dict):
        out = [f"{path}.{key}: only on one side" for key in want.keys() ^ got.keys()]
        return out + [d for key in want.keys() & got.keys() for d in differences(want[key], got[key], f"{path}.{key}")]
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        return [d for n, (w, g) in enumerate(zip(want, got)) for d in differences(w, g, f"{path}.{n}")]
    return [] if want == got and type(want) is type(got) else [f"{path}: wanted {want!r}, got {got!r}"]


def _compare_bag(kind: str, items: list[Any], got: Any, path: str) -> list[str]:
    if not isinstance(got, list) or (kind == "<unordered>" and len(got) != len(items)):
        return [f"{path}: wanted {items!r}, got {got!r}"]
    left, missing = list(got), []
    for item in items:
        hit = next((g for g in left if not differences(item, g)), None)
        if hit is None:
            missing.append(f"{path}: no {item!r} among {left!r}")
        else:
            left.remove(hit)
    return missing


# --- a case -----------------------------------------------------------------------------------------------------------

_CLASSES: dict[str, tuple[type[Any], type[Any]]] = {}


def message_classes(api: str) -> tuple[type[Any], type[Any]]:
    if api not in _CLASSES:
        module = __import__(f"{messages.__name__}.{api}", fromlist=["*"])
        camel = "".join(word.capitalize() for word in api.split("_"))
        _CLASSES[api] = getattr(module, f"{camel}Request"), getattr(module, f"{camel}Response")
    return _CLASSES[api]


class Conversation:
    """One case under way."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        names = {"u": "0123456789", "t": "t-0123456789", "t2": "u-0123456789", "g": "g-0123456789", "x": "x-0123456789"}
        self.variables: dict[str, Any] = dict(names)
        self.waiting: dict[str, tuple[str, int, int]] = {}

    def play(self, case: dict[str, Any]) -> list[str]:
        problems = []
        for number, step in enumerate(case["steps"]):
            problems += [f"step {number} {step.get('api', '')} {problem}" for problem in self.step(step)]
        return problems

    def step(self, step: dict[str, Any]) -> list[str]:
        if "sleep" in step:
            self.driver.advance(step["sleep"])
        elif "setup_topic" in step:
            spec = expand(step["setup_topic"], self.variables)
            topic_id = self.driver.topics.create(spec["name"], spec.get("partitions", 1))
            self.variables[step.get("var", "tid")] = uuid_text(topic_id)
        elif "recv" in step:
            api, version, token = self.waiting.pop(step["recv"])
            return self.check(step, api, version, self.driver.wait(token, step.get("within", 20_000)))
        elif step["api"] in TRANSACTION_APIS:
            self.transaction(step)
        elif step["api"] == "delete_topics":
            for name in expand(step["req"]["topic_names"], self.variables):
                topic_id, _ = self.driver.topics.known.pop(name)
                self.driver.absorb(self.driver.coordinator.topics_deleted({name: topic_id}, self.driver.now))
        else:
            return self.request(step)
        return []

    def transaction(self, step: dict[str, Any]) -> None:
        """What the transaction coordinator answers is not looked at, only what it does to the group's partition."""
        for variable in step.get("capture", {}):
            self.variables[variable] = 4_711
        if step["api"] == "end_txn":
            self.driver.end_transaction(self.variables["g"], self.variables["pid"], step["req"]["committed"])

    def request(self, step: dict[str, Any]) -> list[str]:
        api, version = step["api"], step["v"]
        request_class, _ = message_classes(api)
        # Over the wire and back: a field that the version lacks must not reach the coordinator.
        request = build(request_class, expand(step.get("req", {}), self.variables))
        request = decode(request_class, version, encode(request, version))
        token = self.driver.send(api, request, version, "replay")
        if step.get("send_only"):
            self.driver.run_until(self.driver.now_ms)
            self.waiting[step.get("conn", "main")] = (api, version, token)
            return []
        return self.check(step, api, version, self.driver.wait(token, step.get("within", 20_000)))

    def check(self, step: dict[str, Any], api: str, version: int, response: Any) -> list[str]:
        _, response_class = message_classes(api)
        got = show(decode(response_class, version, encode(response, version)), version)
        for variable, path in step.get("capture", {}).items():
            value: Any = got
            for part in path.split("."):
                value = value[int(part)] if part.isdigit() else value[part]
            self.variables[variable] = value
        return differences(expand(step.get("expect", "<any>"), self.variables), got)
