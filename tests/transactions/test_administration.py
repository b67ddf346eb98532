"""Describing and listing transactions, forgetting unused ids, and the patterns by which ids are listed."""

from __future__ import annotations

import random
import re
import time

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.transactions import TransactionConfig
from headrace.transactions.patterns import InvalidPattern, Pattern

from .clients import A0, ID, Clients


def two_ids() -> Clients:
    clients = Clients()
    clients.started(name="idle")
    clients.add(clients.started(name="busy"), A0, name="busy")
    return clients


def test_filters_narrow_the_list() -> None:
    clients = two_ids()
    clients.advance(5_000)
    assert clients.listed() == ["busy", "idle"]
    assert clients.listed(state_filters=["Ongoing"]) == ["busy"]
    assert clients.listed(state_filters=["Ongoing", "Empty"], producer_id_filters=[1_000]) == ["idle"]
    assert clients.listed(state_filters=["Dead"]) == []
    assert clients.listed(transactional_id_pattern="b.*") == ["busy"]
    assert clients.listed(transactional_id_pattern="b") == []
    assert clients.listed(transactional_id_pattern="") == ["busy", "idle"]
    assert clients.listed(duration_filter=4_999, state_filters=["Ongoing"]) == ["busy"]
    assert clients.listed(duration_filter=5_000, state_filters=["Ongoing"]) == []


def test_a_list_says_what_it_does_not_understand() -> None:
    clients = two_ids()
    request = ListTransactionsRequest(state_filters=["Nonsense", "PrepareEpochFence"])
    answer = clients.ask("list_transactions", request, 2)
    assert (answer.unknown_state_filters, answer.transaction_states) == (["Nonsense"], [])
    answer = clients.ask("list_transactions", ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_there_is_no_list_while_a_partition_is_loading() -> None:
    clients = two_ids()
    clients.absorb(clients.coordinator.begin_load(3, 1))
    answer = clients.ask("list_transactions", ListTransactionsRequest(), 2)
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_unused_ids_are_forgotten_by_tombstones() -> None:
    clients = Clients(TransactionConfig(id_expiration_ms=7_200_000))
    clients.started(name="unused")
    done = clients.started(name="done")
    clients.add(done, A0, name="done")
    clients.end(done, name="done")
    clients.advance(5_000_000)
    clients.started(name="used")
    clients.advance(5_000_000)
    assert clients.listed() == ["used"]
    assert [value for log in clients.log.values() for _, value in log].count(None) == 2
    clients.restart()
    assert clients.listed() == ["used"]
    assert clients.init(name="unused") == (ErrorCode.NONE, 1_003, 0)


def test_an_id_with_an_open_transaction_is_kept() -> None:
    clients = Clients(TransactionConfig(id_expiration_ms=1_000, max_timeout_ms=900_000_000, expiry_interval_ms=2_000))
    clients.add(clients.started(timeout_ms=900_000_000), A0)
    clients.advance(50_000)
    assert clients.listed() == [ID]


def test_a_pass_has_a_limit_and_goes_on_after_it() -> None:
    config = TransactionConfig(
        id_expiration_ms=1_000, expiry_interval_ms=5_000, expiry_records_max=3, state_topic_partitions=1
    )
    clients = Clients(config)
    for number in range(8):
        clients.started(name=f"id-{number}")
    clients.hold = True
    clients.run_until(clients.now_ms + 5_000)
    assert [len(outcome.records) for outcome in clients.held] == [3, 3, 2]
    clients.release()
    assert clients.listed() == []


def test_tombstones_that_are_not_written_leave_the_ids_as_they_were() -> None:
    clients = Clients(TransactionConfig(id_expiration_ms=1_000, expiry_interval_ms=5_000))
    me = clients.started()
    clients.hold = True
    clients.advance(6_000)
    assert clients.add(me, A0) == {A0: ErrorCode.CONCURRENT_TRANSACTIONS}
    clients.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    clients.hold = False
    assert clients.add(me, A0) == {A0: ErrorCode.NONE}


# --- patterns ---------------------------------------------------------------------------------------------------------


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
    with pytest.raises(InvalidPattern):
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
