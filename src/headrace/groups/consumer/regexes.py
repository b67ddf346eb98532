"""Regular expressions that members are subscribed to: checked at once, matched in the background."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import re2

from headrace.coordination import Job, Now
from headrace.errors import ErrorCode
from headrace.groups.consumer import records
from headrace.groups.consumer.group import ConsumerGroup, ResolvedRegex
from headrace.groups.consumer.moving import Moves
from headrace.groups.epochs.refusals import RefusedError
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.outcome import Outcome
from headrace.groups.topics import TopicLookup

REFRESH_INTERVAL_MIN_MS: Final = 10_000  # between two looks at the topics, unless there is a new expression
REGEX_LENGTH_MAX: Final = 10_000
_SYNTAX: Final = re.compile(
    r"\\Q.*?(?:\\E|\Z)|(?P<byte>\\C)|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\(\?P?<(?P<name>\w+)>", re.DOTALL
)


def compiled(text: str) -> re2.Pattern:
    """Refused unless RE2 understands it, which matches in a time that is linear in the name."""
    if len(text) > REGEX_LENGTH_MAX:
        raise _invalid(text, f"it has {len(text)} characters, and {REGEX_LENGTH_MAX} are allowed")
    _check_java(text)
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options=options)
    except (re2.error, UnicodeError) as error:
        reason = error.args[0] if error.args else error
        raise _invalid(text, reason.decode() if isinstance(reason, bytes) else str(reason)) from None


def _check_java(text: str) -> None:
    """Refuse what Java's RE2 does not understand, on which Kafka stands, though RE2 itself does."""
    names: set[str] = set()
    # What stands between \\Q and \\E, and what is escaped, is no syntax; nor is what stands in a class.
    for found in _SYNTAX.finditer(text):
        if found["byte"]:
            raise _invalid(text, "invalid escape sequence: \\C")
        name = found["name"]
        if name is not None:
            if name in names:
                raise _invalid(text, f"duplicate capture group name: {name}")
            names.add(name)


def _invalid(text: str, reason: str) -> RefusedError:
    shown = text[:100]
    return RefusedError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {reason}.",
    )


class Regexes:
    def __init__(self, moves: Moves, topics: TopicLookup) -> None:
        self._moves = moves
        self._topics = topics
        self._changes = 0  # of the topics that there are

    def topics_changed(self) -> None:
        """There are others than before."""
        self._changes += 1

    def check(self, group: ConsumerGroup, regex: str | None) -> None:
        """Refuse an expression that cannot be read."""
        if regex and regex not in group.regex_counts:
            compiled(regex)

    def is_known(self, group: ConsumerGroup, regex: str) -> bool:
        """Whether it is known what an expression matches; none matches nothing."""
        return not regex or regex in group.regexes

    def look(self, step: GroupStep[ConsumerGroup], may_know: Callable[[str], bool] | None) -> None:
        """Match the group's expressions, away from the event loop, if it is time to: with the topics of which whoever
        asks may know."""
        group, now_ms = step.group, step.at.monotonic_ms
        if not group.regex_counts or group.is_matching:
            return
        is_new = any(regex not in group.regexes for regex in group.regex_counts)
        if not is_new and group.matched_at_ms is not None:
            since_ms = now_ms - group.matched_at_ms
            if since_ms < REFRESH_INTERVAL_MIN_MS:
                return
            if group.matched_changes == self._changes and since_ms < self._moves.config.regex_refresh_interval_ms:
                return
        group.is_matching = True
        group.matched_at_ms, group.matched_changes = now_ms, self._changes
        patterns = {regex: compiled(regex) for regex in group.regex_counts}
        names = [name for name in self._topics.topic_names() if may_know is None or may_know(name)]
        step.out.jobs.append(
            Job(
                f"the topics of {len(patterns)} regular expressions of group {group.group_id}",
                partial(_match, patterns, names),
                partial(self._matched, group),
                partial(self._not_matched, group),
            )
        )

    def _matched(self, group: ConsumerGroup, out: Outcome, found: Mapping[str, frozenset[str]], at: Now) -> None:
        if not self._moves.is_served(group):
            return
        group.is_matching = False
        step = GroupStep(self._moves.shards, out, group, at)
        is_other = False
        for regex, topics in found.items():
            if regex not in group.regex_counts:
                continue
            before = group.regexes.get(regex)
            resolved = ResolvedRegex(topics, group.matched_changes, at.wall_ms)
            group.set_resolved(regex, resolved)
            if before is None or before.topics != topics:
                step.put(records.regex(group.group_id, regex, resolved))
                is_other |= bool(topics) if before is None else True
        if is_other:
            self._moves.bump_if(step, True)
        step.end()

    def _not_matched(self, group: ConsumerGroup, out: Outcome, error: Exception, at: Now) -> None:
        group.is_matching = False
        out.notes.append(f"group {group.group_id}: its regular expressions could not be matched: {error!r}")


def _match(patterns: Mapping[str, re2.Pattern], names: Iterable[str]) -> dict[str, frozenset[str]]:
    return {
        regex: frozenset(name for name in names if pattern.fullmatch(name) is not None)
        for regex, pattern in patterns.items()
    }
