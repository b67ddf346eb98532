"""Describing and listing transactions, forgetting unused ids, and the patterns by which ids are listed."""

from __future__ import annotations

from headrace.errors import ErrorCode
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.transactions import TransactionConfig

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
    assert [value for log in clients.log.values() for _, value, *_ in log].count(None) == 2
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
