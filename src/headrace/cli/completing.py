"""What the shell offers when Tab is pressed: topics, groups, pipelines and words that an option takes.

Whoever presses Tab does not want to wait, nor to read errors: a cluster is asked for a second, and nothing is offered
when it does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import typer

from headrace.cli.options import target_of
from headrace.client.admin import Admin
from headrace.errors import HeadraceError

_ASKED_S = 1.0

Completion = Callable[[str], list[str]]


class Offer(NamedTuple):
    """One word, in the shape that typer hands to shells (its own class for it moved between versions)."""

    value: str
    type: str = "plain"
    help: str | None = None


def of(*choices: str) -> Completion:
    """One of these words."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def topics_there(context: typer.Context, incomplete: str) -> list[str]:
    """The names of topics."""
    return topics_of(context.params, incomplete)


def topics_of(given: Mapping[str, Any], incomplete: str) -> list[str]:
    """The names of topics of the cluster that these options name."""
    return _asked(given, incomplete, lambda admin: admin.list_topics())


def groups_there(context: typer.Context, incomplete: str) -> list[str]:
    """The names of consumer groups."""
    return _asked(context.params, incomplete, lambda admin: [group.group_id for group in admin.list_groups()])


def transactions_there(context: typer.Context, incomplete: str) -> list[str]:
    """Transactional ids."""
    return _asked(
        context.params, incomplete, lambda admin: [each.transactional_id for each in admin.list_transactions()]
    )


def configured_there(context: typer.Context, incomplete: str) -> list[str]:
    """What has settings of the kind that was typed before it: topics, brokers or groups."""
    kind = getattr(context.params.get("kind"), "value", context.params.get("kind"))
    if kind == "topic":
        return topics_there(context, incomplete)
    if kind == "group":
        return groups_there(context, incomplete)
    numbers = _asked(
        context.params, incomplete, lambda admin: [str(node.id) for node in admin.describe_cluster().nodes]
    )
    return [*numbers, *of("default")(incomplete)]


def pipelines_known(incomplete: str) -> list[str]:
    """The ready-made pipelines."""
    from headrace.spark.pipelines import PIPELINES

    return of(*PIPELINES)(incomplete)


def _asked(given: Mapping[str, Any], incomplete: str, names: Callable[[Admin], Iterable[str]]) -> list[str]:
    try:
        target = target_of(given.get("bootstrap"), _ASKED_S, given.get("command_config"), given.get("properties") or ())
        with target.admin() as admin:
            return sorted(name for name in names(admin) if name.startswith(incomplete))
    except (HeadraceError, OSError):
        return []
