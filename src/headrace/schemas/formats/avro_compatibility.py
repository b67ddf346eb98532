"""Whether one Avro schema can read what another wrote, decided as Avro's specification and its Java library decide."""

from __future__ import annotations

from headrace.schemas.formats.avro import AvroField, AvroType
from headrace.schemas.formats.problem import Problem

_PROMOTIONS = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}


def problems(reader: AvroType, writer: AvroType) -> list[Problem]:
    """Everything that keeps `reader` from reading what was written with `writer`."""
    return _Comparison().compare(reader, writer, "")


class _Comparison:
    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], list[Problem]] = {}
        """Records that contain themselves: a pair that is under way counts as compatible."""

    def compare(self, reader: AvroType, writer: AvroType, path: str) -> list[Problem]:
        if reader.kind == "record" == writer.kind:
            pair = (id(reader), id(writer))
            if pair not in self._pairs:
                self._pairs[pair] = []
                self._pairs[pair] = [*_names(reader, writer, path), *self._fields(reader, writer, path)]
            return self._pairs[pair]
        if writer.kind == "union":
            return self._written_union(reader, writer, path)
        if reader.kind == "union":
            return self._read_union(reader, writer, path)
        if reader.kind == writer.kind:
            return self._same_kind(reader, writer, path)
        if writer.kind in _PROMOTIONS.get(reader.kind, ()):
            return []
        return [Problem("TYPE_MISMATCH", path, f"{writer.label} is written where {reader.label} is read")]

    def _same_kind(self, reader: AvroType, writer: AvroType, path: str) -> list[Problem]:
        match reader.kind:
            case "array" | "map":
                assert reader.items is not None
                assert writer.items is not None
                return self.compare(
                    reader.items, writer.items, f"{path}/{'items' if reader.kind == 'array' else 'values'}"
                )
            case "fixed":
                found = _names(reader, writer, path)
                if reader.size != writer.size:
                    message = f"{reader.name} has {reader.size} bytes where {writer.size} are written"
                    found.append(Problem("FIXED_SIZE_MISMATCH", f"{path}/size", message))
                return found
            case "enum":
                found = _names(reader, writer, path)
                missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
                if missing and reader.default is None:
                    message = f"enum {reader.name} has no {', '.join(missing)}, and no default"
                    found.append(Problem("MISSING_ENUM_SYMBOLS", f"{path}/symbols", message))
                return found
            case _:
                return []

    def _fields(self, reader: AvroType, writer: AvroType, path: str) -> list[Problem]:
        found: list[Problem] = []
        written = {one.name: one for one in writer.fields}
        for number, one in enumerate(reader.fields):
            where = f"{path}/fields/{number}"
            source = _source(one, written)
            if source is not None:
                found += self.compare(one.type, source.type, f"{where}/type")
            elif not one.has_default:
                message = f"field {one.name} of {reader.name} is not written, and has no default"
                found.append(Problem("READER_FIELD_MISSING_DEFAULT_VALUE", where, message))
        return found

    def _written_union(self, reader: AvroType, writer: AvroType, path: str) -> list[Problem]:
        found: list[Problem] = []
        for number, branch in enumerate(writer.branches):
            against = self.compare(reader, branch, path)
            if against and reader.kind == "union":
                message = f"{branch.label} may be written, and the reader's union has nothing that reads it"
                against = [Problem("MISSING_UNION_BRANCH", f"{path}/{number}", message)]
            found += against
        return found

    def _read_union(self, reader: AvroType, writer: AvroType, path: str) -> list[Problem]:
        if any(not self.compare(branch, writer, path) for branch in reader.branches):
            return []
        message = f"{writer.label} is written, and none of the reader's union reads it"
        return [Problem("MISSING_UNION_BRANCH", path, message)]


def _source(one: AvroField, written: dict[str, AvroField]) -> AvroField | None:
    """The written field that a read one takes its value from: of its name, or of one of its aliases."""
    return next((written[name] for name in (one.name, *one.aliases) if name in written), None)


def _names(reader: AvroType, writer: AvroType, path: str) -> list[Problem]:
    if reader.short_name == writer.short_name or writer.name in reader.aliases:
        return []
    message = f"{writer.name} is written where {reader.name} is read, which has no such alias"
    return [Problem("NAME_MISMATCH", f"{path}/name", message)]
