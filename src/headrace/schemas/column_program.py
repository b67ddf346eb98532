"""A schema that records were written with, and one that they are read as, made into a program for the column kernel.

The program is numbers: operations with their operands. Each puts what it reads behind what is there in a slot, a column
of 64-bit numbers: a value, the bits of a float, where bytes begin and how many they are, how many items an array has,
whether there is a value at all. `Layout` says which slots make which Arrow array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, auto

from headrace.schemas.formats.avro import AvroType, is_default
from headrace.schemas.formats.avro_compatibility import problems
from headrace.schemas.schema import SchemaError

LOOPS_MAX = 32
"""How deep arrays and maps may be inside one another."""
OPERATIONS_MAX = 100_000
DISCARD = -1
"""The slot of what is written, and not read."""


class Op(IntEnum):
    """What the kernel does. The operands follow."""

    END = 0
    LONG = auto()  # slot
    FLOAT = auto()  # slot
    DOUBLE = auto()  # slot
    LONG_AS_FLOAT = auto()  # slot
    LONG_AS_DOUBLE = auto()  # slot
    FLOAT_AS_DOUBLE = auto()  # slot
    BOOLEAN = auto()  # slot
    BYTES = auto()  # slot of the start; that of the length is the next one
    FIXED = auto()  # slot of the start, size
    ENUM = auto()  # slot, where in the tables the reader's numbers are, how many
    UNION = auto()  # where in the tables the targets are, how many
    PUT = auto()  # slot, number
    JUMP = auto()  # target
    LOOP = auto()  # nothing: a new loop, of which nothing was read
    NEXT = auto()  # slot of the count, target after the last item
    FAIL = auto()  # nothing: what is written here cannot be read


@dataclass(eq=False, slots=True)
class Layout:
    """An Arrow array of the result: what it is made of."""

    type: AvroType
    valid: int = DISCARD
    """The slot that says which values there are; none where all are."""
    slot: int = DISCARD
    children: list[Layout] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    constant: object = None
    """What a field is that was not written: its default."""
    is_constant: bool = False


@dataclass(slots=True)
class Program:
    operations: list[int]
    tables: list[int]
    slots: int
    layout: Layout
    null_at: int
    """Where the operations begin that put a row that is null."""


def compile_program(written: AvroType, read: AvroType) -> Program:
    """How to read as `read` what was written as `written`; `SchemaError` if it cannot be."""
    found = problems(read, written)
    if found:
        told = "; ".join(f"{one.kind} at {one.path or '/'}: {one.message}" for one in found[:5])
        raise SchemaError(f"the reader's schema cannot read what was written: {told}")
    return _Compiler().program(written, read)


def check_has_columns(read: AvroType) -> None:
    """Refuse what has no columns: a type that contains itself."""
    _Compiler().layout(read)


class _Compiler:
    def __init__(self) -> None:
        self.operations: list[int] = []
        self.tables: list[int] = []
        self.slots = 0
        self._loops = 0
        self._under_way: list[AvroType] = []

    def program(self, written: AvroType, read: AvroType) -> Program:
        layout = self.layout(read, is_nullable=True)
        self._value(written, read, layout)
        self._emit(Op.END)
        null_at = len(self.operations)
        self._nothing(layout)
        self._emit(Op.END)
        return Program(self.operations, self.tables, self.slots, layout, null_at)

    # --- layouts ------------------------------------------------------------------------------------------------------

    def layout(self, read: AvroType, *, is_nullable: bool = False) -> Layout:
        """The slots of a type."""
        if read in self._under_way:
            raise SchemaError(f"{read.label} contains itself: it has no columns; read such records one by one")
        if read.kind == "record":
            self._under_way.append(read)
        try:
            if read.kind == "union":
                return self._union_layout(read)
            made = Layout(read, self._slot() if is_nullable else DISCARD)
            if read.kind == "record":
                made.names = [one.name for one in read.fields]
                made.children = [self.layout(one.type) for one in read.fields]
            elif read.kind in ("array", "map"):
                assert read.items is not None
                made.slot = self._slot()
                if read.kind == "map":
                    made.children.append(self.layout(AvroType("string")))
                made.children.append(self.layout(read.items))
            elif read.kind != "null":
                made.slot = self._slot()
                if read.kind in ("bytes", "string", "fixed"):
                    self._slot()
            return made
        finally:
            if read.kind == "record":
                self._under_way.pop()

    def _union_layout(self, read: AvroType) -> Layout:
        others = [branch for branch in read.branches if branch.kind != "null"]
        if not others:
            return Layout(AvroType("null"), self._slot())
        if len(others) == 1:
            made = self.layout(others[0], is_nullable=True)
            return (
                made if made.valid != DISCARD else Layout(made.type, self._slot(), made.slot, made.children, made.names)
            )
        made = Layout(read, self._slot())
        made.children = [self.layout(branch, is_nullable=True) for branch in others]
        made.names = [f"member{number}" for number in range(len(others))]
        return made

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    # --- operations ---------------------------------------------------------------------------------------------------

    def _emit(self, *numbers: int) -> int:
        if len(self.operations) > OPERATIONS_MAX:
            raise SchemaError(f"the schemas make more than {OPERATIONS_MAX} operations")
        self.operations += numbers
        return len(self.operations)

    def _put(self, slot: int, number: int) -> None:
        if slot != DISCARD:
            self._emit(Op.PUT, slot, number)

    def _value(self, written: AvroType, read: AvroType, layout: Layout) -> None:
        """Read one value."""
        if written.kind == "union":
            self._branches(written, lambda branch: self._branch(branch, read, layout))
        elif read.kind == "union":
            self._into_union(written, read, layout)
        else:
            self._put(layout.valid, 1)
            self._plain(written, read, layout)

    def _branch(self, written: AvroType, read: AvroType, layout: Layout) -> None:
        if read.kind != "union" and problems(read, written):
            self._emit(Op.FAIL)
        else:
            self._value(written, read, layout)

    def _into_union(self, written: AvroType, read: AvroType, layout: Layout) -> None:
        chosen = _chosen(read, written)
        if chosen is None:
            self._emit(Op.FAIL)
        elif chosen.kind == "null":
            self._nothing(layout)
        elif layout.type.kind != "union":
            self._put(layout.valid, 1)
            self._plain(written, chosen, layout)
        else:
            self._put(layout.valid, 1)
            others = [branch for branch in read.branches if branch.kind != "null"]
            for branch, child in zip(others, layout.children):
                if branch is chosen:
                    self._value(written, branch, child)
                else:
                    self._nothing(child)

    def _branches(self, written: AvroType, each: Callable[[AvroType], None]) -> None:
        count, at = len(written.branches), len(self.tables)
        self._emit(Op.UNION, at, count)
        self.tables += [0] * count
        ends = []
        for number, branch in enumerate(written.branches):
            self.tables[at + number] = len(self.operations)
            each(branch)
            ends.append(self._emit(Op.JUMP, 0) - 1)
        for end in ends:
            self.operations[end] = len(self.operations)

    def _plain(self, written: AvroType, read: AvroType, layout: Layout) -> None:
        slot = layout.slot
        match read.kind:
            case "null":
                return
            case "record":
                self._record(written, read, layout)
            case "array" | "map":
                self._loop(written, read, layout)
            case "enum":
                self._enum(written, read, slot)
            case "fixed":
                self._emit(Op.FIXED, slot, written.size)
            case "string" | "bytes":
                self._emit(Op.BYTES, slot)
            case "boolean":
                self._emit(Op.BOOLEAN, slot)
            case _:
                self._emit(_NUMBERS[written.kind, read.kind], slot)

    def _record(self, written: AvroType, read: AvroType, layout: Layout) -> None:
        sources = {}
        named = {one.name: one for one in written.fields}
        for number, one in enumerate(read.fields):
            source = next((named[name] for name in (one.name, *one.aliases) if name in named), None)
            if source is not None:
                sources[source.name] = number
        for one in written.fields:
            if one.name in sources:
                number = sources[one.name]
                self._value(one.type, read.fields[number].type, layout.children[number])
            else:
                self._discard(one.type)
        for number, one in enumerate(read.fields):
            if number not in sources.values():
                child = layout.children[number]
                if one.has_default and not is_default(one.type, one.default):
                    raise SchemaError(f"field {one.name} was not written, and its default does not go with its type")
                self._default(one.type, one.default, child)

    def _default(self, read: AvroType, value: object, layout: Layout) -> None:
        """A field that was not written. Its default stands beside the slots, which have something in its place."""
        if not (read.kind == "union" and value is None):
            layout.is_constant, layout.constant = True, value
        self._nothing(layout)

    def _loop(self, written: AvroType, read: AvroType, layout: Layout | None) -> None:
        self._loops += 1
        if self._loops > LOOPS_MAX:
            raise SchemaError(f"arrays and maps are more than {LOOPS_MAX} deep")
        self._emit(Op.LOOP)
        begin = len(self.operations)
        self._emit(Op.NEXT, DISCARD if layout is None else layout.slot, 0)
        target = len(self.operations) - 1
        assert written.items is not None
        if written.kind == "map":
            self._emit(Op.BYTES, DISCARD if layout is None else layout.children[0].slot)
        if layout is None:
            self._discard(written.items)
        else:
            assert read.items is not None
            self._value(written.items, read.items, layout.children[-1])
        self._emit(Op.JUMP, begin)
        self.operations[target] = len(self.operations)
        self._loops -= 1

    def _enum(self, written: AvroType, read: AvroType, slot: int) -> None:
        default = read.symbols.index(read.default) if read.default in read.symbols else -1
        at = len(self.tables)
        self.tables += [read.symbols.index(one) if one in read.symbols else default for one in written.symbols]
        self._emit(Op.ENUM, slot, at, len(written.symbols))

    def _discard(self, written: AvroType) -> None:
        """Read over a value."""
        if written in self._under_way:
            raise SchemaError(f"{written.label} contains itself: it has no columns; read such records one by one")
        match written.kind:
            case "null":
                return
            case "record":
                self._under_way.append(written)
                for one in written.fields:
                    self._discard(one.type)
                self._under_way.pop()
            case "array" | "map":
                self._loop(written, written, None)
            case "union":
                self._branches(written, self._discard)
            case "enum":
                self._emit(Op.LONG, DISCARD)
            case "fixed":
                self._emit(Op.FIXED, DISCARD, written.size)
            case "string" | "bytes":
                self._emit(Op.BYTES, DISCARD)
            case "boolean":
                self._emit(Op.BOOLEAN, DISCARD)
            case _:
                self._emit(_NUMBERS[written.kind, written.kind], DISCARD)

    def _nothing(self, layout: Layout) -> None:
        """A value that is not there: something in every slot that has one per row."""
        self._put(layout.valid, 0)
        self._put(layout.slot, 0)
        if layout.type.kind in ("bytes", "string", "fixed"):
            self._put(layout.slot + 1, 0)
        if layout.type.kind not in ("array", "map"):
            for child in layout.children:
                self._nothing(child)


_NUMBERS = {
    ("int", "int"): Op.LONG,
    ("int", "long"): Op.LONG,
    ("long", "long"): Op.LONG,
    ("int", "float"): Op.LONG_AS_FLOAT,
    ("long", "float"): Op.LONG_AS_FLOAT,
    ("int", "double"): Op.LONG_AS_DOUBLE,
    ("long", "double"): Op.LONG_AS_DOUBLE,
    ("float", "float"): Op.FLOAT,
    ("float", "double"): Op.FLOAT_AS_DOUBLE,
    ("double", "double"): Op.DOUBLE,
}


def _chosen(read: AvroType, written: AvroType) -> AvroType | None:
    """The type of a reader's union that a written value becomes: one of the same kind and name before any other."""
    same = [
        branch
        for branch in read.branches
        if branch.kind == written.kind and branch.short_name == written.short_name and not problems(branch, written)
    ]
    return next(iter(same), None) or next((one for one in read.branches if not problems(one, written)), None)
