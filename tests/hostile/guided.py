"""`python -m tests.hostile.guided [--seconds 60] [--corpus DIRECTORY] [--export DIRECTORY]`: inputs chosen by coverage.

As `fuzz`, but what comes next follows from which branches were taken before: Atheris does that (libFuzzer; `pip install
headrace[fuzz]`). The first two bytes of an input choose the decoder, and whether checksums are made right again. What
is not one of our own errors ends it, and the input is kept beside the corpus. Ends with how many inputs there were, how
many of them every decoder had, and how many branches were found. `--export` puts those that found some into a directory
for each decoder, from which `fuzz --corpus` goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

PACKAGES = ["headrace.protocol", "headrace.records", "headrace.log", "headrace.cluster.store"]
COUNTED_EVERY = 5_000


def _targets() -> list[Any]:
    from .targets import all_targets

    return all_targets(None, 1)


def _write_seeds(corpus: Path) -> None:
    for place, target in enumerate(_targets()):
        for number, shape in enumerate(target.shapes[::8]):
            data = bytes((place >> 8 | 0x80, place & 0xFF)) + shape.data[:4096]
            (corpus / f"seed-{place}-{number}").write_bytes(data)


def _export(corpus: Path, directory: Path) -> int:
    from .fuzz import file_name

    targets, count = _targets(), 0
    for path in sorted(corpus.iterdir()):
        data = path.read_bytes()
        if len(data) > 2 and not path.name.startswith("seed-"):
            of_target = directory / file_name(targets[((data[0] & 0x7F) << 8 | data[1]) % len(targets)])
            of_target.mkdir(parents=True, exist_ok=True)
            (of_target / path.name[:16]).write_bytes(data[2:])
            count += 1
    return count


def _inside(corpus: Path, seconds: int, counted: Path) -> None:
    """In a process of its own, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=PACKAGES):
        targets = _targets()
    from headrace.protocol import codegen

    for decode in codegen._decoders.values():  # they were made when the targets were, and are changed in place
        atheris.instrument_func(decode)
    counts: Counter[int] = Counter()

    def one(data: bytes) -> None:
        if len(data) < 2:
            return
        place = (data[0] & 0x7F) << 8 | data[1]
        place %= len(targets)
        target, body = targets[place], data[2:]
        counts[place] += 1
        if sum(counts.values()) % COUNTED_EVERY == 0:
            named = {f"{targets[place].kind}: {targets[place].name}": count for place, count in counts.items()}
            counted.write_text(json.dumps(named))
        if data[0] & 0x80 and target.reseal is not None:
            body = target.reseal(body, -1)
        try:
            target.decode(body)
        except target.errors:
            pass

    options = [f"-max_total_time={seconds}", "-print_final_stats=1", "-max_len=8192", "-rss_limit_mb=2048"]
    options += ["-timeout=20", f"-artifact_prefix={corpus.parent}/found-"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.guided")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--export", type=Path)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        _inside(options.corpus, options.seconds, options.inside)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        corpus = options.corpus or Path(directory) / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        _write_seeds(corpus)
        counted = Path(directory) / "counts"
        command = [sys.executable, "-m", __spec__.name, "--seconds", str(options.seconds)]
        command += ["--corpus", str(corpus), "--inside", str(counted)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)
        inputs = re.search(r"stat::number_of_executed_units:\s+(\d+)", done.stdout)
        branches = re.findall(r"\bft: (\d+)", done.stdout)
        counts = json.loads(counted.read_text()) if counted.exists() else {}
        total = int(inputs[1]) if inputs else sum(counts.values())
        print(f"{total} inputs; {len(counts)} decoders, {min(counts.values(), default=0)} at least of each")
        print(f"{branches[-1] if branches else 0} features found, {len(list(corpus.iterdir()))} inputs in the corpus")
        if options.export is not None:
            print(f"{_export(corpus, options.export)} inputs exported")
        if done.returncode:
            print(done.stdout[-4000:])
        return 1 if done.returncode else 0


if __name__ == "__main__":
    raise SystemExit(main())
