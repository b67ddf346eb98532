"""Which schema reads what which other wrote, as other implementations decided it: each table says whose word it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.schemas.compatibility import Level, check
from headrace.schemas.formats import ParsedSchema, parse
from headrace.schemas.schema import Schema, SchemaError

REFERENCE = Path(__file__).parent.parent / "reference" / "schemas"
TYPES = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


def table(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((REFERENCE / f"compatibility-{kind}.json").read_text())["families"]
    return found


def avro(*fields: dict[str, Any]) -> ParsedSchema:
    return parse(Schema(json.dumps({"type": "record", "name": "R", "fields": fields})))


@pytest.mark.parametrize("kind", TYPES)
def test_every_pair_is_decided_as_elsewhere(kind: str) -> None:
    wrong, decided = [], 0
    for family in table(kind):
        parsed = [parse(Schema(text, TYPES[kind])) for text in family["schemas"]]
        for reader, row in zip(parsed, family["reads"], strict=True):
            for writer, expected in zip(parsed, row, strict=True):
                decided += 1
                if (not reader.problems_reading(writer)) != (expected == "1"):
                    wrong.append((expected, reader.canonical, writer.canonical))
    assert wrong == []
    assert decided > 1_000


@pytest.mark.parametrize("kind", TYPES)
def test_what_is_incompatible_says_where_and_why(kind: str) -> None:
    for family in table(kind):
        parsed = [parse(Schema(text, TYPES[kind])) for text in family["schemas"]]
        for reader in parsed:
            for problem in (problem for writer in parsed for problem in reader.problems_reading(writer)):
                assert problem.kind
                assert problem.kind == problem.kind.upper()
                assert problem.message


def test_avro_schemas_are_printed_as_java_prints_them() -> None:
    for one in json.loads((REFERENCE / "printed-avro.json").read_text())["schemas"]:
        assert parse(Schema(one["given"])).canonical == one["printed"]


def test_levels_say_who_has_to_read_whom() -> None:
    narrow = avro({"name": "a", "type": "int"})
    wide = avro({"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 0})
    demanding = avro({"name": "a", "type": "int"}, {"name": "b", "type": "int"})

    def allowed(new: ParsedSchema, *earlier: ParsedSchema) -> set[str]:
        versions = list(enumerate(earlier, 1))
        return {level.value for level in Level if not check(new, versions, level)}

    every = {level.value for level in Level}
    assert allowed(wide, narrow) == every
    assert allowed(demanding, narrow) == {"NONE", "FORWARD", "FORWARD_TRANSITIVE"}
    assert allowed(narrow, demanding) == {"NONE", "BACKWARD", "BACKWARD_TRANSITIVE"}
    # The newest version goes with it, and one before that does not.
    assert allowed(demanding, narrow, wide) == {"NONE", "FORWARD", "FORWARD_TRANSITIVE", "BACKWARD", "FULL"}


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("AVRO", "{", "not JSON"),
        ("AVRO", '{"type": "record", "name": "R"}', "no list of fields"),
        ("AVRO", '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "nothing"}]}', 'Undefined name: "'),
        ("AVRO", '{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "Duplicate"),
        ("AVRO", '["int", "int"]', "Duplicate in union"),
        ("AVRO", '{"type": "record", "name": "1", "fields": []}', "Illegal name"),
        ("AVRO", '{"type": "array", "items": ' * 300 + '"int"' + "}" * 300, "deep"),
        ("JSON", '{"type": "nothing"}', "/type"),
        ("JSON", '{"$ref": "#/definitions/a"}', "there is nothing at 'definitions'"),
        ("JSON", '{"$ref": "other.json"}', "no reference of that name"),
        ("JSON", "3", "an object or a boolean"),
        ("PROTOBUF", 'syntax = "proto3"; message A { B b = 1; }', '"B" is not defined'),
        ("PROTOBUF", 'syntax = "proto3"; import "other.proto";', "other.proto"),
        ("PROTOBUF", "nothing at all", "line 1:1"),
        ("PROTOBUF", "bm90aGluZw==", "line 1"),
        ("XML", "<a/>", "Invalid schema type XML"),
        ("AVRO", "  ", "Empty schema"),
    ],
)  # fmt: skip
def test_what_is_no_schema_is_refused_with_the_reason(kind: str, text: str, reason: str) -> None:
    with pytest.raises(SchemaError) as failed:
        parse(Schema(text, kind))
    assert reason in str(failed.value)


def test_a_protobuf_schema_may_import_others_and_googles_own() -> None:
    text = """syntax = "proto3"; import "a/b.proto"; import "google/protobuf/timestamp.proto";
    message M { B b = 1; google.protobuf.Timestamp t = 2; }"""
    imported = {"a/b.proto": 'syntax = "proto3"; message B { int32 x = 1; }'}
    found = parse(Schema(text, "PROTOBUF"), imported)
    assert parse(Schema(found.formatted("serialized"), "PROTOBUF"), imported).problems_reading(found) == []
    with pytest.raises(SchemaError, match="no name for an import"):
        parse(Schema(text, "PROTOBUF"), {"../b.proto": ""})


@pytest.mark.parametrize(
    ("file", "used"),
    [
        ("google/type/postal_address.proto", "google.type.PostalAddress"),
        ("confluent/type/decimal.proto", "confluent.type.Decimal"),
        ("confluent/type/variant.proto", "confluent.type.Variant"),
        ("confluent/meta.proto", "confluent.Meta"),
    ],
)
def test_files_that_every_registry_has_may_be_imported(file: str, used: str) -> None:
    import importlib

    def shape(given: Any) -> list[Any]:
        of_messages = [(one.name, field) for one in given.message_type for field in one.field]
        extensions = [(one.extendee, one) for one in given.extension]
        return [
            (where, one.name, one.number, one.type, one.label, one.type_name)
            for where, one in (*of_messages, *extensions)
        ]

    text = f'syntax = "proto3"; import "{file}"; message A {{ {used} one = 1; }}'
    parsed: Any = parse(Schema(text, "PROTOBUF"))
    assert file in parsed.imported
    if file.startswith("confluent"):
        # With the very fields and extensions of those that confluent-kafka has compiled in.
        name = f"confluent_kafka.schema_registry.{file.removesuffix('.proto').replace('/', '.')}_pb2"
        theirs = type(parsed.imported[file]).FromString(importlib.import_module(name).DESCRIPTOR.serialized_pb)
        assert shape(parsed.imported[file]) == shape(theirs)


def test_protobuf_text_made_of_a_descriptor_compiles_to_the_same(tmp_path: Path) -> None:
    text = """syntax = "proto2"; package p.q; option java_package = "x";
    message M {
      reserved 7 to 9, 20; reserved "old"; extensions 100 to max;
      required string a = 1 [default = "q\\"", deprecated = true]; optional E e = 2 [default = B];
      repeated int32 n = 3 [packed = true]; map<string, N> m = 4;
      oneof o { int64 x = 5; bytes y = 6; }
      message N { optional M back = 1; } enum E { option allow_alias = true; A = 0; B = 1; C = 1; reserved 5; }
    }
    extend M { optional int32 more = 100; }
    service S { rpc Do (stream M) returns (M.N); }
    """
    first = parse(Schema(text, "PROTOBUF")).formatted("serialized")
    assert parse(Schema(first, "PROTOBUF")).formatted("serialized") == first


def test_a_json_schema_that_contains_itself_is_compared_to_the_end() -> None:
    def tree(leaf: str) -> ParsedSchema:
        either = [{"type": "object", "properties": {"a": {"$ref": "#"}}}, {"type": leaf}]
        return parse(Schema(json.dumps({"oneOf": either}), "JSON"))

    assert tree("string").problems_reading(tree("string")) == []
    assert tree("string").problems_reading(tree("boolean")) != []
