"""Protobuf schemas: `.proto` text, or a file's descriptor in base64, read by Google's own compiler."""

from __future__ import annotations

import base64
import binascii
import contextlib
import importlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from headrace.schemas.extras import need
from headrace.schemas.schema import SchemaError

MAIN = "default.proto"
"""What a schema's own file is called where nobody names it."""
_COMPILING = threading.Lock()
_CONFLUENTS = {
    "confluent/meta.proto": """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4; }
message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
"""
    + "".join(
        f"extend google.protobuf.{kind}Options {{ Meta {name}_meta = 1088; }}\n"
        for kind, name in (
            ("File", "file"),
            ("Message", "message"),
            ("Field", "field"),
            ("Enum", "enum"),
            ("EnumValue", "enum_value"),
        )
    ),
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
    "confluent/type/variant.proto": """syntax = "proto3";
package confluent.type;
message Variant { bytes metadata = 1; bytes value = 2; }
""",
}
"""Files that Confluent's clients import, and whose registry has them without being told."""


@dataclass(frozen=True)
class ProtobufSchema:
    """A file that was compiled, with those that it imports."""

    text: str
    file: Any
    """Its `FileDescriptorProto`."""
    imported: Mapping[str, Any]
    """Those of the files that it imports, by name, those first that others import."""
    wrong_default: ClassVar[str | None] = None

    @cached_property
    def canonical(self) -> str:
        if self.text:
            return self.text
        from headrace.schemas.formats.protobuf_text import printed

        return printed(self.file)

    def normalized(self) -> str:
        from headrace.schemas.formats.protobuf_text import printed

        return printed(self.file)

    def formatted(self, form: str) -> str:
        if not form:
            return self.canonical
        if form == "serialized":
            plain = type(self.file)()
            plain.CopyFrom(self.file)
            plain.name = "default" if plain.name == MAIN else plain.name
            return base64.b64encode(plain.SerializeToString(deterministic=True)).decode()
        raise SchemaError(f"a Protobuf schema has no form {form!r}, only serialized")

    def problems_reading(self, written: Any) -> list[Any]:
        from headrace.schemas.formats.protobuf_compatibility import problems

        return problems(written, self)


def parse(text: str, referred: Mapping[str, str]) -> ProtobufSchema:
    """Compile a schema; `SchemaError` says what the compiler says, with line and column."""
    descriptor_pb2 = need("google.protobuf.descriptor_pb2")
    given = _descriptor(text, descriptor_pb2)
    from headrace.schemas.formats.protobuf_text import printed

    own = text if given is None else printed(given)
    files = {MAIN: own}
    for name, other in referred.items():
        found = _descriptor(other, descriptor_pb2)
        files[_checked_name(name)] = other if found is None else printed(found)
    compiled = _compile(files)
    main = compiled.pop(MAIN)
    shown = "" if given is not None else _trimmed(text)
    return ProtobufSchema(shown, main, compiled)


def _descriptor(text: str, descriptor_pb2: Any) -> Any | None:
    """A file's descriptor out of base64; None if the text is none, and so is a `.proto`."""
    if re.search(r"[;{}]", text):
        return None
    try:
        data = base64.b64decode(text.strip(), validate=True)
        return descriptor_pb2.FileDescriptorProto.FromString(data)
    except (binascii.Error, ValueError):
        return None
    except need("google.protobuf.message").DecodeError:
        return None


def _trimmed(text: str) -> str:
    return text.replace("\r\n", "\n")


def _checked_name(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or "\\" in name:
        raise SchemaError(f"{name!r} is no name for an import: it is a path below the one of the schema itself")
    return str(path)


def _compile(files: Mapping[str, str]) -> dict[str, Any]:
    """Descriptors by file name, those first that others import."""
    descriptor_pb2 = need("google.protobuf.descriptor_pb2")
    protoc, compiler = need("grpc_tools.protoc"), need("grpc_tools._protoc_compiler")
    own_protos = str(Path(protoc.__file__).parent / "_proto")
    others = _common_protos()
    with tempfile.TemporaryDirectory(prefix="headrace-proto-") as directory, _COMPILING:
        known = _CONFLUENTS if any("confluent/" in text for text in files.values()) else {}
        for name, text in {**known, **files}.items():
            path = Path(directory, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        roots = [directory, own_protos, *others]
        with _errors(compiler):
            # This one says what is wrong as an error; the next one would write it to the terminal.
            compiler.get_protos(MAIN.encode(), [root.encode() for root in roots])
        output = os.path.join(directory, "descriptors.out")
        arguments = ["protoc", *(f"-I{root}" for root in roots), "--include_imports", f"-o{output}", MAIN]
        if protoc.main(arguments) != 0:
            raise SchemaError("protoc refuses it")
        found = descriptor_pb2.FileDescriptorSet.FromString(Path(output).read_bytes())
    return {one.name: one for one in found.file}


def _common_protos() -> list[str]:
    """`google/type/*.proto` and others, where the package that has them is installed."""
    with contextlib.suppress(ImportError):
        found = importlib.import_module("google.type")
        return [str(Path(path).parent.parent) for path in found.__path__]
    return []


@contextlib.contextmanager
def _errors(compiler: Any) -> Iterator[None]:
    try:
        yield
    except compiler.ProtocErrors as error:
        told = [
            f"{one.filename}:{one.line + 1}:{one.column + 1}: {one.message}"
            if isinstance(one.filename, str)
            else f"{one.filename.decode()}:{one.line + 1}:{one.column + 1}: {one.message.decode()}"
            for one in error.errors()
        ]
        raise SchemaError("; ".join(told[:10]).replace(f"{MAIN}:", "line ")) from error
