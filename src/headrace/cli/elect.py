"""`headrace elect`: let partitions be led by their preferred replica again, or, when all else is lost, by any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.cli.completing import topics_there
from headrace.cli.options import Target, Yes, targeted
from headrace.cli.output import check_errors, confirm, note, usage
from headrace.client.admin import Admin, ElectionType
from headrace.errors import ElectionNotNeededError
from headrace.topics import TopicPartition


@targeted
def command(
    partitions: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC[-PARTITION]", help="These [all that need it].", autocompletion=topics_there),
    ] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Also a replica that is not in sync: records may be lost for good.")
    ] = False,
    yes: Yes = False,
    *,
    target: Target,
) -> None:
    """Elect leaders of partitions."""
    if unclean and not partitions:
        raise usage("--unclean needs the partitions by name: acknowledged records of each may be lost")
    if unclean:
        confirm("Records that were acknowledged may be lost for good. Elect all the same?", yes=yes)
    with target.admin() as admin:
        chosen = _partitions(admin, partitions) if partitions else None
        kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
        results = admin.elect_leaders(chosen, election_type=kind)
    for partition in sorted(results.ok):
        print(f"{partition}: elected")
    unneeded = [p for p, error in results.errors.items() if isinstance(error, ElectionNotNeededError)]
    if unneeded or not (results.ok or results.errors):
        note("the others are led as they should be" if results.ok else "all are led as they should be")
    check_errors(error for error in results.errors.values() if not isinstance(error, ElectionNotNeededError))


def _partitions(admin: Admin, texts: Sequence[str]) -> list[TopicPartition]:
    """Topics stand for all their partitions; a name with a number at its end is a topic's first, if there is one."""
    topics = set(admin.list_topics(list_internal=True))
    found: list[TopicPartition] = []
    for text in texts:
        topic, separator, number = text.rpartition("-")
        if text in topics:
            described = admin.describe_topics([text]).all()[text]
            found += [TopicPartition(text, info.partition) for info in described.partitions]
        elif separator and topic in topics and number.isdigit():
            found.append(TopicPartition(topic, int(number)))
        else:
            raise usage(f"{text!r} is neither a topic nor TOPIC-PARTITION, as in events-0")
    return found
