"""Regular expressions from clients, matched in time that is linear in the text.

Python's own engine backtracks: a pattern of a dozen characters can keep it busy for years, and the broker with it.
Kafka matches with RE2; this is the part of RE2's language that names are matched with: literals, escapes, classes,
groups, alternatives, repetition, `^` and `$`, and `(?i)` at the start. Whatever else is refused as invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

PATTERN_LENGTH_MAX = 1_000
REPEAT_MAX = 1_000
STATES_MAX = 10_000
# After so many a search pauses (`Pattern.matching`): they take a millisecond or two.
STATES_PER_STEP = 5_000
_DEPTH_MAX = 100
_IGNORE_CASE = "(?i)"

_Test = Callable[[str], bool]
_ESCAPED_CLASSES: dict[str, _Test] = {
    "d": lambda c: "0" <= c <= "9",
    "w": lambda c: c == "_" or (c.isascii() and c.isalnum()),
    "s": lambda c: c in "\t\n\f\r ",
}
_ESCAPED_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class InvalidPatternError(ValueError):
    """The text is no regular expression, or a larger one than is allowed."""


class _Node:
    """A state: either takes one character that passes `test` on to `then[0]`, or leads to all of `then` at once."""

    __slots__ = ("anchor", "test", "then")

    def __init__(self, test: _Test | None = None, anchor: str = "") -> None:
        self.test = test
        self.anchor = anchor
        self.then: list[_Node] = []


# A piece of the machine: where it begins, and the one state at which it ends.
_Piece = tuple[_Node, _Node]


class Pattern:
    """A compiled expression; `matches` asks for the whole text, as Java's does."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_LENGTH_MAX:
            raise InvalidPatternError(f"a pattern of {len(text)} characters: at most {PATTERN_LENGTH_MAX} are allowed")
        self._first, self._last = _Parser(text).parse()

    def matches(self, text: str) -> bool:
        return any(found is not None for found in self.matching((text,)))

    def matching(self, texts: Iterable[str]) -> Iterator[str | None]:
        """Those of the texts that match, and now and then None: who has others to serve can do so every few ms.

        The time is linear in the texts, but also in the pattern: names of 20 characters may take a millisecond each.
        """
        entered = 0
        for text in texts:
            states = self._closure([self._first], 0, len(text))
            for position, character in enumerate(text):
                entered += len(states)
                if entered > STATES_PER_STEP:
                    entered = 0
                    yield None
                moved = [node.then[0] for node in states if node.test is not None and node.test(character)]
                states = self._closure(moved, position + 1, len(text))
                if not states:
                    break
            if self._last in states:
                yield text

    @staticmethod
    def _closure(nodes: list[_Node], position: int, end: int) -> set[_Node]:
        """All states that can be reached from these without taking a character."""
        seen: set[_Node] = set()
        while nodes:
            node = nodes.pop()
            if node in seen or (node.anchor == "^" and position != 0) or (node.anchor == "$" and position != end):
                continue
            seen.add(node)
            if node.test is None:
                nodes += node.then
        return seen


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._ignores_case = text.startswith(_IGNORE_CASE)
        self._at = len(_IGNORE_CASE) if self._ignores_case else 0
        self._states = 0
        self._depth = 0

    def parse(self) -> _Piece:
        piece = self._alternatives()
        if self._at < len(self._text):
            raise self._error("a ) without its (")
        return piece

    def _error(self, what: str) -> InvalidPatternError:
        return InvalidPatternError(f"{self._text!r} is no valid pattern: {what} at character {self._at}")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise self._error("something is missing at the end,")
        self._at += 1
        return character

    def _node(self, test: _Test | None = None, anchor: str = "") -> _Node:
        self._states += 1
        if self._states > STATES_MAX:
            raise InvalidPatternError(f"{self._text!r} is too large a pattern")
        return _Node(test, anchor)

    def _alternatives(self) -> _Piece:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._error("too many groups in groups")
        first, last = self._node(), self._node()
        while True:
            begin, end = self._sequence()
            first.then.append(begin)
            end.then.append(last)
            if self._peek() != "|":
                break
            self._at += 1
        self._depth -= 1
        return first, last

    def _sequence(self) -> _Piece:
        first = last = self._node()
        while self._peek() not in ("", "|", ")"):
            begin, end = self._repeated()
            last.then.append(begin)
            last = end
        return first, last

    def _repeated(self) -> _Piece:
        start = self._at
        piece = self._atom()
        stop = self._at
        low, high = self._quantifier()
        if (low, high) == (1, 1):
            return piece
        if self._peek() == "?":
            self._at += 1  # lazy or greedy: whether the whole text matches is the same
        after = self._at
        if self._peek() in ("*", "+"):
            raise self._error("a repetition of a repetition")
        pieces = [piece]
        for _ in range(max(low, 1 if high is None else high) - 1):
            # A machine cannot be copied, but its text can be read again.
            self._at = start
            pieces.append(self._atom())
            if self._at != stop:
                raise self._error("an atom that is not read the same twice")
        self._at = after
        return self._chain(pieces, low, high)

    def _chain(self, pieces: list[_Piece], low: int, high: int | None) -> _Piece:
        """So many in a row, of which those after the first `low` may be left out; without an end the last repeats."""
        first, last = self._node(), self._node()
        previous = first
        if high == 0:
            pieces = []
        for number, (begin, end) in enumerate(pieces):
            if number >= low:
                previous.then.append(last)
            previous.then.append(begin)
            previous = end
        if high is None:
            loop = self._node()
            previous.then.append(loop)
            loop.then += [pieces[-1][0], last]
        else:
            previous.then.append(last)
        return first, last

    def _quantifier(self) -> tuple[int, int | None]:
        sign = self._peek()
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if sign in simple:
            self._at += 1
            return simple[sign]
        if sign != "{":
            return 1, 1
        inside, brace, _ = self._text[self._at + 1 :].partition("}")
        low, comma, high = inside.partition(",")
        if not brace or not low.isdecimal() or not (high.isdecimal() or not high):
            return 1, 1  # then the brace is a character like others
        self._at += len(inside) + 2
        least = int(low)
        most = least if not comma else int(high) if high else None
        if least > REPEAT_MAX or (most is not None and not least <= most <= REPEAT_MAX):
            raise self._error(f"a repetition that is not within 0 to {REPEAT_MAX}")
        return least, most

    def _atom(self) -> _Piece:
        character = self._take()
        if character == "(":
            self._group_name()
            piece = self._alternatives()
            if self._peek() != ")":
                raise self._error("a ( without its )")
            self._at += 1
            return piece
        if character in "*+?":
            raise self._error("a repetition of nothing")
        if character in "^$":
            node = self._node(anchor=character)
            return node, node
        if character == "[":
            return self._one(self._set())
        if character == ".":
            return self._one(lambda c: c != "\n")
        if character == "\\":
            return self._one(self._escaped())
        return self._one(self._cased(lambda c: c == character))

    def _cased(self, test: _Test) -> _Test:
        return (lambda c: test(c.lower()) or test(c.upper())) if self._ignores_case else test

    def _one(self, test: _Test) -> _Piece:
        first, last = self._node(test), self._node()
        first.then.append(last)
        return first, last

    def _group_name(self) -> None:
        if self._peek() != "?":
            return
        rest = self._text[self._at :]
        if rest.startswith("?:"):
            self._at += 2
            return
        for opening in ("?P<", "?<"):
            name, end, _ = rest[len(opening) :].partition(">")
            if rest.startswith(opening) and end and name.isidentifier():
                self._at += len(opening) + len(name) + 1
                return
        raise self._error("a kind of group that is not supported")

    def _escaped(self) -> _Test:
        character = self._take()
        known = _ESCAPED_CLASSES.get(character.lower())
        if known is not None:
            return known if character.islower() else lambda c: not known(c)
        if character.isalnum() and character not in _ESCAPED_CHARACTERS:
            raise self._error(f"\\{character}, which is not supported,")
        literal = _ESCAPED_CHARACTERS.get(character, character)
        return self._cased(lambda c: c == literal)

    def _set(self) -> _Test:
        negated = self._peek() == "^"
        if negated:
            self._at += 1
        tests: list[_Test] = []
        while self._peek() != "]" or not tests:
            tests.append(self._member())
        self._at += 1
        found = tuple(tests)
        return lambda c: any(test(c) for test in found) != negated

    def _member(self) -> _Test:
        low = self._take()
        if low == "\\":
            return self._escaped()
        if low == "[" and self._peek() == ":":
            raise self._error("a named class, which is not supported,")
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return self._cased(lambda c: c == low)
        self._at += 1
        high = self._take()
        if high == "\\":
            high = self._take()
        if high < low:
            raise self._error(f"a range from {low!r} back to {high!r}")
        return self._cased(lambda c: low <= c <= high)
