"""`headrace transaction`: list, describe, find those that hang, abort."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from headrace.cli.completing import topics_there, transactions_there
from headrace.cli.options import Json, Target, targeted
from headrace.cli.output import (
    Column,
    CommandError,
    check_errors,
    moment,
    note,
    print_json,
    report,
    show_rows,
    styled,
    usage,
)
from headrace.cli.times import duration_ms
from headrace.client.admin import Admin, OpenTransaction, TransactionDescription
from headrace.topics import TopicPartition
from headrace.words import visible

app = typer.Typer(no_args_is_help=True)

_OPEN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


@app.command("list")
@targeted
def list_(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only these: Ongoing, PrepareCommit, CompleteAbort, Empty …")
    ] = None,
    producer_id: Annotated[list[int] | None, typer.Option("--producer-id", help="Only of these producers.")] = None,
    longer_than: Annotated[
        str | None, typer.Option("--longer-than", metavar="DURATION", help="Only those open for longer: 10s, 15m …")
    ] = None,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """List transactional ids with the state of their last transaction."""
    with target.admin() as admin:
        found = admin.list_transactions(
            states=state or (),
            producer_ids=producer_id or (),
            running_longer_than_s=None if longer_than is None else duration_ms(longer_than) / 1000,
        )
    rows = [
        {"transactional_id": one.transactional_id, "producer_id": one.producer_id, "state": one.state} for one in found
    ]
    columns = [
        Column("transactional_id", "TRANSACTIONAL ID"),
        Column("producer_id", "PRODUCER"),
        Column("state", "STATE", style=_state_style),
    ]
    show_rows(rows, columns, as_json=as_json, empty="There are no transactions.")


def _state_style(state: Any) -> str:
    return "33" if state in _OPEN else "2"


@app.command()
@targeted
def describe(
    transactional_ids: Annotated[list[str], typer.Argument(metavar="ID", autocompletion=transactions_there)],
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show transactions: producer, state, age, the partitions written to."""
    with target.admin() as admin:
        results = admin.describe_transactions(transactional_ids)
    now_ms = int(time.time() * 1000)
    documents = [_document(results.ok[name], now_ms) for name in transactional_ids if name in results.ok]
    if as_json:
        print_json(documents)
    elif documents:
        print("\n\n".join("\n".join(_lines(document)) for document in documents))
    check_errors(results.errors.values())


def _document(found: TransactionDescription, now_ms: int) -> dict[str, Any]:
    start_ms = found.transaction_start_time_ms
    return {
        "transactional_id": found.transactional_id,
        "coordinator": found.coordinator_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": round(found.transaction_timeout_s * 1000),
        "start_time_ms": start_ms,
        "open_for_ms": None if start_ms is None else max(0, now_ms - start_ms),
        "partitions": [str(partition) for partition in sorted(found.topic_partitions)],
    }


def _lines(document: dict[str, Any]) -> list[str]:
    lines = [
        f"{styled(document['transactional_id'], '1')}  {document['state']}, producer {document['producer_id']} epoch "
        f"{document['producer_epoch']}, coordinator {document['coordinator']}, timeout {document['timeout_ms']} ms"
    ]
    if document["start_time_ms"] is not None:
        seconds = document["open_for_ms"] / 1000
        lines.append(f"  began {moment(document['start_time_ms'])} UTC, {seconds:.1f} s ago")
    if document["partitions"]:
        lines.append(f"  writes to {visible(', '.join(document['partitions']))}")
    return lines


@app.command()
@targeted
def hanging(
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="Only in these topics. None: all.", autocompletion=topics_there
        ),
    ] = None,
    longer_than: Annotated[
        str,
        typer.Option("--longer-than", metavar="DURATION", help="How long open at least: transaction.max.timeout.ms."),
    ] = "15m",
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Find transactions that hang: open in a partition, and no coordinator is going to end them.

    Readers of committed records stop before them. End one with `headrace transaction abort --topic-partition`.
    """
    with target.admin() as admin:
        found = admin.find_hanging_transactions(topic, open_for_longer_than_s=duration_ms(longer_than) / 1000)
    rows = [_hanging_row(one) for one in found]
    columns = [
        Column("topic", "TOPIC"),
        Column("partition", "PARTITION"),
        Column("start_offset", "START OFFSET"),
        Column("producer_id", "PRODUCER"),
        Column("producer_epoch", "EPOCH"),
        Column("last_timestamp_ms", "LAST WRITE", show=moment),
        Column("transactional_id", "TRANSACTIONAL ID"),
    ]
    show_rows(rows, columns, as_json=as_json, empty="No transaction hangs.")


def _hanging_row(one: OpenTransaction) -> dict[str, Any]:
    return {
        "topic": one.topic_partition.topic,
        "partition": one.topic_partition.partition,
        "start_offset": one.start_offset,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "coordinator_epoch": one.coordinator_epoch,
        "last_timestamp_ms": one.last_timestamp,
        "transactional_id": one.transactional_id,
    }


@app.command()
@targeted
def abort(
    transactional_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]", autocompletion=transactions_there)
    ] = None,
    topic_partition: Annotated[
        str | None, typer.Option("--topic-partition", metavar="TOPIC:PARTITION", help="Where one hangs.")
    ] = None,
    start_offset: Annotated[int | None, typer.Option("--start-offset", help="Where it begins there.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also when a coordinator still works on it: that tears the transaction.")
    ] = False,
    *,
    target: Target,
) -> None:
    """Abort open transactions.

    By ID: the producer is fenced, and the coordinator aborts what it left open. By --topic-partition and
    --start-offset: an abort marker is written there, for a transaction that hangs (see `headrace transaction hanging`).
    """
    if bool(transactional_ids) == (topic_partition is not None):
        raise usage("name transactional ids, or --topic-partition with --start-offset")
    with target.admin() as admin:
        if transactional_ids:
            results = admin.describe_transactions(transactional_ids)
            check_errors(results.errors.values())
            fenced = admin.fence_producers(transactional_ids)
            report(fenced, lambda name: f"{name}: its producer is fenced, what was open is aborted")
            return
        assert topic_partition is not None
        if start_offset is None:
            raise usage("--topic-partition needs --start-offset, which `headrace transaction hanging` shows")
        _abort_hanging(admin, _partition(topic_partition), start_offset, force=force)


def _partition(text: str) -> TopicPartition:
    topic, separator, number = text.rpartition(":")
    if not separator or not topic or not number.isdigit():
        raise usage(f"--topic-partition {text!r} is not TOPIC:PARTITION")
    return TopicPartition(topic, int(number))


def _abort_hanging(admin: Admin, partition: TopicPartition, start_offset: int, *, force: bool) -> None:
    producers = admin.describe_producers([partition])[partition]
    producer = next((one for one in producers if one.current_transaction_start_offset == start_offset), None)
    if producer is None:
        begins = sorted(
            one.current_transaction_start_offset
            for one in producers
            if one.current_transaction_start_offset is not None
        )
        there = f"open there: those beginning at {', '.join(map(str, begins))}" if begins else "none is open there"
        raise CommandError(f"no open transaction of {partition} begins at offset {start_offset}; {there}")
    hangs = admin.find_hanging_transactions([partition.topic], open_for_longer_than_s=0)
    if not force and not any(one.topic_partition == partition and one.start_offset == start_offset for one in hangs):
        raise CommandError(
            f"the transaction at {partition} offset {start_offset} does not hang: a coordinator works on it. Abort it "
            "by its transactional id (`headrace transaction list --producer-id "
            f"{producer.producer_id}`), or insist with --force"
        )
    admin.abort_transaction(partition, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)
    note(f"{partition}: an abort marker was written for producer {producer.producer_id}.")
