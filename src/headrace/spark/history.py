"""Whether what is committed and what is to be written belong to one history: who a sink is, and what its marker says.

Spark repeats at most its last batch, from the offsets that it has logged for it. So a marker with the same number and
the same offsets means that the batch is in. Anything else with that number, or a higher one, means that the checkpoint
is not the one that the output was written with. Pure: no Spark, no network.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from headrace.spark.markers import Marker
from headrace.spark.once import MarkerFinding, WrongHistoryError
from headrace.spark.options import GROUP_PREFIX
from headrace.spark.planning import IDENTITY, SourceOffsets, is_ours

DEFAULT_SINK = "main"
_OFFSETS_CHARS_MAX = 50_000
"""Of offsets that a marker carries for whoever has to begin anew: a record of the progress topic has its bounds."""
_OFFSETS_SHOWN_CHARS = 2_000
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)


@dataclass(frozen=True, slots=True)
class SinkIdentity:
    """A query and one of its sinks."""

    query: str
    sink: str = DEFAULT_SINK

    @property
    def transactional_id(self) -> str:
        """Also the marker's key. Each part is escaped, so that no two identities make one id."""
        return f"{GROUP_PREFIX}-{quote(self.query, safe='')}/{quote(self.sink, safe='')}"

    @property
    def is_sparks(self) -> bool:
        """Whether the query's id is one that Spark made, which no other job has."""
        return _UUID.fullmatch(self.query) is not None

    def earlier_id(self, topics: Sequence[str]) -> str:
        """The transactional id under which earlier versions wrote: by the topics, whose list may have changed since."""
        return f"{self.earlier_prefix}{'+'.join(sorted(topics))}"

    @property
    def earlier_prefix(self) -> str:
        return f"{GROUP_PREFIX}-{self.query}-"


def digest_of(parts: Sequence[str]) -> str:
    """A short text that differs when any part does."""
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Logged:
    """One entry of Spark's offset log: where every source stands behind a batch, and the watermark of event time."""

    watermark_ms: int
    sources: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Logged:
        """From the text of the log's file: a version, the batch's metadata, then a line for each source."""
        _, said, *sources = text.rstrip("\n").split("\n")
        return cls(int(json.loads(said).get("batchWatermarkMs", 0)), tuple(sources))

    @property
    def digest(self) -> str:
        # The same offsets with another watermark would close other windows. The time of the batch does not count:
        # planned anew with the same offsets, it has the same rows.
        return digest_of([str(self.watermark_ms), *(_canonical(source) for source in self.sources)])

    def progress(self) -> list[Mapping[str, Any]]:
        """Those of the sources that are ours."""
        found = [_parsed(source) for source in self.sources]
        return [one for one in found if is_ours(one)]

    def starting_offsets(self) -> dict[str, Any]:
        """What `startingOffsets` would be to go on from here, where that can be said: one source, and that ours."""
        ours = self.progress()
        if len(self.sources) != 1 or not ours or len(self.sources[0]) > _OFFSETS_CHARS_MAX:
            return {}
        said = SourceOffsets(SourceOffsets.from_json(ours[0]).offsets).to_json()
        return {topic: offsets for topic, offsets in said.items() if topic != IDENTITY}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _canonical(text: str) -> str:
    """The same for the same offsets, in whatever order they are written; the group that shows them does not count."""
    given = _parsed(text)
    if not isinstance(given, dict):
        return text
    if is_ours(given):
        given = {**given, IDENTITY: {name: one for name, one in given[IDENTITY].items() if name != "group"}}
    return json.dumps(given, sort_keys=True)


# --- what a marker says -----------------------------------------------------------------------------------------------


def judge(found: Marker | None, ours: Marker) -> MarkerFinding:
    """What the last committed marker says of our batch. Raises `WrongHistoryError` where it is of another history."""
    if found is None:
        return MarkerFinding.NOTHING
    if found.call and found.call == ours.call and found.batch == ours.batch:
        return MarkerFinding.OURS
    _check_owner(found, ours)
    if found.batch < ours.batch:
        if found.batch == ours.batch - 1 and found.end and ours.begin and found.end != ours.begin:
            raise WrongHistoryError(
                f"batch {ours.batch} of {_who(ours)} begins at other offsets of the source than those at which batch "
                f"{found.batch} ended, which is committed {_when(found)}. {_remedy(found)}"
            )
        return MarkerFinding.NOTHING
    if found.cluster and ours.cluster and found.cluster != ours.cluster:
        raise WrongHistoryError(
            f"the marker of {_who(ours)} says that batch {found.batch} was written to the cluster {found.cluster}, but "
            f"this is {ours.cluster}: the progress topic was copied from there, and says nothing about this output. "
            "Use a progress_topic of this cluster's own"
        )
    if not ours.end:
        # Whoever numbers batches by hand may repeat any.
        return MarkerFinding.BEFORE
    if found.batch > ours.batch:
        raise WrongHistoryError(
            f"batch {ours.batch} of {_who(ours)} comes although batch {found.batch} is committed {_when(found)}: Spark "
            f"repeats its last batch only, so the checkpoint is older than the output. {_remedy(found)}"
        )
    if found.end and (found.end != ours.end or (found.begin and ours.begin and found.begin != ours.begin)):
        raise WrongHistoryError(_other_content(found, ours))
    anew = sorted(name for name, one in found.topics.items() if ours.topics.get(name, one) != one)
    if anew:
        raise WrongHistoryError(
            f"batch {ours.batch} of {_who(ours)} is committed {_when(found)}, but {', '.join(anew)} was deleted and "
            f"made anew since: its rows are not there any more. {_remedy(found)}"
        )
    return MarkerFinding.BEFORE


def _check_owner(found: Marker, ours: Marker) -> None:
    for name in ("query", "sink"):
        theirs, mine = getattr(found, name), getattr(ours, name)
        if theirs and mine and theirs != mine:
            raise WrongHistoryError(
                f"the marker found for {_who(ours)} is of {_who(found)}: the progress topic was changed by hand"
            )


def _other_content(found: Marker, ours: Marker) -> str:
    if not ours.run:
        topics = ", ".join(sorted(found.topics)) or "other topics"
        return (
            f"{_who(ours)} was written {_when(found)}, but to {topics}: a name stands for one job. Give this one "
            "another name"
        )
    return (
        f"batch {ours.batch} of {_who(ours)} is committed {_when(found)}, but from other offsets of the source: the "
        f"checkpoint was restored from a backup, or is a copy. {_remedy(found)}"
    )


def _who(one: Marker) -> str:
    return f"query {one.query or '?'}, sink {one.sink or '?'}"


def _when(one: Marker) -> str:
    if one.at_ms < 0:
        return "already"
    return f"since {datetime.fromtimestamp(one.at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _remedy(found: Marker) -> str:
    said = json.dumps(found.offsets, separators=(",", ":")) if found.offsets else ""
    if not said:
        where = "startingOffsets where the committed output ends"
    elif len(said) > _OFFSETS_SHOWN_CHARS:
        where = "startingOffsets where the committed output ends (the marker's `offsets` in the progress topic)"
    else:
        where = f"startingOffsets={said}, where the committed output ends"
    return (
        "Nothing is written, since rows would be lost or repeated. Start the query with its newest checkpoint; or with "
        f"a new checkpoint, and {where}. Stop all other runs of the query first: if there was one, start this one once "
        "more, and go by what it says then"
    )
