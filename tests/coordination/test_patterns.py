"""Patterns of clients: RE2's language, matched against whole names, in time that is linear in the name."""

from __future__ import annotations

import random
import re
import time

import pytest

from headrace.coordination.patterns import InvalidPatternError, Pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("abc", ["abc"], ["ab", "abcd", ""]),
        ("a.c", ["abc", "a.c"], ["ac", "a\nc"]),
        ("a*b+c?", ["b", "aabb", "abc"], ["a", "acc"]),
        ("(ab|cd)+", ["ab", "cdab"], ["", "ac"]),
        ("(?:ab){2}", ["abab"], ["ab", "ababab"]),
        ("a{2,3}", ["aa", "aaa"], ["a", "aaaa"]),
        ("a{2,}?", ["aa", "aaaaa"], ["a"]),
        ("a{0}b", ["b"], ["ab"]),
        ("a{,2}", ["a{,2}"], ["aa"]),
        (r"\d+-\w*\.\S", ["12-ab.x"], ["-ab.x", "12-ab.", "12-a!.x"]),
        ("[a-c_-]+", ["ab_-"], ["d", ""]),
        ("[^a-c]", ["d"], ["a", ""]),
        ("[]a]+", ["]a"], ["b"]),
        (r"[\d.]+", ["1.2"], ["a"]),
        ("^ab$", ["ab"], ["abc"]),
        ("a^b", [], ["ab", "a^b"]),
        ("|a", ["", "a"], ["b"]),
        ("(?i)AbC", ["abc", "ABC"], ["abd"]),
        (r"(?i)[^a]\D", ["bx"], ["Ax", "b1"]),
        ("(?P<name>x)(?<other>y)", ["xy"], ["x"]),
        ("(a*)*b", ["aab", "b"], ["a"]),
        ("ü+", ["üü"], ["u"]),
    ],
)
def test_patterns_match_whole_names(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = Pattern(pattern)
    assert [text for text in matching + others if compiled.matches(text)] == matching


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "[", "[b-a]", "*", "a**", "a{3,2}", "a{1001}", "\\", r"\1", r"\b", "(?=a)", "(?<=a)b", "[[:alpha:]]"]
    + ["(" * 200 + ")" * 200, "a" * 1_001, "((a{100}){100}){100}"],
)
def test_what_is_no_pattern_or_too_large_a_one_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPatternError):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(.*)(.*)(.*)(.*)(.*)b", "(a+)+$b"])
def test_no_pattern_takes_long(pattern: str) -> None:
    compiled = Pattern(pattern)
    began = time.process_time()
    assert not compiled.matches("a" * 2_000)
    assert time.process_time() - began < 10


def test_patterns_agree_with_pythons() -> None:
    pick = random.Random(5)

    def piece(depth: int) -> str:
        kind = pick.randrange(8 if depth else 4)
        if kind < 4:
            return pick.choice(["a", "b", "c", ".", "[ab]", "[^a]", r"\w", r"\d"])
        if kind == 4:
            return f"({piece(depth - 1)}|{piece(depth - 1)})"
        if kind == 5:
            return f"(?:{piece(depth - 1)}){pick.choice(['*', '+', '?', '{2}', '{1,3}', '{0,2}', '{2,}'])}"
        return piece(depth - 1) + piece(depth - 1)

    for _ in range(400):
        pattern = piece(3)
        compiled, oracle = Pattern(pattern), re.compile(pattern)
        for _ in range(15):
            text = "".join(pick.choice("abc1") for _ in range(pick.randrange(7)))
            assert compiled.matches(text) == bool(oracle.fullmatch(text)), (pattern, text)
