"""What a configuration key is: its type, default and check, the same for brokers, topics and clients.

A `ConfigDefinition` is a table of `ConfigKey`s. `parse` turns what a user wrote (text or native values) into typed
values and names everything that is wrong at once; `unknown` says which key was probably meant. `format_value` prints
values as Kafka does.
"""

from __future__ import annotations

import difflib
import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias

from headrace.errors import HeadraceError
from headrace.functions import check_plain

INT16_MIN: Final = -(2**15)
INT16_MAX: Final = 2**15 - 1
INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


class ConfigError(HeadraceError):
    """Configuration that cannot be used. `problems` has one sentence per key that is wrong."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems: dict[str, str] = dict(problems)
        super().__init__("; ".join(self.problems.values()))


def check_plain_setting(name: str, function: object, method: str = "") -> None:
    """Refuse a function, or an object's method, that is given as a setting and of which a call runs nothing."""
    try:
        check_plain(function, f"{name} ({method})" if method else name)
    except TypeError as error:
        raise ConfigError({name: str(error)}) from None


class ConfigType(enum.IntEnum):
    """The type of a key; the numbers are those that DescribeConfigs answers with."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(enum.Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Password:
    """A secret that does not show itself in logs and error messages."""

    value: str

    def __repr__(self) -> str:
        return "[hidden]"

    __str__ = __repr__


ConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...] | Password | None
"""A parsed value. Lists are tuples, so that a parsed configuration can be shared without being changed."""

RawValue: TypeAlias = ConfigValue | Sequence[str]
"""What a user may give for a key: text as in a properties file, or the native value."""


class _NoDefault(enum.Enum):
    NO_DEFAULT = "no default"


NO_DEFAULT: Final = _NoDefault.NO_DEFAULT
"""The default of a key that must be given."""


# --- checks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """A test of a parsed value, with the words for what it allows ("at least 1")."""

    allowed: str
    accepts: Callable[[ConfigValue], bool]

    def __str__(self) -> str:
        return self.allowed


def at_least(low: int | float) -> Check:
    return Check(f"at least {low}", lambda value: isinstance(value, (int, float)) and value >= low)


def between(low: int | float, high: int | float) -> Check:
    return Check(f"between {low} and {high}", lambda value: isinstance(value, (int, float)) and low <= value <= high)


def one_of(*allowed: str | int | None, ignore_case: bool = False) -> Check:
    words = "one of " + ", ".join("null" if value is None else str(value) for value in allowed)
    if not ignore_case:
        return Check(words, lambda value: value in allowed)
    folded = {value.lower() if isinstance(value, str) else value for value in allowed}
    return Check(words + " (in any case)", lambda value: (value.lower() if isinstance(value, str) else value) in folded)


def list_of(*allowed: str, allow_empty: bool = True) -> Check:
    """Each element is one of these."""
    words = "a list of " + ", ".join(allowed) + ("" if allow_empty else ", with at least one of them")
    known = frozenset(allowed)

    def accepts(value: ConfigValue) -> bool:
        if not isinstance(value, tuple):
            return False
        return known.issuperset(value) and (allow_empty or len(value) > 0)

    return Check(words, accepts)


def list_matching(words: str, pattern: str, *, allow_empty: bool = True) -> Check:
    """Each element matches the whole pattern; `words` says what that means."""
    compiled = re.compile(pattern)

    def accepts(value: ConfigValue) -> bool:
        if not isinstance(value, tuple):
            return False
        return all(compiled.fullmatch(element) for element in value) and (allow_empty or len(value) > 0)

    return Check(words, accepts)


def list_of_any(*, allow_empty: bool = True, allow_null: bool = False) -> Check:
    """A list without empty elements."""
    words = "a list without empty elements" + ("" if allow_empty else ", with at least one")

    def accepts(value: ConfigValue) -> bool:
        if value is None:
            return allow_null
        if not isinstance(value, tuple) or "" in value:
            return False
        return allow_empty or len(value) > 0

    return Check(words, accepts)


def matching(words: str, pattern: str) -> Check:
    """Text that matches the whole pattern; `words` says what that means."""
    compiled = re.compile(pattern)
    return Check(words, lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None)


def non_empty() -> Check:
    return Check("text that is not empty", lambda value: value is None or (isinstance(value, str) and value != ""))


def all_of(*checks: Check) -> Check:
    return Check(" and ".join(check.allowed for check in checks), lambda value: all(c.accepts(value) for c in checks))


def any_of(*checks: Check) -> Check:
    return Check(" or ".join(check.allowed for check in checks), lambda value: any(c.accepts(value) for c in checks))


# --- keys and tables --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Synonym:
    """Another key, of another table, that gives this one its default; `scale` turns its unit into ours."""

    name: str
    scale: int = 1


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key. `aliases` are other spellings accepted for it; `synonyms` are keys that stand in when it is not set."""

    name: str
    type: ConfigType
    default: ConfigValue | _NoDefault = NO_DEFAULT
    validator: Check | None = None
    doc: str = ""
    importance: Importance = Importance.MEDIUM
    sensitive: bool = False
    synonyms: tuple[Synonym, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def is_sensitive(self) -> bool:
        return self.sensitive or self.type is ConfigType.PASSWORD

    @property
    def required(self) -> bool:
        return self.default is NO_DEFAULT

    def parse(self, raw: RawValue) -> ConfigValue:
        """The typed value; a `ConfigError` says what would be right."""
        try:
            value = parse_value(self.type, raw)
        except ValueError as error:
            raise ConfigError({self.name: self._problem(raw, str(error))}) from None
        if value is None and self.default is None:
            return None
        if value is None and self.validator is None:
            raise ConfigError({self.name: self._problem(raw, "a value is needed")})
        if self.validator is not None and not self.validator.accepts(value):
            raise ConfigError({self.name: self._problem(raw, f"must be {self.validator.allowed}")})
        return value

    def _problem(self, raw: RawValue, why: str) -> str:
        shown = "[hidden]" if self.is_sensitive else "null" if raw is None else str(raw)
        return f"Invalid value {shown} for configuration {self.name}: {why}"


class ConfigDefinition:
    """A table of keys: what may be configured, and how a configuration is read."""

    __slots__ = ("_by_alias", "_keys")

    def __init__(self, keys: Iterable[ConfigKey]) -> None:
        self._keys: dict[str, ConfigKey] = {}
        self._by_alias: dict[str, ConfigKey] = {}
        for key in keys:
            for name in (key.name, *key.aliases):
                if name in self._by_alias:
                    raise ValueError(f"the configuration key {name} is defined twice")
                self._by_alias[name] = key
            self._keys[key.name] = key

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, name: object) -> bool:
        return name in self._by_alias

    def __getitem__(self, name: str) -> ConfigKey:
        return self._by_alias[name]

    def get(self, name: str) -> ConfigKey | None:
        return self._by_alias.get(name)

    @property
    def names(self) -> list[str]:
        return list(self._keys)

    def defaults(self) -> dict[str, ConfigValue]:
        """The default of every key that has one."""
        return {key.name: key.default for key in self if not isinstance(key.default, _NoDefault)}

    def parse(self, mapping: Mapping[str, RawValue]) -> dict[str, ConfigValue]:
        """Every key of this table with its typed value: the one given, or the default.

        Keys that are not in the table are left out (see `unknown`). Everything wrong is reported in one `ConfigError`.
        """
        given, problems = self._parse_given(mapping)
        values: dict[str, ConfigValue] = {}
        for key in self._keys.values():
            if key.name in given:
                values[key.name] = given[key.name]
            elif not isinstance(key.default, _NoDefault):
                values[key.name] = key.default
            elif key.name not in problems:
                problems[key.name] = self._missing(key, mapping)
        if problems:
            raise ConfigError(problems)
        return values

    def _missing(self, key: ConfigKey, given: Iterable[str]) -> str:
        """What to say of a key that is needed: it may be there, misspelt."""
        misspelt = next((name for name, meant in self.unknown(given).items() if meant == key.name), None)
        if misspelt is not None:
            return f"There is no configuration {misspelt}; did you mean {key.name}, which is required?"
        return f"Missing required configuration {key.name}, which has no default value"

    def parse_given(self, mapping: Mapping[str, RawValue]) -> dict[str, ConfigValue]:
        """Like `parse`, but only the keys that are in the mapping: no defaults, nothing is missed."""
        given, problems = self._parse_given(mapping)
        if problems:
            raise ConfigError(problems)
        return given

    def _parse_given(self, mapping: Mapping[str, RawValue]) -> tuple[dict[str, ConfigValue], dict[str, str]]:
        given: dict[str, ConfigValue] = {}
        spelled: dict[str, str] = {}
        problems: dict[str, str] = {}
        for name, raw in mapping.items():
            key = self._by_alias.get(name)
            if key is None:
                continue
            if key.name in spelled:
                problems[key.name] = f"{name} and {spelled[key.name]} are the same configuration; give only one of them"
                continue
            spelled[key.name] = name
            try:
                given[key.name] = key.parse(raw)
            except ConfigError as error:
                problems.update(error.problems)
        return given, problems

    def unknown(self, mapping: Iterable[str]) -> dict[str, str | None]:
        """The names given that are not in this table, each with the known name probably meant, if any is near."""
        return {name: self.nearest(name) for name in mapping if name not in self._by_alias}

    def nearest(self, name: str) -> str | None:
        """The known name closest to this one: spelled the same but for case and separators, or a few letters off."""
        if len(name) > _NAME_LENGTH_MAX:
            return None
        plain = {_plain(known): known for known in self._by_alias}
        close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.75)
        return self._by_alias[plain[close[0]]].name if close else None


# Names of no key are longer, and to compare longer ones takes long.
_NAME_LENGTH_MAX = 100


def _plain(name: str) -> str:
    return re.sub(r"[._\-\s]", "", name).lower()


# --- values as text ---------------------------------------------------------------------------------------------------

_INTEGER_RANGES: Final[dict[ConfigType, tuple[int, int]]] = {
    ConfigType.SHORT: (INT16_MIN, INT16_MAX),
    ConfigType.INT: (INT32_MIN, INT32_MAX),
    ConfigType.LONG: (INT64_MIN, INT64_MAX),
}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
# Java's: what shows that a literal is a float or a double may stand behind it.
_NUMBER: Final = re.compile(r"([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)[fFdD]?")


def parse_value(type_: ConfigType, raw: RawValue) -> ConfigValue:
    """A value of this type from text or from a native value; a `ValueError` says what is expected instead."""
    if raw is None:
        return None
    if isinstance(raw, str):
        return _parse_text(type_, raw.strip())
    return _parse_native(type_, raw)


def _parse_text(type_: ConfigType, text: str) -> ConfigValue:
    if type_ is ConfigType.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ValueError("expected true or false")
        return text.lower() == "true"
    if type_ in _INTEGER_RANGES:
        if not _INTEGER.fullmatch(text):
            raise ValueError("expected a whole number")
        return _in_range(type_, int(text))
    if type_ is ConfigType.DOUBLE:
        number = _NUMBER.fullmatch(text)
        if number is None:
            raise ValueError("expected a number")
        return float(number[1])
    if type_ is ConfigType.LIST:
        # An element that comes twice counts once, as in Kafka.
        return tuple(dict.fromkeys(re.split(r"\s*,\s*", text))) if text else ()
    if type_ is ConfigType.PASSWORD:
        return Password(text)
    return text


def _parse_native(type_: ConfigType, raw: RawValue) -> ConfigValue:
    if type_ is ConfigType.BOOLEAN and isinstance(raw, bool):
        return raw
    if type_ in _INTEGER_RANGES and isinstance(raw, int) and not isinstance(raw, bool):
        return _in_range(type_, raw)
    if type_ is ConfigType.DOUBLE and isinstance(raw, (int, float)) and not isinstance(raw, bool):
        return float(raw)
    if type_ is ConfigType.PASSWORD and isinstance(raw, Password):
        return raw
    if type_ is ConfigType.LIST and isinstance(raw, Sequence) and all(isinstance(element, str) for element in raw):
        return tuple(dict.fromkeys(raw))
    raise ValueError(f"expected {_EXPECTED[type_]}, not {type(raw).__name__}")


_EXPECTED: Final = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "text",
    ConfigType.INT: "a whole number",
    ConfigType.SHORT: "a whole number",
    ConfigType.LONG: "a whole number",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a list of texts",
    ConfigType.CLASS: "the name of a class",
    ConfigType.PASSWORD: "a password",
}


def _in_range(type_: ConfigType, number: int) -> int:
    low, high = _INTEGER_RANGES[type_]
    if not low <= number <= high:
        raise ValueError(f"expected a whole number between {low} and {high}")
    return number


def format_value(value: ConfigValue | list[str]) -> str | None:
    """The value as Kafka prints it in DescribeConfigs: true, 0.5, 1.0E10, a,b. A password stays hidden."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _format_double(value)
    if isinstance(value, (tuple, list)):
        return ",".join(value)
    return str(value)


def _format_double(value: float) -> str:
    """Java's rule: plain digits from a thousandth to ten million, scientific beyond; always a digit after the point."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign, digits, _ = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    exponent = Decimal(repr(value)).adjusted()
    prefix = "-" if sign else ""
    if 1e-3 <= abs(value) < 1e7:
        plain = format(Decimal(repr(value)), "f")
        return plain if "." in plain else plain + ".0"
    return f"{prefix}{text[0]}.{text[1:] or '0'}E{exponent}"


# --- properties files -------------------------------------------------------------------------------------------------

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS: Final = " \t\f"


def parse_properties(text: str) -> dict[str, str]:
    """The keys and values of a Java properties file; of a key that comes twice, the last one counts."""
    result: dict[str, str] = {}
    for number, line in _logical_lines(text):
        end = _key_end(line)
        rest = line[end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        result[_unescape(line[:end], number)] = _unescape(rest, number)
    return result


def format_properties(values: Mapping[str, str]) -> str:
    """A properties file that `parse_properties` (and Java) reads back as these values, a key per line."""
    return "".join(f"{_escape(key, is_key=True)}={_escape(value, is_key=False)}\n" for key, value in values.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blank ones, continued lines joined; each with the number of its first line."""
    pending = ""
    first = 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = natural.lstrip(_BLANKS)
        if not pending:
            if not line or line[0] in "#!":
                continue
            first = number
        pending += line
        backslashes = len(pending) - len(pending.rstrip("\\"))
        if line and backslashes % 2 == 1:
            # A lone backslash would leave nothing to show that a line is being continued.
            pending = pending[:-1] or " "
            continue
        yield first, pending.lstrip(_BLANKS)
        pending = ""
    if pending.strip(_BLANKS):
        yield first, pending.lstrip(_BLANKS)


def _key_end(line: str) -> int:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 2
            continue
        if line[position] in "=:" or line[position] in _BLANKS:
            return position
        position += 1
    return len(line)


def _unescape(text: str, line_number: int) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        escape = match.group(1)
        if escape.startswith("u"):
            if len(escape) != 5:
                raise ConfigError({"": f"Line {line_number} of the properties has a malformed \\uXXXX escape: {text}"})
            return chr(int(escape[1:], 16))
        return _ESCAPES.get(escape, escape)

    joined = re.sub(r"\\(u[0-9a-fA-F]{4}|.|$)", replace, text, flags=re.DOTALL)
    # Characters beyond the BMP are written as two escapes.
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, *, is_key: bool) -> str:
    pieces: list[str] = []
    for position, character in enumerate(text):
        if character in "\\=:#!":
            pieces.append("\\" + character)
        elif character in "\t\n\r\f":
            pieces.append("\\" + {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}[character])
        elif character == " " and (is_key or position == 0):
            pieces.append("\\ ")
        elif " " <= character <= "~":
            pieces.append(character)
        else:
            units = character.encode("utf-16-be")
            pieces.extend(f"\\u{units[i] << 8 | units[i + 1]:04X}" for i in range(0, len(units), 2))
    return "".join(pieces)
