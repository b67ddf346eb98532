"""`python -m tests.hostile.fuzz [--seconds 60] [--seed 1] [--kind KIND …] [--jobs 2]`: mutated bytes into all decoders.

Requests and responses of every API key and version that is served; records of coordinators and of the controller;
batches; every file, as Apache Kafka wrote it (tests/reference/golden); what the cluster's stores hold; whole logs. Each
takes what it is given or says in its own words what is wrong with it. Anything else is a finding, printed with the
input that shows it: another exception, a crash of the process, more CPU or memory than `CPU_S_MAX` and `ROOM_BYTES`.

An input that was tried before is neither tried nor counted again. What was tried until now is said every half a minute,
and when Ctrl-C or SIGTERM ends it. `--corpus` has inputs that `guided` has found, to begin from.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple

from .shapes import Fuel, Kind, Shape, varied
from .targets import KINDS, MESSAGE_ERRORS, Target, all_targets

BLOCK = 256
LOG_BLOCK = 8
"""Of whole logs, which take milliseconds each."""
CPU_S_MAX = 0.25
"""Of one input; none is larger than 20 kB."""
ROOM_BYTES = 96 * 1024 * 1024
"""How much more memory a process may take than it did when it began, whatever it is given."""
LOG_ROOM_BYTES = 8 * ROOM_BYTES
"""… where whole logs are among them: threads reserve more than they use."""
STUCK_S = 120
CORPUS_MAX = 200
SEEN_BITS = 30
SAMPLED_EVERY = 32
TOLD_EVERY_S = 30.0
INPUT_BYTES_MAX = 1 << 20


class TookTooLong(BaseException):
    pass


class Finding(NamedTuple):
    target: str
    what: str
    data: bytes


class Tally:
    """What became of inputs, by target."""

    def __init__(self) -> None:
        self.inputs: Counter[str] = Counter()
        self.again: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()
        self.sampled: Counter[str] = Counter()  # of those that were refused: in how many it was looked where
        self.at_once: Counter[str] = Counter()  # … before anything was read
        self.read_share: Counter[str] = Counter()  # … how much of an input had been read, in percent
        self.places: dict[str, set[str]] = {}  # … by which lines
        self.cpu_s: Counter[str] = Counter()

    def dump(self) -> dict[str, Any]:
        counters = {name: dict(value) for name, value in vars(self).items() if name != "places"}
        return {**counters, "places": {name: sorted(lines) for name, lines in self.places.items()}}

    def add(self, dumped: dict[str, Any]) -> None:
        for name, value in dumped.items():
            if name == "places":
                for target, lines in value.items():
                    self.places.setdefault(target, set()).update(lines)
            else:
                getattr(self, name).update(value)

    def lines(self) -> Iterator[str]:
        total, cpu_s = self.inputs.total(), sum(self.cpu_s.values())
        for kind in KINDS:
            of_kind = [name for name in self.inputs if name.startswith(f"{kind}:")]
            if not of_kind:
                continue
            inputs, taken, sampled, at_once, share, again = (
                sum(counter[name] for name in of_kind)
                for counter in (self.inputs, self.taken, self.sampled, self.at_once, self.read_share, self.again)
            )
            places = len(set().union(*(self.places.get(name, ()) for name in of_kind)))
            refused = f"{at_once / max(1, sampled):.0%} of them at the first field, " if at_once else ""
            refused += f"after {share / max(1, sampled):.0f}% of their bytes, " if share else ""
            yield (
                f"{kind}: {len(of_kind)} decoders, {inputs} inputs, {min(self.inputs[name] for name in of_kind)} at "
                f"least of each, {taken / max(1, inputs):.0%} taken, others refused {refused}at {places} places; "
                f"{again / max(1, again + inputs):.1%} more were drawn again; "
                f"{inputs / max(1e-9, sum(self.cpu_s[name] for name in of_kind)):.0f} a second of CPU"
            )
        yield f"{total} inputs, {cpu_s:.0f} s of CPU, {total / max(1e-9, cpu_s):.0f} a second of CPU"


def _where(error: BaseException) -> tuple[str, int | None]:
    """The line that refused an input, and how far the decoder of a message had read."""
    trace, position, place = error.__traceback__, None, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno}"
        if code.co_filename.startswith("<") and code.co_name == "decode":
            position = trace.tb_frame.f_locals.get("position")
        trace = trace.tb_next
    return place, position


class Fuzzing:
    """Blocks of inputs for some targets, in one process."""

    def __init__(self, targets: Sequence[Target], seed: int, last: Any = None) -> None:
        self.targets = targets
        self.seed = seed
        self.tally = Tally()
        self.findings: dict[str, Finding] = {}
        self._seen = bytearray(1 << SEEN_BITS - 3)
        self._last = last if last is not None else bytearray(INPUT_BYTES_MAX)
        self._fuel_of, self._fuel = -1, Fuel(random.Random(seed))

    def block(self, place: int, number: int, size: int) -> None:
        """So many inputs of one target; the same ones every time."""
        target = self.targets[place]
        began = time.process_time()
        inputs = self._inputs(target, number, size)
        is_slow = False
        signal.setitimer(signal.ITIMER_PROF, 4 * CPU_S_MAX + size * CPU_S_MAX / 16)
        try:
            self._try(target, inputs)
        except TookTooLong:
            is_slow = True
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        used_s = time.process_time() - began
        self.tally.cpu_s[target.title] += used_s
        if is_slow or (used_s > CPU_S_MAX and target.kind != "log"):
            self._find_slow(target, inputs)

    def _inputs(self, target: Target, number: int, size: int) -> list[bytes]:
        draw, shapes = random.Random(f"{self.seed} {target.title} {number}").getrandbits, target.shapes
        if number != self._fuel_of:
            self._fuel_of, self._fuel = number, Fuel(random.Random(f"{self.seed} {number}"))
        fuel = self._fuel
        if target.reseal is None:
            return [varied(shapes, fuel, draw) for _ in range(size)]
        return [target.reseal(varied(shapes, fuel, draw), draw(32)) for _ in range(size)]

    def _try(self, target: Target, inputs: list[bytes]) -> None:
        decode, errors, seen, last = target.decode, target.errors, self._seen, self._last
        salt, mask = hash(target.title), (1 << SEEN_BITS) - 1
        tried = taken = 0
        for data in inputs:
            at = (hash(data) ^ salt) & mask
            bit = 1 << (at & 7)
            if seen[at >> 3] & bit:
                continue
            seen[at >> 3] |= bit
            last[4 : 4 + len(data)] = data
            last[:4] = len(data).to_bytes(4, "big")
            tried += 1
            try:
                decode(data)
                taken += 1
            except errors as error:
                if not tried % SAMPLED_EVERY:
                    self._look_at(target, data, error)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
                self._found(target, f"{type(error).__name__} at {_where(error)[0]}: {error!s:.300}", data)
        self.tally.inputs[target.title] += tried
        self.tally.again[target.title] += len(inputs) - tried
        self.tally.taken[target.title] += taken

    def _look_at(self, target: Target, data: bytes, error: Exception) -> None:
        place, position = _where(error)
        tally = self.tally
        tally.sampled[target.title] += 1
        tally.places.setdefault(target.title, set()).add(place)
        if position is not None:
            tally.at_once[target.title] += position == 0
            tally.read_share[target.title] += 100 * min(position, len(data)) // max(1, len(data))

    def _find_slow(self, target: Target, inputs: list[bytes]) -> None:
        """Which of these takes too long, if one does; the machine itself may have stood still."""
        for data in inputs:
            began = time.process_time()
            try:
                signal.setitimer(signal.ITIMER_PROF, 2 * CPU_S_MAX)
                with contextlib.suppress(Exception):
                    target.decode(data)
                signal.setitimer(signal.ITIMER_PROF, 0)
            except TookTooLong:
                pass
            if time.process_time() - began > CPU_S_MAX:
                self._found(target, f"took more than {CPU_S_MAX} s of CPU", data)

    def _found(self, target: Target, what: str, data: bytes) -> None:
        self.findings.setdefault(f"{target.title} {what.partition(':')[0]}", Finding(target.title, what, data))

    def sizes(self) -> list[int]:
        """How many inputs each target has at a time: more where there is more to change."""
        parts = [sum(len(shape.structure) for shape in target.shapes) // len(target.shapes) for target in self.targets]
        return [
            LOG_BLOCK
            if target.kind == "log"
            else max(1, min(8, count // 4)) * BLOCK // 4
            if target.errors is MESSAGE_ERRORS
            else BLOCK
            for target, count in zip(self.targets, parts)
        ]

    def rounds(self, seconds: float, rounds: int | None = None) -> Iterator[None]:
        """Every target in turn, the kinds as long as each other; a pause after each block."""
        sizes = self.sizes()
        places = {kind: [n for n, target in enumerate(self.targets) if target.kind == kind] for kind in KINDS}
        numbers = dict.fromkeys((kind for kind, some in places.items() if some), 0)
        used_s = dict.fromkeys(numbers, 0.0)
        end = time.monotonic() + seconds
        while numbers and time.monotonic() < end:
            kind = min(used_s, key=lambda kind: used_s[kind])
            number, place = divmod(numbers[kind], len(places[kind]))
            if rounds is not None and number >= rounds:
                del used_s[kind], numbers[kind]
                continue
            began = time.process_time()
            self.block(places[kind][place], number, sizes[places[kind][place]])
            used_s[kind] += time.process_time() - began
            numbers[kind] += 1
            yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise TookTooLong


def confine(room_bytes: int = ROOM_BYTES) -> None:
    """From here on more memory is a `MemoryError`."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + room_bytes, resource.RLIM_INFINITY))


def _not_stuck() -> None:
    """One that is in no Python code, and so is not interrupted, ends when it has had so much CPU without a word."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + STUCK_S, resource.RLIM_INFINITY))


def with_corpus(targets: list[Target], corpus: Path | None) -> list[Target]:
    """What coverage has chosen, as further shapes: `guided` keeps it in a directory for each decoder."""
    if corpus is None:
        return targets
    found = []
    for target in targets:
        more = sorted({path.read_bytes() for path in (corpus / file_name(target)).glob("*")}, key=len)[:CORPUS_MAX]
        found.append(target._replace(shapes=[*target.shapes, *(Shape([data], [Kind.CONTENT]) for data in more)]))
    return found


def file_name(target: Target) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in target.title)


def work(options: argparse.Namespace, part: int) -> None:
    """In a process of its own: every so often a line of JSON with what was tried since the last one."""
    signal.signal(signal.SIGPROF, _interrupt)
    logging.getLogger().addHandler(logging.NullHandler())  # what a log says of its damages is not to be read
    _not_stuck()
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=base) as directory, open(options.last, "r+b") as file:
        targets = all_targets(Path(directory) if "log" in options.kind else None, 1, options.kind)
        targets = with_corpus(targets, options.corpus)[part :: options.jobs]
        fuzzing = Fuzzing(targets, options.seed, mmap.mmap(file.fileno(), INPUT_BYTES_MAX))
        confine(LOG_ROOM_BYTES if "log" in options.kind else ROOM_BYTES)
        told = time.monotonic()
        for _ in fuzzing.rounds(options.seconds):
            if time.monotonic() - told > TOLD_EVERY_S / 4:
                told = time.monotonic()
                _not_stuck()
                _tell(fuzzing)
        _tell(fuzzing)


def _tell(fuzzing: Fuzzing) -> None:
    findings = [[found.target, found.what, found.data.hex()] for found in fuzzing.findings.values()]
    print(json.dumps({"tally": fuzzing.tally.dump(), "findings": findings}), flush=True)
    fuzzing.tally = Tally()


class Worker:
    def __init__(self, options: argparse.Namespace, part: int, directory: Path) -> None:
        self.last = directory / f"last-{part}"
        self.last.write_bytes(bytes(INPUT_BYTES_MAX))
        command = [sys.executable, "-m", __spec__.name, "--part", str(part), "--last", str(self.last)]
        command += ["--seed", str(options.seed), "--seconds", str(options.seconds), "--jobs", str(options.jobs)]
        command += [word for kind in options.kind for word in ("--kind", kind)]
        command += ["--corpus", str(options.corpus)] if options.corpus else []
        environment = {**os.environ, "PYTHONHASHSEED": "0"}  # what was seen before is told by hashes
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)

    def lines(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def crash(self) -> Finding | None:
        code = self.process.wait()
        if not code:
            return None
        raw = self.last.read_bytes()
        what = f"the process ended with {code}" if code > 0 else f"the process died of {signal.Signals(-code).name}"
        return Finding("the last input", what, raw[4 : 4 + int.from_bytes(raw[:4], "big")])


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return done.stdout.strip() or os.environ.get("COMMIT", "unknown")


def run(options: argparse.Namespace) -> tuple[Tally, dict[str, Finding]]:
    import selectors

    tally, findings = Tally(), {}
    with tempfile.TemporaryDirectory() as directory, selectors.DefaultSelector() as selector:
        workers = [Worker(options, part, Path(directory)) for part in range(options.jobs)]
        for worker in workers:
            selector.register(worker.lines(), selectors.EVENT_READ, worker)
        told = time.monotonic()
        try:
            while selector.get_map():
                for key, _ in selector.select(1.0):
                    line = key.fileobj.readline()  # type: ignore[union-attr]  # it is a file
                    if not line:
                        selector.unregister(key.fileobj)
                        crash = key.data.crash()
                        if crash is not None:
                            findings[f"{crash.what} {crash.data[:40]!r}"] = crash
                        continue
                    news = json.loads(line)
                    tally.add(news["tally"])
                    for target, what, data in news["findings"]:
                        name = f"{target} {what.partition(':')[0]}"
                        if name not in findings:
                            findings[name] = Finding(target, what, bytes.fromhex(data))
                            print(f"FOUND {target}: {what}\n  {data[:600]}", flush=True)
                if time.monotonic() - told > TOLD_EVERY_S:
                    told = time.monotonic()
                    print(
                        f"{time.strftime('%H:%M:%S')} {list(tally.lines())[-1]}; {len(findings)} findings", flush=True
                    )
        except KeyboardInterrupt:
            pass  # what was tried until then counts
        finally:
            for worker in workers:
                worker.process.terminate()
                worker.process.wait()
                worker.lines().close()
    return tally, findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a part of the decoders")
    parser.add_argument(
        "--kind", choices=KINDS, action="append", help="whole logs take a hundred times as long as others"
    )
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--last", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.kind = options.kind or list(KINDS)
    if options.part is not None:
        work(options, options.part)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"commit {_commit()}, seed {options.seed}, kinds {' '.join(options.kind)}", flush=True)
    tally, findings = run(options)
    for line in tally.lines():
        print(line)
    least = sorted(tally.inputs.items(), key=lambda item: item[1])[:5]
    print(f"the fewest: {', '.join(f'{name} {count}' for name, count in least)}")
    print(f"{len(findings)} findings")
    for target, what, data in findings.values():
        print(f"  {target}: {what}\n    {data[:300].hex()}")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
