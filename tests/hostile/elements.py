"""`python -m tests.hostile.elements [--ms 20]`: requests of almost as many elements as are taken, of every API key.

In every array of every request (its newest version), each element another one than before: names that are not there,
that are there, numbers. Prints which kept the event loop for longest, by the CPU's time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.broker.raw import RawClient

from headrace.broker.requests.dispatch import load_handlers
from headrace.broker.requests.element_bound import ELEMENTS_ALWAYS
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.schema import Array, Primitive
from headrace.testing import BrokerProcess

from . import holds
from .attacks import GONE, TOPIC, prepared

# Of the outer array, with one element of each inner one; or one of the outer with so many inner ones.
WIDE, DEEP = "wide", "deep"


class Tried(NamedTuple):
    api: str
    what: str
    cpu_s: float
    step: str
    answer_bytes: int


def _value(kind: Primitive, number: int, name: str, is_known: bool) -> Any:
    if kind.name == "string":
        return TOPIC if is_known and "topic" in name else f"x{number}"
    if kind.name == "bytes":
        return b"x%d" % number
    if kind.name == "uuid":
        return number.to_bytes(16, "big")
    if kind.name == "records":
        return None
    if kind.name in ("bool", "float64"):
        return kind.default
    if "type" in name or name == "level":
        return 2 + number % 3
    return number % 100 if kind.name in ("int8", "int16", "uint16") else number


def _made(cls: Any, number: int, counts: list[int], is_known: bool) -> Any:
    """A message or struct, with so many elements in the arrays at each depth."""
    values: dict[str, Any] = {}
    for field in cls.SCHEMA.fields:
        if isinstance(field.type, Primitive):
            values[field.name] = _value(field.type, number, field.name, is_known)
        elif isinstance(field.type, Array):
            count = counts[0] if counts else 1
            element = field.type.element
            if isinstance(element, Primitive):
                values[field.name] = [_value(element, place, field.name, is_known) for place in range(count)]
            else:
                values[field.name] = [_made(element, place, counts[1:], is_known) for place in range(count)]
    return cls(**values)


def _arrays(cls: Any) -> int:
    """How deep its arrays go."""
    of_fields = [
        1 + (0 if isinstance(field.type.element, Primitive) else _arrays(field.type.element))
        for field in cls.SCHEMA.fields
        if isinstance(field.type, Array)
    ]
    return max(of_fields, default=0)


def _inner(cls: Any) -> list[Any]:
    arrays = [field.type.element for field in cls.SCHEMA.fields if isinstance(field.type, Array)]
    return [element for element in arrays if not isinstance(element, Primitive) and _arrays(element)]


def _elements(cls: Any) -> int:
    """How many elements there are for each of an outer array, with one of every inner one."""
    arrays = [field.type.element for field in cls.SCHEMA.fields if isinstance(field.type, Array)]
    tagged = sum(field.tag is not None for field in cls.SCHEMA.fields)  # each counts as one, too
    return tagged + sum(1 + (0 if isinstance(element, Primitive) else _elements(element)) for element in arrays)


def of_names(cls: Any) -> Iterator[tuple[str, Any]]:
    depth = _arrays(cls)
    for is_known in (False, True):
        known = "known" if is_known else "unknown"
        if depth:
            wide = (ELEMENTS_ALWAYS - 10) // (_elements(cls) or 1)
            yield f"{WIDE}, {known} names", _made(cls, 1, [wide], is_known)
        if depth > 1:
            deep = (ELEMENTS_ALWAYS - 20) // sum(_elements(inner) for inner in _inner(cls))
            yield f"{DEEP}, {known} names", _made(cls, 1, [1, deep], is_known)


def scan(only: str = "") -> Iterator[Tried]:
    with tempfile.TemporaryDirectory() as directory:
        noted = Path(directory) / "holds"
        os.environ[holds.FILE_VARIABLE] = str(noted)
        with BrokerProcess(Path(directory) / "data", module=holds.__name__) as broker, prepared(broker.port):
            for handler in load_handlers().values():
                if only not in handler.api_key.name:
                    continue
                for what, message in of_names(handler.request_class):
                    yield _tried(broker.port, handler.api_key.name, handler.high, what, message, noted)


def _tried(port: int, api: str, version: int, what: str, message: Any, noted: Path) -> Tried:
    began = time.monotonic()
    answer_bytes = -1
    with contextlib.suppress(*GONE), RawClient(port, timeout_s=3.0) as client:
        client.request(ApiVersionsRequest(), 0)
        client.send(message, version)
        answer_bytes = len(client.read_frame())
    found = holds.read_holds(noted, began)
    cpu_s, step = found[0] if found else (0.0, "")
    return Tried(api, what, cpu_s, step, answer_bytes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.elements")
    parser.add_argument("--ms", type=float, default=20.0, help="what to print all of that took longer")
    parser.add_argument("--api", default="")
    options = parser.parse_args()
    found = sorted(scan(options.api), key=lambda one: -one.cpu_s)
    for one in found:
        if one.cpu_s * 1e3 >= options.ms:
            print(f"{one.cpu_s * 1e3:6.0f} ms  {one.api} ({one.what}): {one.step}; {one.answer_bytes} bytes answered")
    print(f"{len(found)} requests; the longest kept the loop for {found[0].cpu_s * 1e3:.0f} ms of CPU")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
