"""A certificate's subject, and the principal that the rules make of it, are what Java makes of them."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
from typing import Any

import pytest
from tests.broker.test_recordings import BEHAVIOUR

from headrace.broker.security.principals import (
    InvalidRulesError,
    NoRuleError,
    PrincipalRules,
    name_of,
    subject_of,
)


def cases(kind: str) -> list[dict[str, Any]]:
    path = BEHAVIOUR.parent / "vectors" / "principal-mapping.jsonl.gz"
    with gzip.open(path, "rt") as lines:
        return [case for case in map(json.loads, lines) if case["kind"] == kind]


def test_names_are_printed_as_java_prints_them() -> None:
    named = [case for case in cases("x500") if case["der"]]
    assert len(named) == 10
    assert {case["name"]: name_of(base64.b64decode(case["der"])) for case in named} == {
        case["name"]: case["name"] for case in named
    }


def test_rules_map_names_as_java_does() -> None:
    wrong = []
    for case in cases("ssl"):
        try:
            found: Any = PrincipalRules(case["rules"]).user(case["name"])
        except InvalidRulesError:
            found = InvalidRulesError
        except NoRuleError:
            found = NoRuleError
        expected = InvalidRulesError if case.get("rules_error") else NoRuleError if case["error"] else case["principal"]
        if found != expected:
            wrong.append((case, found))
    assert wrong == []


def test_a_damaged_certificate_is_refused_and_nothing_else() -> None:
    from headrace.certificates import Authority

    der = base64.b64decode("".join(Authority().certificate.splitlines()[1:-1]))
    assert subject_of(der) == "CN=Headrace trial authority"
    for end in range(len(der)):
        with pytest.raises(ValueError):
            subject_of(der[:end])
    for at in range(len(der)):
        for value in (0, 0x7F, 0x80, 0x84, 0xFF):
            with contextlib.suppress(ValueError):
                subject_of(der[:at] + bytes([value]) + der[at + 1 :])
