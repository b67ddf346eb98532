"""Who a client's certificate names: its subject as Java prints it, and the rules that make a principal of that.

`ssl.principal.mapping.rules` are regular expressions of Java's over such a name (RFC 2253: the last part of the subject
first), so both have to be as Java has them. cryptography prints attributes that it knows by names that Java does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

# --- names ------------------------------------------------------------------------------------------------------------

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OID: Final = 0x06
_EXPLICIT_0: Final = 0xA0
#: What RFC 2253 gives a short name.
_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
#: The kinds of text in DER, and how each is encoded.
_TEXTS: Final = {
    0x0C: "utf-8",
    0x12: "ascii",
    0x13: "ascii",
    0x14: "iso-8859-1",
    0x16: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
_ESCAPED: Final = re.compile(r'[,+"\\<>;=]')


class MalformedNameError(ValueError):
    """A certificate whose subject cannot be read."""


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate (DER)."""
    ((_, body),) = _elements(certificate)
    (_, signed), *_ = _elements(body)
    fields = [content for tag, content in _elements(signed) if tag != _EXPLICIT_0]
    if len(fields) < 5:
        raise MalformedNameError("the certificate has no subject")
    return _printed(fields[4])  # after serial number, algorithm, issuer and validity


def name_of(der: bytes) -> str:
    """A distinguished name (DER) as Java's `X500Principal.getName()` prints it."""
    ((_, content),) = _elements(der)
    return _printed(content)


def _printed(content: bytes) -> str:
    parts = []
    for tag, several in _elements(content):
        if tag != _SET:
            raise MalformedNameError("a part of a name is no set")
        parts.append("+".join(_attribute(one) for _, one in _elements(several)))
    return ",".join(reversed(parts))


def _attribute(content: bytes) -> str:
    (tag, oid), (kind, value) = _elements(content)
    if tag != _OID:
        raise MalformedNameError("an attribute has no type")
    dotted = _dotted(oid)
    name = _NAMES.get(dotted)
    encoding = _TEXTS.get(kind)
    if name is None or encoding is None:
        return f"{name or dotted}=#{_whole(content, len(oid)).hex()}"
    try:
        text = value.decode(encoding)
    except UnicodeDecodeError:
        raise MalformedNameError(f"the text of {name} is none") from None
    return f"{name}={_escape(text)}"


def _escape(text: str) -> str:
    escaped = _ESCAPED.sub(lambda found: "\\" + found[0], text)
    body = escaped.strip(" ")
    before, after = len(escaped) - len(escaped.lstrip(" ")), len(escaped) - len(escaped.rstrip(" "))
    if not body:
        return "\\ " * len(escaped)
    start = "\\" if body.startswith("#") and not before else ""
    return "\\ " * before + start + body + "\\ " * after


def _whole(content: bytes, oid_bytes: int) -> bytes:
    """The value of an attribute with its own tag and length."""
    return content[2 + oid_bytes :]


def _dotted(oid: bytes) -> str:
    numbers, number = [], 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise MalformedNameError("an attribute has an empty type")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise MalformedNameError("an element has no length")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[at : at + count])
            at += count
        if at + length > len(data):
            raise MalformedNameError("an element is longer than what it is in")
        yield tag, data[at : at + length]
        at += length


# --- rules ------------------------------------------------------------------------------------------------------------

_PIECE: Final = r"(?:\\.|[^\\/])*"
_ONE_RULE: Final = re.compile(rf"(?P<default>DEFAULT)|RULE:(?P<pattern>{_PIECE})/(?P<result>{_PIECE})/(?P<case>[LU]?)")
_BETWEEN: Final = re.compile(r"\s*(?:,\s*|$)")
_REFERENCE: Final = re.compile(r"\\(?P<literal>.)|\$(?P<number>[0-9]+)|\$\{(?P<name>[A-Za-z][A-Za-z0-9]*)\}", re.DOTALL)
_JAVAS_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")
_JAVAS_CLASSES: Final = {
    r"\p{Alpha}": "a-zA-Z", r"\p{Lower}": "a-z", r"\p{Upper}": "A-Z", r"\p{Digit}": "0-9", r"\p{Alnum}": "a-zA-Z0-9",
}  # fmt: skip


class InvalidRulesError(ValueError):
    """`ssl.principal.mapping.rules` that cannot be read."""


class NoRuleError(Exception):
    """No rule is for a name, so that its owner has no principal."""


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None
    result: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        made = self.pattern.sub(self._replaced, name)
        return made.lower() if self.case == "L" else made.upper() if self.case == "U" else made

    def _replaced(self, found: re.Match[str]) -> str:
        def piece(reference: re.Match[str]) -> str:
            if reference["literal"] is not None:
                return reference["literal"]
            if reference["name"] is not None:
                return found[reference["name"]] or ""
            number = int(reference["number"])
            return found[number] or "" if number <= found.re.groups else reference[0]

        return _REFERENCE.sub(piece, self.result)


class PrincipalRules:
    """Which user a certificate is of."""

    def __init__(self, text: str) -> None:
        self._rules = list(_parsed(text))
        self._text = text

    def user(self, name: str) -> str:
        for rule in self._rules:
            user = rule.apply(name)
            if user is not None:
                return user
        raise NoRuleError(f"no rule of ssl.principal.mapping.rules ({self._text}) is for {name}")


def _parsed(text: str) -> Iterator[_Rule]:
    rest = text.strip()
    while rest:
        found = _ONE_RULE.match(rest)
        end = None if found is None else _BETWEEN.match(rest, found.end())
        if found is None or end is None:
            raise InvalidRulesError(
                f"ssl.principal.mapping.rules: what begins with {rest[:60]!r} is neither DEFAULT nor "
                "RULE:pattern/replacement/ with L or U behind it"
            )
        yield _Rule(None, "", "") if found["default"] else _rule(found)
        rest = rest[end.end() :]


def _rule(found: re.Match[str]) -> _Rule:
    pattern = _JAVAS_NAMED_GROUP.sub("(?P<", found["pattern"])
    for java, python in _JAVAS_CLASSES.items():
        pattern = pattern.replace(java, f"[{python}]")
    try:
        rule = _Rule(re.compile(pattern, re.ASCII), found["result"], found["case"])
    except re.error as error:
        raise InvalidRulesError(f"ssl.principal.mapping.rules: {found['pattern']!r} is no pattern: {error}") from None
    for reference in _REFERENCE.finditer(rule.result):
        if reference["name"] is not None and reference["name"] not in (rule.pattern.groupindex if rule.pattern else {}):
            raise InvalidRulesError(f"ssl.principal.mapping.rules: there is no group {reference['name']}")
    return rule
