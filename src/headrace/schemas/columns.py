"""Records with a schema to Arrow columns. Avro: a whole batch at a time by a compiled kernel, or one by one where there
is no numba; JSON and Protobuf one by one.

Records of several versions are read as one schema, the reader's. What is wrong with a row is said beside it.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.client.errors import SerializationError
from headrace.schemas import wire
from headrace.schemas.column_program import Layout, Program, check_has_columns, compile_program
from headrace.schemas.extras import need
from headrace.schemas.formats.avro import AvroSchema, AvroType, parse
from headrace.schemas.registry_client import RegistryClient, RegistryRequestError
from headrace.schemas.schema import AVRO, JSON, PROTOBUF, Schema, SchemaError
from headrace.schemas.serializing import as_schema

_FAULTS = {
    1: "the record ends too early",
    2: "a number is none that its schema allows",
    3: "there are bytes after its end",
    4: "an array or map has too many items",
}
_EXAMPLE_BYTES = 8
COLUMN = "this column"
"""What stands for a topic in what is said of a row."""
_BYTES_KINDS = ("bytes", "string", "fixed")


@dataclass(slots=True)
class ReadColumns:
    """What a batch of records became."""

    array: Any
    """An Arrow array with a value per row; null where the record was null, or could not be read."""
    faults: dict[int, str] = field(default_factory=dict)
    """Row → why it could not be read."""


class ReadsColumns(Protocol):
    """Reads records as one schema says."""

    type: Any
    """Of Arrow."""

    def read(self, column: Any) -> ReadColumns:
        """The records of an Arrow array of binary."""
        ...


def column_reader(schema: Schema, registry: RegistryClient | str, *, message: str | None = None) -> ReadsColumns:
    """What reads records as this schema says. `message`: the full name of a Protobuf message; else the file's first."""
    if schema.type == JSON:
        from headrace.schemas.json_columns import JsonColumns

        return JsonColumns(schema, registry)
    if schema.type == PROTOBUF:
        from headrace.schemas.protobuf_columns import ProtobufColumns

        return ProtobufColumns(schema, registry, name=message)
    return ColumnReader(schema, registry)


def array_of_rows(values: list[Any], kind: Any, faults: dict[int, str]) -> ReadColumns:
    """Values as an array of this type. One that the type cannot take is null, and its row among the faults."""
    arrow = need("pyarrow")
    wrong = (arrow.ArrowException, ValueError, OverflowError, TypeError)
    try:
        return ReadColumns(arrow.array(values, kind), faults)
    except wrong:
        kept: list[Any] = []
        for row, one in enumerate(values):
            try:
                arrow.array([one], kind)
                kept.append(one)
            except wrong as error:
                faults[row] = f"a value does not go with its type: {error}"
                kept.append(None)
        return ReadColumns(arrow.array(kept, kind), faults)


class ColumnReader:
    """Reads a column of Avro records, each behind its schema's number, as one schema."""

    def __init__(self, schema: Any, registry: RegistryClient | str, *, compiled: bool | None = None) -> None:
        self._registry = RegistryClient(registry) if isinstance(registry, str) else registry
        given = as_schema(schema, AVRO)
        if given is None:
            raise SchemaError("columns need the schema that records are read as")
        self.schema = given
        self._read = _parsed(given, self._registry)
        check_has_columns(self._read.type)
        self.type = arrow_type(self._read.type)
        self._programs: dict[int, Program | str] = {}
        if compiled is None:
            compiled = importlib.util.find_spec("numba") is not None
        self._compiled = compiled
        self._one_by_one: Any = None

    def read(self, column: Any) -> ReadColumns:
        """The records of an Arrow array of binary."""
        arrow = need("pyarrow")
        if isinstance(column, arrow.ChunkedArray):
            column = column.combine_chunks()
        if isinstance(column, arrow.ChunkedArray):
            column = arrow.concat_arrays(column.chunks) if column.num_chunks else arrow.array([], arrow.binary())
        if not arrow.types.is_binary(column.type):
            column = column.cast(arrow.binary())
        if self._compiled:
            return self._read_compiled(column)
        return self._read_one_by_one(column)

    # --- the compiled way ---------------------------------------------------------------------------------------------

    def _read_compiled(self, column: Any) -> ReadColumns:
        arrow, np = need("pyarrow"), need("numpy")
        count = len(column)
        data, starts, ends = _spans(column)
        numbers = np.zeros(count, np.int64)
        framed = (ends - starts >= wire.PREFIX.size) if count else np.zeros(0, bool)
        if framed.any():
            first = starts[framed]
            framed[framed] = data[first] == wire.MAGIC
            first = starts[framed]
            for byte in range(1, wire.PREFIX.size):
                numbers[framed] = (numbers[framed] << 8) | data[first + byte]
        faults: dict[int, str] = {}
        is_null = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else np.zeros(count, bool)
        for row in np.flatnonzero(~framed & ~is_null).tolist():
            begins = bytes(data[starts[row] : ends[row]][:_EXAMPLE_BYTES]).hex()
            faults[row] = f"it was not written with a schema registry: it begins with {begins or 'nothing'}"
        pieces, order = [], []
        versions = np.unique(numbers[framed]).tolist()
        for number in versions:
            rows = np.flatnonzero(framed & (numbers == number))
            program = self._program(number)
            if isinstance(program, str):
                faults.update(dict.fromkeys(rows.tolist(), program))
                framed[rows] = False
                continue
            whole = len(rows) == count
            piece = self._run(program, data, starts[rows] + wire.PREFIX.size, ends[rows], rows, faults)
            if whole:
                return ReadColumns(piece, faults)
            pieces.append(piece)
            order.append(rows)
        rest = np.flatnonzero(~framed)
        if len(rest):
            pieces.append(arrow.nulls(len(rest), self.type))
            order.append(rest)
        if not pieces:
            return ReadColumns(arrow.nulls(0, self.type), faults)
        where = np.empty(count, np.int64)
        where[np.concatenate(order)] = np.arange(count)
        return ReadColumns(arrow.concat_arrays(pieces).take(arrow.array(where)), faults)

    def _program(self, number: int) -> Program | str:
        """The program for what was written with a schema, or why there is none."""
        found = self._programs.get(number)
        if found is None:
            try:
                schema = self._registry.by_id(number).schema
                if schema.type != AVRO:
                    raise SchemaError(f"it is {schema.type}, and not {AVRO}")
                found = compile_program(_parsed(schema, self._registry).type, self._read.type)
            except SchemaError as error:
                found = f"schema {number}: {error}"
            except SerializationError as error:
                found = str(error)
            except RegistryRequestError as error:
                if not error.is_not_found:
                    raise
                # It may be there later: it is not kept.
                return f"schema {number} is not in the registry: {error}"
            self._programs[number] = found
        return found

    def _run(self, program: Program, data: Any, starts: Any, ends: Any, rows: Any, faults: dict[int, str]) -> Any:
        np, kernel = need("numpy"), need("headrace.schemas.column_kernel")
        count = len(starts)
        found = np.zeros(count, np.int64)
        rooms = np.full(program.slots, max(count, 1), np.int64)
        operations, tables = np.array(program.operations, np.int64), np.array(program.tables or [0], np.int64)
        starts, ends = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(ends, np.int64)
        while True:
            bases = np.concatenate([[0], np.cumsum(rooms)[:-1]]).astype(np.int64)
            out, counts = np.empty(int(rooms.sum()), np.int64), np.zeros(program.slots, np.int64)
            faulty = found.copy()
            full = kernel.run(
                data, starts, ends, operations, tables, bases, rooms, program.null_at, out, counts, faulty,
                np.zeros(program.slots, np.int64), np.zeros(1, np.int64), np.zeros(2 * 33, np.int64),
            )  # fmt: skip
            if full < 0:
                break
            # Arrays have more items than there are rows: twice the room, for their neighbours too.
            rooms = np.where(rooms == rooms[full], rooms * 2, rooms)
        slots = [out[base : base + size] for base, size in zip(bases.tolist(), counts.tolist())]
        made = _Assembly(data, slots)
        array = made.array(program.layout, count)
        broken = set(made.broken_rows)
        if broken:
            # Texts that are no UTF-8: these rows are done without.
            for row in sorted(broken):
                faults[int(rows[row])] = "a text is no UTF-8"
            kept = np.array([row not in broken for row in range(count)])
            array = self._without(program, data, starts, ends, kept)
        for row in np.flatnonzero(faulty).tolist():
            faults[int(rows[row])] = _FAULTS[int(faulty[row])]
        return array

    def _without(self, program: Program, data: Any, starts: Any, ends: Any, kept: Any) -> Any:
        """The same, with rows left null that would spoil the others' arrays."""
        arrow, np = need("pyarrow"), need("numpy")
        there = np.flatnonzero(kept)
        piece = self._run(program, data, starts[there], ends[there], there, {})
        where = np.full(len(kept), -1)
        where[there] = np.arange(len(there))
        return piece.take(arrow.array([None if at < 0 else at for at in where.tolist()], arrow.int64()))

    # --- one by one ---------------------------------------------------------------------------------------------------

    def _read_one_by_one(self, column: Any) -> ReadColumns:
        from headrace.schemas.avro import AvroDeserializer

        arrow = need("pyarrow")
        if self._one_by_one is None:
            self._one_by_one = AvroDeserializer(self.schema, self._registry)
        values, faults = [], {}
        for row, one in enumerate(column.to_pylist()):
            value = None
            if one is not None:
                try:
                    value = _shaped(self._one_by_one.deserialize(COLUMN, one), self._read.type)
                    str(value).encode()
                except SerializationError as error:
                    faults[row] = str(error)
            values.append(value)
        return ReadColumns(arrow.array(values, self.type), faults)


def _parsed(schema: Schema, registry: RegistryClient) -> AvroSchema:
    return parse(schema.text, registry.referred(schema))


def _spans(column: Any) -> tuple[Any, Any, Any]:
    """The bytes behind an Arrow array of binary, and where each row begins and ends."""
    np = need("numpy")
    _, offsets, data = column.buffers()
    count = len(column)
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + count + 1].astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return raw, ends[:-1], ends[1:]


# --- types ------------------------------------------------------------------------------------------------------------


def arrow_type(kind: AvroType) -> Any:
    """The Arrow type of an Avro type, with its logical type."""
    arrow = need("pyarrow")
    logical = str(kind.props.get("logicalType"))
    match kind.kind:
        case "null":
            return arrow.null()
        case "boolean":
            return arrow.bool_()
        case "int":
            return {"date": arrow.date32(), "time-millis": arrow.time32("ms")}.get(logical, arrow.int32())
        case "long":
            return _LONGS(arrow).get(logical, arrow.int64())
        case "float":
            return arrow.float32()
        case "double":
            return arrow.float64()
        case "string" | "enum":
            return arrow.string()
        case "bytes" | "fixed":
            if logical == "decimal" and _is_decimal(kind.props):
                return arrow.decimal128(kind.props["precision"], kind.props.get("scale", 0))
            return arrow.binary() if kind.kind == "bytes" else arrow.binary(kind.size)
        case "array":
            return arrow.list_(arrow_type(_items(kind)))
        case "map":
            return arrow.map_(arrow.string(), arrow_type(_items(kind)))
        case "record":
            return arrow.struct(
                [arrow.field(one.name, arrow_type(one.type), _is_nullable(one.type)) for one in kind.fields]
            )
        case _:
            others = [branch for branch in kind.branches if branch.kind != "null"]
            if len(others) <= 1:
                return arrow_type(others[0]) if others else arrow.null()
            return arrow.struct([(f"member{number}", arrow_type(one)) for number, one in enumerate(others)])


def _LONGS(arrow: Any) -> dict[Any, Any]:
    return {
        "timestamp-millis": arrow.timestamp("ms", "UTC"),
        "timestamp-micros": arrow.timestamp("us", "UTC"),
        "timestamp-nanos": arrow.timestamp("ns", "UTC"),
        "local-timestamp-millis": arrow.timestamp("ms"),
        "local-timestamp-micros": arrow.timestamp("us"),
        "local-timestamp-nanos": arrow.timestamp("ns"),
        "time-micros": arrow.time64("us"),
    }


def _is_decimal(props: Mapping[str, Any]) -> bool:
    precision, scale = props.get("precision"), props.get("scale", 0)
    return isinstance(precision, int) and isinstance(scale, int) and 0 < precision <= 38 and 0 <= scale <= precision


def _is_nullable(kind: AvroType) -> bool:
    return kind.kind in ("union", "null")


def _items(kind: AvroType) -> AvroType:
    assert kind.items is not None
    return kind.items


class _Assembly:
    """Slots to Arrow arrays."""

    def __init__(self, data: Any, slots: list[Any]) -> None:
        self._data = data
        self._slots = slots
        self._np, self._arrow = need("numpy"), need("pyarrow")
        self.broken_rows: list[int] = []
        self._owner: Any = None

    def array(self, layout: Layout, count: int) -> Any:
        arrow = self._arrow
        kind = layout.type.kind
        if layout.is_constant:
            return _constant(layout, count)
        valid = None if layout.valid < 0 else self._slots[layout.valid][:count]
        if kind == "null":
            return arrow.nulls(count)
        if kind in ("record", "union"):
            children = [self.array(child, count) for child in layout.children]
            made = arrow_type(layout.type)
            return arrow.Array.from_buffers(made, count, [self._bitmap(valid)], children=children)
        if kind in ("array", "map"):
            return self._list(layout, count, valid)
        return self._scalar(layout, count, valid)

    def _list(self, layout: Layout, count: int, valid: Any) -> Any:
        np, arrow = self._np, self._arrow
        sizes = self._slots[layout.slot][:count]
        ends = np.zeros(count + 1, np.int32)
        np.cumsum(sizes, out=ends[1:])
        items = int(ends[-1]) if count else 0
        owner, self._owner = self._owner, self._rows_of(sizes)
        children = [self.array(child, items) for child in layout.children]
        self._owner = owner
        made = arrow_type(layout.type)
        if layout.type.kind == "map":
            entries = arrow.StructArray.from_arrays(
                children, fields=[arrow.field("key", made.key_type, False), made.item_field]
            )
            children = [entries]
        return arrow.Array.from_buffers(made, count, [self._bitmap(valid), arrow.py_buffer(ends)], children=children)

    def _rows_of(self, sizes: Any) -> Any:
        np = self._np
        rows = np.arange(len(sizes)) if self._owner is None else self._owner
        return np.repeat(rows[: len(sizes)], sizes)

    def _scalar(self, layout: Layout, count: int, valid: Any) -> Any:
        np, arrow, kind = self._np, self._arrow, layout.type.kind
        values = self._slots[layout.slot][:count]
        target = arrow_type(layout.type)
        bitmap = self._bitmap(valid)
        if kind in _BYTES_KINDS:
            return self._bytes(layout, count, bitmap, target)
        if kind == "enum":
            words = arrow.array(layout.type.symbols, arrow.string())
            indexes = arrow.Array.from_buffers(arrow.int64(), count, [bitmap, arrow.py_buffer(values)])
            return words.take(indexes)
        if kind == "boolean":
            bits = arrow.py_buffer(np.packbits(values.astype(bool), bitorder="little"))
            return arrow.Array.from_buffers(target, count, [bitmap, bits])
        width = {"int": np.int32, "float": np.uint32}.get(kind)
        plain = np.ascontiguousarray(values) if width is None else values.astype(width)
        return arrow.Array.from_buffers(target, count, [bitmap, arrow.py_buffer(plain)])

    def _bytes(self, layout: Layout, count: int, bitmap: Any, target: Any) -> Any:
        np, arrow = self._np, self._arrow
        starts, lengths = (np.ascontiguousarray(self._slots[layout.slot + n][:count]) for n in (0, 1))
        ends = np.empty(count + 1, np.int32)
        laid = np.empty(int(lengths.sum()), np.uint8)
        need("headrace.schemas.column_kernel").lay_bytes(self._data, starts, lengths, ends, laid)
        buffers = [bitmap, arrow.py_buffer(ends), arrow.py_buffer(laid)]
        made = arrow.Array.from_buffers(arrow.binary(), count, buffers)
        if layout.type.kind == "string":
            try:
                return made.cast(target)
            except arrow.ArrowInvalid:
                self._find_broken(made)
                return arrow.nulls(count, target)
        if arrow.types.is_decimal(target):
            return _decimals(made, target)
        if layout.type.kind == "fixed":
            filled = arrow.compute.fill_null(made, bytes(layout.type.size)) if made.null_count else made
            plain = filled.cast(target)
            return arrow.compute.if_else(made.is_valid(), plain, None) if made.null_count else plain
        return made

    def _find_broken(self, texts: Any) -> None:
        for at, one in enumerate(texts.to_pylist()):
            try:
                (one or b"").decode()
            except UnicodeDecodeError:
                self.broken_rows.append(at if self._owner is None else int(self._owner[at]))

    def _bitmap(self, valid: Any) -> Any:
        if valid is None:
            return None
        np = self._np
        return self._arrow.py_buffer(np.packbits(valid.astype(bool), bitorder="little"))


def _constant(layout: Layout, count: int) -> Any:
    """The default of a field, for every row."""
    arrow = need("pyarrow")
    kind = layout.type
    target = arrow_type(kind)
    value = _default_value(layout.constant, kind)
    one = arrow.array([value], target)
    return one.take(arrow.array([0] * count, arrow.int32()))


def _default_value(value: Any, kind: AvroType) -> Any:
    """A default as JSON has it, as what Arrow takes."""
    if value is None:
        return None
    match kind.kind:
        case "bytes" | "fixed":
            raw = str(value).encode("latin-1")
            return _decimal(raw, kind.props) if kind.props.get("logicalType") == "decimal" else raw
        case "array":
            return [_default_value(one, _items(kind)) for one in value]
        case "map":
            return [(key, _default_value(one, _items(kind))) for key, one in value.items()]
        case "record":
            return {
                one.name: _default_value(value.get(one.name, one.default if one.has_default else None), one.type)
                for one in kind.fields
            }
        case "union":
            others = [branch for branch in kind.branches if branch.kind != "null"]
            first = kind.branches[0]
            if len(others) == 1:
                return _default_value(value, others[0])
            return {f"member{others.index(first)}": _default_value(value, first)}
        case "float" | "double":
            return float(value)
        case _:
            return value


def _decimal(raw: bytes, props: Mapping[str, Any]) -> Any:
    from decimal import Decimal

    return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-props.get("scale", 0))


def _decimals(made: Any, target: Any) -> Any:
    arrow = need("pyarrow")
    props = {"scale": target.scale}
    return arrow.array([None if one is None else _decimal(one, props) for one in made.to_pylist()], target)


def _shaped(value: Any, kind: AvroType) -> Any:
    """What fastavro read, as Arrow takes it."""
    if value is None:
        return None
    match kind.kind:
        case "record":
            return {one.name: _shaped(value[one.name], one.type) for one in kind.fields}
        case "array":
            return [_shaped(one, _items(kind)) for one in value]
        case "map":
            return [(key, _shaped(one, _items(kind))) for key, one in value.items()]
        case "union":
            others = [branch for branch in kind.branches if branch.kind != "null"]
            if len(others) == 1:
                return _shaped(value, others[0])
            for number, one in enumerate(others):
                if _is_of(value, one):
                    return {f"member{number}": _shaped(value, one)}
            raise SerializationError(f"{value!r} is none of {json.dumps([one.label for one in others])}")
        case "string":
            return str(value)
        case _:
            return value


def _is_of(value: Any, kind: AvroType) -> bool:
    expected: Callable[[], Any] = lambda: {  # noqa: E731
        "boolean": bool, "int": int, "long": int, "float": float, "double": float, "string": str, "enum": str,
        "bytes": bytes, "fixed": bytes, "array": list, "map": dict, "record": dict,
    }[kind.kind]  # fmt: skip
    return type(value) is expected() and (kind.kind != "record" or value.keys() == {one.name for one in kind.fields})
