"""Typed columns of topics whose records have schemas in a registry, and rows written with one (Avro).

The schema that a query reads is chosen once, when its DataFrame is made, and stays with it: it travels in the column's
metadata, and a query that is started again finds it in the directory that was named for it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.schemas.columns import ReadColumns, ReadsColumns, column_reader
from headrace.schemas.formats.avro import parse
from headrace.schemas.registry_client import RegistryClient
from headrace.schemas.schema import AVRO, Schema, SchemaError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

OPTION = "value.schema.registry"
ERROR_COLUMN, RAW_COLUMN = "value_error", "value_raw"
METADATA = "headrace.value.schema"
PINNED = "headrace-value-schema.json"
DEAD_LETTER_HEADER = "headrace.error"


class PinnedSchemaError(HeadraceError):
    """The schema that a query was begun with cannot be read or kept."""


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """What the values of a source are: the schema that they are read as, and the registry that has the others."""

    registry: str
    schema: Schema
    message: str | None = None
    """Of a Protobuf schema: the full name of the message; None: its first one."""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def reader(self) -> ReadsColumns:
        """One for each process, which keeps what it has learned."""
        return _reader(self.registry, self.text(), tuple(sorted(self.settings.items())))

    def text(self) -> str:
        """As it is kept in a checkpoint, and travels with a column."""
        return json.dumps({**self.schema.to_json(), **({"message": self.message} if self.message else {})})

    @classmethod
    def of(cls, text: str, registry: str, settings: Mapping[str, str]) -> ValueSchema:
        body = json.loads(text)
        return cls(registry, Schema.from_json(body), body.get("message"), dict(settings))


@lru_cache(16)
def _reader(registry: str, text: str, settings: tuple[tuple[str, str], ...]) -> ReadsColumns:
    chosen = ValueSchema.of(text, registry, dict(settings))
    return column_reader(chosen.schema, RegistryClient(registry, dict(settings)), message=chosen.message)


def choose(
    registry: str,
    *,
    subject: str | None = None,
    schema: str | None = None,
    location: str | None = None,
    message: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> ValueSchema:
    """The schema to read as: the one that is pinned at `location`, else the one that is given, else the newest."""
    text = None if location is None else _pinned(location)
    if text is None:
        client = RegistryClient(registry, settings)
        try:
            if schema is None:
                if subject is None:
                    raise SchemaError("which schema? Give value.schema, or value.schema.subject")
                found = client.latest(subject).schema
            else:
                found = Schema(schema)
            if found.type == AVRO:
                found = Schema(parse(found.text, client.referred(found)).formatted("resolved"))
            chosen = ValueSchema(registry, found, message, dict(settings or {}))
            # What cannot be read as columns is refused here, and not by the first task.
            column_reader(found, client, message=message)
        finally:
            client.close()
        if location is None:
            return chosen
        text = _pin(location, chosen.text(), subject)
    return ValueSchema.of(text, registry, settings or {})


# --- pinning ----------------------------------------------------------------------------------------------------------


def _place(location: str) -> tuple[Any, str]:
    from pyarrow import fs

    if "://" in location or location.startswith("file:"):
        system, path = fs.FileSystem.from_uri(location)
    else:
        import os

        system, path = fs.LocalFileSystem(), os.path.abspath(location)
    return system, f"{path.rstrip('/')}/{PINNED}"


def _pinned(location: str) -> str | None:
    system, path = _place(location)
    try:
        with system.open_input_stream(path) as source:
            kept = json.loads(source.readall())
            kept["schema"]  # of an earlier version too
            return json.dumps(kept)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        raise PinnedSchemaError(f"{path} should have the schema that this query began with: {error}") from error


def _pin(location: str, text: str, subject: str | None) -> str:
    """Keep the schema for the next start; who was first is right."""
    system, path = _place(location)
    try:
        system.create_dir(path.rpartition("/")[0], recursive=True)
        temporary = f"{path}.{abs(hash((text, subject)))}.tmp"
        with system.open_output_stream(temporary) as out:
            out.write(json.dumps({"subject": subject, **json.loads(text)}).encode())
        found = _pinned(location)
        if found is not None:
            system.delete_file(temporary)
            return found
        system.move(temporary, path)
    except OSError as error:
        raise PinnedSchemaError(f"the query's schema cannot be kept at {path}: {error}") from error
    return text


# --- types ------------------------------------------------------------------------------------------------------------


def typed_columns(chosen: ValueSchema, *, headers: bool) -> StructType:
    """The source's columns where values have a schema: typed; why a row could not be read; and its bytes, then."""
    from pyspark.sql import types as T

    made = T.StructType(
        [
            T.StructField("key", T.BinaryType()),
            T.StructField("value", spark_type(chosen), True, {METADATA: chosen.text()}),
            T.StructField("topic", T.StringType()),
            T.StructField("partition", T.IntegerType()),
            T.StructField("offset", T.LongType()),
            T.StructField("timestamp", T.TimestampType()),
            T.StructField("timestampType", T.IntegerType()),
            T.StructField(ERROR_COLUMN, T.StringType()),
            T.StructField(RAW_COLUMN, T.BinaryType()),
        ]
    )
    if headers:
        header = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
        made.add(T.StructField("headers", T.ArrayType(header)))
    return made


def spark_type(chosen: ValueSchema) -> DataType:
    """The Spark type that a schema's values have."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(_ready(chosen.reader().type))


def _ready(kind: Any) -> Any:
    """An Arrow type as Spark has it: all nullable, times of day as numbers, moments in microseconds, all signed."""
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        return pa.struct([pa.field(one.name, _ready(one.type)) for one in kind])
    if types.is_map(kind):
        return pa.map_(_ready(kind.key_type), _ready(kind.item_type))
    if types.is_list(kind):
        return pa.list_(_ready(kind.value_type))
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_time32(kind):
        return pa.int32()
    if types.is_time64(kind):
        return pa.int64()
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_uint32(kind):
        return pa.int64()
    if types.is_uint64(kind):
        return pa.decimal128(20, 0)
    return kind


def schema_in(schema: StructType) -> str | None:
    """The schema that a DataFrame's column `value` has with it, as `ValueSchema.text` gives it."""
    found = schema["value"].metadata.get(METADATA) if "value" in schema.names else None
    return None if found is None else str(found)


# --- reading ----------------------------------------------------------------------------------------------------------


def typed(chosen: ValueSchema, column: pa.Array, schema: pa.Schema) -> dict[str, pa.Array]:
    """A batch's values as the columns of `value_fields`."""
    found = chosen.reader().read(column)
    return {
        "value": found.array.cast(schema.field("value").type, safe=False),
        ERROR_COLUMN: _errors(found, len(column)),
        RAW_COLUMN: _raw(found, column),
    }


def _errors(found: ReadColumns, count: int) -> pa.Array:
    import pyarrow as pa

    if not found.faults:
        return pa.nulls(count, pa.string())
    return pa.array([found.faults.get(row) for row in range(count)], pa.string())


def _raw(found: ReadColumns, column: pa.Array) -> pa.Array:
    import pyarrow as pa

    if not found.faults:
        return pa.nulls(len(column), pa.binary())
    return pa.array([column[row].as_py() if row in found.faults else None for row in range(len(column))], pa.binary())


def from_registry(
    column: Column | str,
    registry: str,
    *,
    subject: str | None = None,
    schema: str | None = None,
    location: str | None = None,
    message: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Column:
    """A column of records, behind their schemas' numbers, as a struct of `value`, `error` and `raw`.

    For rows of any Kafka source. `schema`: what they are read as (Avro), else the newest of `subject`. `location`: a
    directory (the query's checkpoint) where that schema is kept, so that a query that is started again has the same.
    `message`: which one of a Protobuf schema, if not the first.
    """
    import pyspark.sql.functions as F
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    chosen = choose(registry, subject=subject, schema=schema, location=location, message=message, settings=settings)
    made = StructType(
        [StructField("value", spark_type(chosen)), StructField("error", StringType()), StructField("raw", BinaryType())]
    )

    def read(values: pa.Array) -> pa.Array:
        import pyarrow as pa

        found = chosen.reader().read(values)
        value = found.array.cast(_ready(found.array.type), safe=False)
        parts = [value, _errors(found, len(values)), _raw(found, values)]
        return pa.StructArray.from_arrays(parts, ["value", "error", "raw"])

    decoded: Column = _by_columns(read, made)(F.col(column) if isinstance(column, str) else column)
    return decoded


def _by_columns(function: Callable[[Any], Any], made: DataType) -> Any:
    """A function of Arrow arrays as one of Spark's, which looks at the annotations: these are not texts."""
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    function.__annotations__ = {"values": pa.Array, "return": pa.Array}
    decorate: Any = arrow_udf
    return decorate(function, made)


def dead_letters(rows: DataFrame, topic: str) -> DataFrame:
    """The rows that could not be read, as records for another topic: their key, their bytes, and a header that says
    why. `rows` is what a source with `value.schema.registry` gives."""
    import pyspark.sql.functions as F

    broken = rows.where(F.col(ERROR_COLUMN).isNotNull())
    place = F.concat_ws("-", F.col("topic"), F.col("partition"), F.col("offset"))
    headers = F.array(
        F.struct(F.lit(DEAD_LETTER_HEADER).alias("key"), F.col(ERROR_COLUMN).cast("binary").alias("value")),
        F.struct(F.lit("headrace.origin").alias("key"), place.cast("binary").alias("value")),
    )
    return broken.select(F.lit(topic).alias("topic"), "key", F.col(RAW_COLUMN).alias("value"), headers.alias("headers"))


# --- writing ----------------------------------------------------------------------------------------------------------


def to_registry(
    rows: DataFrame,
    registry: str,
    subject: str,
    columns: Sequence[str] | None = None,
    *,
    schema: str | None = None,
    name: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Column:
    """A column of Avro records made of a DataFrame's columns, with a schema that is registered now, by the driver.

    `columns`: all of them unless named. `schema`: by default made of their types, under `name`. What the registry
    refuses is refused here, before anything is written.
    """
    import pyspark.sql.functions as F

    used = list(columns or rows.columns)
    kind = rows.select(*used).schema
    return struct_to_registry(F.struct(*used), kind, registry, subject, schema=schema, name=name, settings=settings)


def struct_to_registry(
    column: Column,
    kind: StructType,
    registry: str,
    subject: str,
    *,
    schema: str | None = None,
    name: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Column:
    """A column of structs of this type as one of Avro records, with a schema that is registered now. Null stays."""
    from pyspark.sql.types import BinaryType

    text = schema or json.dumps(avro_schema(kind, name or subject.removesuffix("-value")))
    client = RegistryClient(registry, settings)
    try:
        number = client.register(subject, Schema(text)).id
        text = parse(text, {}).formatted("resolved")
    finally:
        client.close()

    def write(values: pa.Array) -> pa.Array:
        return _written(values, text, number)

    encoded: Column = _by_columns(write, BinaryType())(column)
    return encoded


@lru_cache(16)
def _parsed(text: str) -> Any:
    import fastavro

    return fastavro.parse_schema(json.loads(text))


def _written(values: pa.Array, text: str, number: int) -> pa.Array:
    import fastavro
    import pyarrow as pa

    from headrace.schemas.wire import prefix

    schema, begin = _parsed(text), prefix(number)
    made: list[bytes | None] = []
    for one in values.to_pylist():
        if one is None:
            made.append(None)
            continue
        out = io.BytesIO()
        out.write(begin)
        fastavro.schemaless_writer(out, schema, _plain(one))
        made.append(out.getvalue())
    return pa.array(made, pa.binary())


def _plain(value: Any) -> Any:
    """Arrow gives maps as lists of pairs."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) for one in value):
            return {key: _plain(one) for key, one in value}
        return [_plain(one) for one in value]
    return value


def avro_schema(schema: StructType, name: str) -> dict[str, Any]:
    """The Avro schema of a DataFrame's columns."""
    made: dict[str, Any] = _avro(schema, "".join(one if one.isalnum() else "_" for one in name) or "Row")
    return made


def _avro(kind: Any, name: str) -> Any:
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        fields = []
        for one in kind.fields:
            made = _avro(one.dataType, f"{name}_{one.name}")
            field = {"name": one.name, "type": made}
            if one.nullable:
                field = {"name": one.name, "type": ["null", made], "default": None}
            fields.append(field)
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(kind, T.ArrayType):
        made = _avro(kind.elementType, f"{name}_item")
        return {"type": "array", "items": ["null", made] if kind.containsNull else made}
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        made = _avro(kind.valueType, f"{name}_value")
        return {"type": "map", "values": ["null", made] if kind.valueContainsNull else made}
    if isinstance(kind, T.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    plain = {
        T.BooleanType: "boolean",
        T.ByteType: "int",
        T.ShortType: "int",
        T.IntegerType: "int",
        T.LongType: "long",
        T.FloatType: "float",
        T.DoubleType: "double",
        T.StringType: "string",
        T.BinaryType: "bytes",
        T.DateType: {"type": "int", "logicalType": "date"},
        T.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
        T.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
    }.get(type(kind))
    if plain is None:
        raise SchemaError(f"{name}: there is no Avro type for Spark's {kind.simpleString()}: cast it")
    return plain
