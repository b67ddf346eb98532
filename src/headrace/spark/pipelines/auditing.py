"""What an audit found, as a document for programs and a page for people. No Spark here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.spark.pipelines.scanning import Scan

_SAID = {
    "lost": "not in the output",
    "duplicated": "more often",
    "unknown": "never had",
    "out of order": "overtook",
    "repeated": "again",
}
"""Examples of a kind belong to the finding with these words."""
_TOTALS = ("records", "batches", "commits", "aborts", "aborted_records", "open_records", "compacted", "holes", "bytes")


@dataclass(slots=True)
class Sums:
    """Counts over all records that are committed."""

    rows_in: int = 0
    rows_out: int = 0
    lost: int = 0
    duplicated: int = 0
    """Copies in the output beyond those in the input."""
    unknown: int = 0
    """In the output, and never in the input."""
    repeated: int = 0
    """Copies in the input itself."""
    out_of_order: int | None = None
    went_back: int | None = None
    blank_in: int = 0
    """Without what records are matched by: not compared."""
    blank_out: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)


def document_of(
    options: Mapping[str, Any], sums: Sums, scans: Mapping[str, Sequence[Scan]], compacted: Iterable[str] = ()
) -> dict[str, Any]:
    """All that was found; `findings` are the sentences that make it fail, `remarks` those that do not."""
    two = bool(options["against"])
    document: dict[str, Any] = {
        "source": list(options["source"]),
        "against": list(options["against"]),
        "match": options["match"],
        **{name: value for name, value in asdict(sums).items() if name != "examples"},
    }
    document["rows_in"] += sums.blank_in
    document["rows_out"] += sums.blank_out
    if not two:
        for name in ("rows_out", "lost", "duplicated", "unknown", "out_of_order", "blank_out"):
            del document[name]
    document["logs"] = {side: _log(found, set(compacted)) for side, found in scans.items() if found}
    document["findings"] = _findings(sums, document["logs"], two=two, exact=options["match"] != "key+value")
    document["remarks"] = _remarks(sums, document["logs"], two=two, exact=options["match"] != "key+value")
    document["examples"] = {name: found for name, found in sums.examples.items() if found}
    return document


def _log(scans: Sequence[Scan], compacted: set[str]) -> dict[str, Any]:
    totals = {name: sum(getattr(one, name) for one in scans) for name in _TOTALS}
    holes = sum(one.holes for one in scans if one.topic not in compacted)
    thinned = sum(one.compacted for one in scans if one.topic not in compacted)
    return totals | {
        "topics": sorted({one.topic for one in scans}),
        "unexplained": holes + thinned,
        "partitions": [asdict(one) for one in scans],
    }


def _findings(sums: Sums, logs: Mapping[str, Any], *, two: bool, exact: bool) -> list[str]:
    found: list[str] = []
    if two:
        found += _if(sums.lost, "{} of the input not in the output")
        found += _if(sums.duplicated, "{} in the output more often than in the input")
        found += _if(sums.unknown, "{} in the output that the input never had")
        found += _if(sums.out_of_order, "{} that overtook an earlier one of their key")
    elif exact:
        found += _if(sums.repeated, "{} that are there again")
    found += _if(sums.went_back, "{} whose sequence goes back within their key")
    for log in logs.values():
        found += _if(
            log["unexplained"], f"{{}} missing in {', '.join(log['topics'])}, which is not compacted", "offset"
        )
    return found


def _remarks(sums: Sums, logs: Mapping[str, Any], *, two: bool, exact: bool) -> list[str]:
    said: list[str] = []
    if two or not exact:
        said += _if(sums.repeated, "{} in the input the same as an earlier one")
    said += _if(sums.blank_in + sums.blank_out, "{} without what they are matched by were not compared")
    for log in logs.values():
        names = ", ".join(log["topics"])
        said += _if(log["aborted_records"], f"{{}} of aborted transactions in {names}, which read_committed leaves out")
        said += _if(log["open_records"], f"{{}} of transactions in {names} that have not ended, not looked at")
    return said


def _if(count: int | None, text: str, unit: str = "record") -> list[str]:
    return [text.format(f"{count:,} {unit}" + ("" if count == 1 else "s"))] if count else []


def headline(document: Mapping[str, Any]) -> str:
    """`in 1,000,000 · out 1,000,000 · lost 0 · duplicated 0`."""
    names = {"rows_in": "in"}
    if document["against"]:
        names |= {"rows_out": "out", "lost": "lost", "duplicated": "duplicated"}
        names |= {"unknown": "unknown"} if document["unknown"] else {}
        names |= {"out_of_order": "out of order"} if document["out_of_order"] is not None else {}
    else:
        names |= {"repeated": "repeated"}
    if document["went_back"] is not None:
        names["went_back"] = "gone back"
    return " · ".join(f"{title} {document[name]:,}" for name, title in names.items())


def report_lines(document: Mapping[str, Any]) -> list[str]:
    """The page for people: the verdict first."""
    way = f" → {', '.join(document['against'])}" if document["against"] else ""
    verdict = "nothing wrong" if not document["findings"] else f"{len(document['findings'])} findings"
    verdict = "1 finding" if len(document["findings"]) == 1 else verdict
    lines = [f"Audit of {', '.join(document['source'])}{way}: {verdict}", "", f"  {headline(document)}", ""]
    for sentence in document["findings"]:
        lines.append(f"  ✗ {sentence}")
        for name, found in document["examples"].items():
            if _SAID[name] in sentence:
                lines.append(f"      such as {', '.join(found)}")
    lines += [f"  · {sentence}" for sentence in document["remarks"]]
    if document["findings"] or document["remarks"]:
        lines.append("")
    for log in document["logs"].values():
        lines += [f"  {line}" for line in _log_lines(log)]
    lines.append(f"  Matched by {document['match']}; committed records only.")
    return lines


def _log_lines(log: Mapping[str, Any]) -> list[str]:
    heads = ("partition", "offsets", "records", "batches", "commits", "aborts", "aborted", "open", "missing")
    table = [list(heads)]
    for one in log["partitions"]:
        names = ("records", "batches", "commits", "aborts", "aborted_records", "open_records")
        cells = [f"{number:,}" for number in (*(one[name] for name in names), one["holes"] + one["compacted"])]
        table.append([f"{one['topic']}-{one['partition']}", f"{one['start']:,}…{one['end']:,}", *cells])
    widths = [max(len(row[at]) for row in table) for at in range(len(heads))]
    rows = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))] for row in table
    ]
    return [*("  ".join(row) for row in rows), ""]
