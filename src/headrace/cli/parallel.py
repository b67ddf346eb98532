"""`headrace parallel`: run a handler over topics with many hands, with a live view and a page for Prometheus."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from headrace.cli.completing import groups_there, of, topics_there
from headrace.cli.options import Target, names_there, only, pairs, targeted
from headrace.cli.output import note, usage
from headrace.client.consumer.config import CONSUMER_CONFIGS
from headrace.metrics import serve
from headrace.parallel import Consumers, Model, ParallelConsumer, Pool, Ranges, Retry, Window
from headrace.parallel.view import LiveView
from headrace.words import did_you_mean

_MODELS = ("pool", "window", "consumers", "ranges")
_ORDERS = ("partition", "key", "none")
_PLACES = ("threads", "async", "processes")


@targeted
def command(
    handler: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What is called for every record.")],
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=topics_there)],
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group.", autocompletion=groups_there)],
    model: Annotated[str, typer.Option("--model", help=f"{', '.join(_MODELS)}.", autocompletion=of(*_MODELS))] = "pool",
    order: Annotated[str, typer.Option("--order", help=f"{', '.join(_ORDERS)}.", autocompletion=of(*_ORDERS))] = "key",
    on: Annotated[
        str | None,
        typer.Option("--on", help=f"{', '.join(_PLACES)}; else as it is written.", autocompletion=of(*_PLACES)),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="How many handlers run at once.")] = 16,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="The function takes lists of so many.")] = None,
    slot: Annotated[int, typer.Option("--slot", min=1, help="Window: records in a slot. Ranges: offsets.")] = 100,
    slots: Annotated[int, typer.Option("--slots", min=1, help="Window: slots.")] = 64,
    stall: Annotated[float, typer.Option("--stall", help="Give a handler up after so many seconds; 0: never.")] = 30.0,
    local: Annotated[int, typer.Option("--retries", min=0, help="Further tries on the spot.")] = 3,
    retry_topic: Annotated[
        str | None,
        typer.Option(
            "--retry-topic",
            metavar="TOPIC",
            help="Where what fails comes back from later.",
            autocompletion=topics_there,
        ),
    ] = None,
    attempts: Annotated[int, typer.Option("--attempts", min=1, help="Rounds through the retry topic.")] = 5,
    dead_letters: Annotated[
        str | None,
        typer.Option(
            "--dead-letters", metavar="TOPIC", help="Where what fails for good goes.", autocompletion=topics_there
        ),
    ] = None,
    transactional: Annotated[
        bool, typer.Option("--transactional", help="Divert a record and commit its offset in one transaction.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="Of the consumer; several times.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="A live view of partitions and workers.")] = False,
    metrics_port: Annotated[int | None, typer.Option("--metrics-port", help="Serve /metrics for Prometheus.")] = None,
    *,
    target: Target,
) -> None:
    """Consume topics in parallel: every record is handled at least once, in the order that is asked for.

    Ctrl-C drains, commits and leaves; a second one stops at once.
    """
    config: dict[str, Any] = only(target.config(), CONSUMER_CONFIGS) | pairs(settings or [], "--config")
    config.setdefault("auto.offset.reset", "earliest")
    consumer = ParallelConsumer(
        load(handler),
        topics=topics,
        group=group,
        config=config,
        model=_model(model, slot, slots, stall),
        order=order,
        on=on,
        workers=workers,
        batch=batch,
        retry=Retry(local=local, topic=retry_topic, attempts=attempts, dead_letters=dead_letters),
        transactional=transactional,
    )
    _say_what_is_missing([*topics, *filter(None, (retry_topic, dead_letters))], target)
    with contextlib.ExitStack() as stack:
        if metrics_port is not None:
            exporter = stack.enter_context(serve(metrics_port, consumer))
            note(f"metrics at {exporter.address}")
        if watch:
            # Log lines between the pictures would tear them apart; what they tell is counted in the view.
            stack.enter_context(LiveView(consumer.snapshot))
        else:
            stack.enter_context(_log_lines())
        consumer.run()
    note(consumer.snapshot().log_line())


def _say_what_is_missing(topics: list[str], target: Target) -> None:
    """They are made, where brokers make topics by themselves: of a name that was mistyped nothing ever comes."""
    there = names_there(target)
    if there is None:
        return
    for topic in topics:
        if topic not in there:
            note(f"there is no topic {topic} yet{did_you_mean(topic, there)}")


@contextlib.contextmanager
def _log_lines() -> Iterator[None]:
    """What happens to records, on standard error: failures, dead letters, a summary a minute, what Ctrl-C does."""
    logger = logging.getLogger("headrace.parallel")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def load(name: str) -> Callable[..., Any]:
    """The function that MODULE:FUNCTION names; modules of the current directory are found too."""
    module, separator, attribute = name.partition(":")
    if not separator or not module or not attribute:
        raise usage(f"{name!r} is not MODULE:FUNCTION")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise usage(f"{name} cannot be loaded: {error}") from error
    if not callable(found):
        raise usage(f"{name} is not a function")
    loaded: Callable[..., Any] = found
    return loaded


def _model(name: str, slot: int, slots: int, stall: float) -> Model:
    stall_s = stall if stall > 0 else None
    if name == "pool":
        return Pool(stall_s=stall_s)
    if name == "window":
        return Window(slot=slot, slots=slots, stall_s=stall_s)
    if name == "consumers":
        return Consumers()
    if name == "ranges":
        return Ranges(size=slot)
    raise usage(f"--model is {', '.join(_MODELS)}, not {name!r}")
