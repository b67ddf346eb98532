"""`headrace schema`, and records with schemas in `produce` and `consume`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import EmbeddedRegistry, registry

from .conftest import Command

pytestmark = pytest.mark.slow

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
MORE = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string"}]}


@pytest.fixture(scope="module")
def schemas() -> Iterator[EmbeddedRegistry]:
    with registry() as running:
        yield running


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "more.avsc").write_text(json.dumps(MORE))
    (tmp_path / "order.json").write_text('{"type": "object", "properties": {"id": {"type": "integer"}}}')
    (tmp_path / "order.proto").write_text('syntax = "proto3"; message Order { int64 id = 1; }')
    return tmp_path


def test_a_schema_is_registered_listed_checked_and_compared(
    headrace: Command, schemas: EmbeddedRegistry, files: Path
) -> None:
    where = ("--registry", schemas.url)
    done = headrace("schema", "register", "cli-value", str(files / "order.avsc"), *where)
    assert done.code == 0, done.err
    assert "version 1" in done.out
    listed = headrace("schema", "list", "--json", *where)
    assert [row["subject"] for row in json.loads(listed.out)] == ["cli-value"]
    refused = headrace("schema", "check", "cli-value", str(files / "more.avsc"), *where)
    assert refused.code == 1
    assert "field note of Order is not written, and has no default" in refused.out
    assert headrace("schema", "check", "cli-value", str(files / "order.avsc"), *where).code == 0
    compared = headrace("schema", "diff", "cli-value:1", str(files / "more.avsc"), *where)
    assert "new reads old: no" in compared.out
    assert "old reads new: yes" in compared.out
    assert headrace("schema", "delete", "cli-value", "--yes", *where).code == 0


@pytest.mark.parametrize(
    ("file", "form"), [("order.avsc", "avro"), ("order.json", "json-schema"), ("order.proto", "protobuf")]
)
def test_lines_of_json_are_written_and_read_by_their_schema(
    headrace: Command, topic: str, schemas: EmbeddedRegistry, files: Path, file: str, form: str
) -> None:
    where = ("--registry", schemas.url)
    done = headrace("produce", topic, "--schema", str(files / file), *where, stdin='{"id": 1}\n{"id": 2}\n')
    assert done.code == 0, done.err
    result = headrace("consume", topic, "--format", form, *where)
    assert result.code == 0, result.err
    assert sorted(int(json.loads(line)["id"]) for line in result.lines) == [1, 2]


def test_what_does_not_fit_is_said_with_its_place(
    headrace: Command, topic: str, schemas: EmbeddedRegistry, files: Path
) -> None:
    where = ("--registry", schemas.url)
    refused = headrace("produce", topic, "--schema", str(files / "order.avsc"), *where, stdin='{"id": "x"}\n')
    assert refused.code == 2
    assert "line 1: " in refused.err
    assert "field id is 'x'" in refused.err
    headrace("produce", topic, stdin="plain\n")
    broken = headrace("consume", topic, "--format", "avro", *where)
    assert broken.code == 1
    assert "was not written with a schema registry" in broken.err
    assert "--from 1" in broken.err
