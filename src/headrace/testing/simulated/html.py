"""A run as a page: brokers as lanes, faults as bars, who leads each partition, who is in sync, how far it is committed;
and below that what happened, line by line."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from headrace.testing.simulated.runs import RunResult
from headrace.testing.simulated.story import chosen
from headrace.testing.simulated.timeline import CLUSTER, STORE, Span, TimelineEntry

_WIDTH = 1200
_LEFT = 150
_LANE = 26
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#edc948", "#76b7b2")
_LETTER = 6.5
_NOBODY = "#dddddd"
_LEADS = re.compile(r"^(?P<name>.+): broker (?P<broker>\d+) leads, epoch (?P<epoch>\d+)$")
_NOBODY_LEADS = re.compile(r"^(?P<name>.+): nobody leads, epoch (?P<epoch>\d+)$")
_IN_SYNC = re.compile(r"^(?P<name>.+): in sync \[(?P<isr>[\d, ]*)\]")
_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5em; color: #222; background: #fff }
svg { width: 100%; max-width: 1250px; font: 11px system-ui, sans-serif; display: block }
table { border-collapse: collapse; margin-top: 1em } td { padding: 1px 10px 1px 0; vertical-align: top }
tr.fault td { color: #b30000 } tr.leader td, tr.controller td { color: #1f4e79 } tr.isr td { color: #3c763d }
tr.failure td { background: #ffe0e0; font-weight: bold; white-space: pre-wrap } td.at { text-align: right }
p.verdict { font-weight: bold; white-space: pre-wrap } p.legend { color: #555 }
p.legend b { color: #fff; padding: 1px 8px; margin-right: 6px; font-weight: normal } label { margin-right: 1em }
"""
_SCRIPT = """
for (const box of document.querySelectorAll('input')) {
  box.onchange = () => {
    for (const row of document.querySelectorAll('#all tr.' + box.value)) row.style.display = box.checked ? '' : 'none';
  };
  box.onchange();
}
const svg = document.querySelector('svg'), box = svg.viewBox.baseVal, whole = box.width;
const show = (x, width) => {
  box.width = Math.min(whole, Math.max(whole / 200, width));
  box.x = Math.min(whole - box.width, Math.max(0, x));
};
svg.setAttribute('preserveAspectRatio', 'none');
svg.style.height = box.height + 'px';
svg.onwheel = (event) => {
  event.preventDefault();
  const part = event.offsetX / svg.clientWidth, at = box.x + part * box.width;
  const width = Math.min(whole, box.width * (event.deltaY < 0 ? 0.8 : 1.25));
  show(at - part * width, width);
};
let from = [0, 0];
svg.onpointerdown = (event) => { from = [event.offsetX, box.x]; };
svg.onpointermove = (event) => {
  if (event.buttons) show(from[1] - (event.offsetX - from[0]) / svg.clientWidth * box.width, box.width);
};
svg.ondblclick = () => show(0, whole);
"""


def page(verdict: RunResult) -> str:
    """The whole page, with nothing to load."""
    plan, timeline = verdict.plan, verdict.timeline
    brokers = [f"broker-{node_id}" for node_id in range(1, plan.brokers + 1)]
    clients = sorted({entry.lane for entry in timeline.entries} - {*brokers, STORE, CLUSTER})
    lanes = [*brokers, STORE, CLUSTER, *clients]
    partitions = _led(timeline.entries)
    # A little more than there is: what happened last is to be seen.
    end_s = max(verdict.virtual_s, 0.001) * 1.03
    rows = stacked(timeline.spans)
    tops, above = _tops(lanes, rows)
    height = _LANE * (above + len(partitions) + 2)
    drawing = [*_axis(end_s, height), *_lanes(verdict, tops, rows, end_s)]
    drawing += _partitions(partitions, timeline.watermarks, above, end_s)
    if verdict.failure is not None:
        x = _x(verdict.virtual_s, end_s)
        drawing.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 16}" stroke="#b30000" stroke-width="1.5"/>'
        )
    told = html.escape(verdict.failure or "Nothing was broken.")
    kinds = ("fault", "leader", "isr", "controller", "belief", "log", "client")
    boxes = "".join(
        f'<label><input type="checkbox"{"" if kind == "client" else " checked"} value="{kind}"> {kind}</label>'
        for kind in kinds
    )
    concerned = "" if verdict.failure is None else _concerned(verdict)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Seed {plan.seed}</title>'
        f"<style>{_STYLE}</style></head><body><h1>Seed {plan.seed}</h1><p>{html.escape(plan.lines()[0])}</p>"
        f'<p class="verdict">{told}</p>{concerned}<p class="legend">{_legend(plan.brokers)}</p>'
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(drawing)}</svg><p>{boxes}</p>'
        f'<table id="all">{"".join(map(_row, timeline.entries))}</table><script>{_SCRIPT}</script></body></html>\n'
    )


def _concerned(verdict: RunResult) -> str:
    """What tells of the failure, before all of it: the records and partitions that it names, the first faults."""
    rows = "".join(map(_row, chosen(verdict.timeline.entries, verdict.failure)))
    return f"<h2>What tells of it</h2><table>{rows}</table><h2>All of it</h2>"


def _legend(brokers: int) -> str:
    swatches = "".join(
        f'<b style="background: {_colour(node_id)}">broker {node_id}</b>' for node_id in range(1, brokers + 1)
    )
    return (
        f"Faults are red. Each partition has the colour of its leader: {swatches}and is grey while nobody leads. The "
        "dark line in it is its watermark. Dots are messages and moments; point at anything to read more. The wheel "
        "zooms, dragging moves, a double click shows all again."
    )


def _colour(node_id: int) -> str:
    return _NOBODY if node_id < 0 else _COLOURS[(node_id - 1) % len(_COLOURS)]


def _row(entry: TimelineEntry) -> str:
    text = html.escape(entry.text)
    return (
        f'<tr class="{entry.kind}"><td class="at">{entry.at_s:.3f} s</td><td>{html.escape(entry.lane)}</td>'
        f"<td>{text}</td></tr>\n"
    )


def _x(at_s: float, end_s: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 10) * at_s / end_s


def _axis(end_s: float, height: int) -> Iterable[str]:
    step_s = next((step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if end_s / step <= 16), 200)
    for number in range(int(end_s / step_s) + 1):
        at_s = number * step_s
        x = _x(at_s, end_s)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 16}" stroke="#eee"/>'
        yield f'<text x="{x:.1f}" y="{height - 4}" text-anchor="middle" fill="#666">{at_s:.6g} s</text>'


def stacked(spans: Iterable[Span]) -> dict[Span, int]:
    """The row of each bar within its lane: those that overlap are below one another."""
    ends: dict[str, list[float]] = {}
    found: dict[Span, int] = {}
    for span in sorted(spans, key=lambda span: span.start_s):
        rows = ends.setdefault(span.lane, [])
        row = next((number for number, end_s in enumerate(rows) if end_s <= span.start_s), len(rows))
        rows[row : row + 1] = [span.end_s]
        found[span] = row
    return found


def _tops(lanes: list[str], rows: dict[Span, int]) -> tuple[dict[str, int], int]:
    """On which row of the drawing each lane begins, and how many they have together."""
    tops: dict[str, int] = {}
    total = 0
    for lane in lanes:
        tops[lane] = total
        total += 1 + max((row for span, row in rows.items() if span.lane == lane), default=0)
    return tops, total


def _lanes(verdict: RunResult, places: dict[str, int], rows: dict[Span, int], end_s: float) -> Iterable[str]:
    for lane, place in places.items():
        y = place * _LANE
        yield f'<text x="4" y="{y + 17}">{html.escape(lane)}</text>'
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y + 13}" y2="{y + 13}" stroke="#bbb"/>'
    for span in verdict.timeline.spans:
        if span.lane in places:
            x, y = _x(span.start_s, end_s), (places[span.lane] + rows[span]) * _LANE + 4
            width = max(2.0, _x(span.end_s, end_s) - x)
            title = html.escape(f"{span.text} ({span.start_s:.2f} to {span.end_s:.2f} s)")
            yield f'<g><title>{title}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="18" fill="#e15759"'
            text = fitting(span.text, width)
            yield f' opacity="0.75"/><text x="{x + 3:.1f}" y="{y + 13}" fill="#fff">{text}</text></g>'
    begun = {(span.lane, span.start_s) for span in verdict.timeline.spans}
    for entry in verdict.timeline.entries:
        # What lasts has a bar; what happens in a moment has a dot.
        is_shown = entry.kind in ("log", "controller", "failure", "fault") and (entry.lane, entry.at_s) not in begun
        if is_shown and entry.lane in places:
            x, y = _x(entry.at_s, end_s), places[entry.lane] * _LANE + 13
            colour = "#b30000" if entry.kind in ("failure", "fault") else "#666"
            title = html.escape(f"{entry.at_s:.3f} s: {entry.text}")
            yield f'<circle cx="{x:.1f}" cy="{y}" r="3" fill="{colour}"><title>{title}</title></circle>'


def fitting(text: str, width: float) -> str:
    """As much of a text as there is room for, or nothing: with its end cut off, `in sync 2, 3, 1` is not true."""
    shorter = (text, text.split(":")[0], text.removeprefix("in sync "))
    return next((html.escape(choice) for choice in shorter if len(choice) * _LETTER < width - 3), "")


#: A time in which one broker led, or nobody (-1): when it began, the leader epoch, the in-sync replicas.
_Reign = tuple[float, int, str]


def _led(entries: Iterable[TimelineEntry]) -> dict[str, list[_Reign]]:
    """Who led each partition from when on, and whenever others were in sync."""
    found: dict[str, list[_Reign]] = {}
    for entry in entries:
        match = _LEADS.match(entry.text) or _NOBODY_LEADS.match(entry.text)
        if entry.kind == "leader" and match is not None:
            broker = int(match["broker"]) if "broker" in match.re.groupindex else -1
            found.setdefault(match["name"], []).append((entry.at_s, broker, f"epoch {match['epoch']}"))
        match = _IN_SYNC.match(entry.text)
        if entry.kind == "isr" and match is not None and match["name"] in found:
            _, broker, _ = found[match["name"]][-1]
            found[match["name"]].append((entry.at_s, broker, f"in sync {match['isr']}"))
    return found


def _partitions(
    found: dict[str, list[_Reign]], watermarks: dict[str, list[tuple[float, int]]], above: int, end_s: float
) -> Iterable[str]:
    for place, (name, reigns) in enumerate(sorted(found.items())):
        y = (above + place) * _LANE + 4
        yield f'<text x="4" y="{y + 13}">{html.escape(name)}</text>'
        for index, (at_s, broker, what) in enumerate(reigns):
            until_s = reigns[index + 1][0] if index + 1 < len(reigns) else end_s
            x = _x(at_s, end_s)
            width = max(1.0, _x(until_s, end_s) - x)
            colour = _colour(broker)
            who = "nobody leads" if broker < 0 else f"broker {broker} leads"
            title = html.escape(f"{name}: {who}, {what}, from {at_s:.3f} s")
            yield f'<g><title>{title}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="18" fill="{colour}"'
            yield f' stroke="#fff"/><text x="{x + 3:.1f}" y="{y + 13}" fill="#fff">{fitting(what, width)}</text></g>'
        yield from _watermark(name, watermarks.get(name, []), y, end_s)


def _watermark(name: str, risen: list[tuple[float, int]], y: int, end_s: float) -> Iterable[str]:
    """How far a partition was committed: a line from the foot of its bar to the head."""
    if not risen:
        return
    most = risen[-1][1]
    places = [(_x(at_s, end_s), y + 18 - 16 * offset / most) for at_s, offset in risen]
    line = f"M{places[0][0]:.1f} {y + 18}" + "".join(f"H{x:.1f}V{height:.1f}" for x, height in places)
    title = html.escape(f"{name}: committed up to {most}")
    yield f'<path d="{line}" fill="none" stroke="#222" opacity="0.6"><title>{title}</title></path>'
