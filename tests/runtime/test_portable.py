"""A system that has less than Linux: nothing that only Linux has is needed, and it is named in one place."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headrace"
#: Where the choice is made; and a file that runs before anything can be imported.
CHOOSERS = {"runtime/system.py", "runtime/processes.py", "spark/daemon.py"}
LINUX_ONLY = re.compile(
    r"\b(os\.(preadv|pwritev|fdatasync|memfd_create|fallocate|splice)|RWF_\w+|renameat2|select\.epoll\(|CLOCK_BOOTTIME|posix_fadvise|"
    r"posix_fallocate|pidfd_open|sched_[gs]etaffinity|prctl|signalfd|inotify_\w+|O_DIRECT|O_TMPFILE|flock|"
    r"SO_PEERCRED|TCP_(CORK|QUICKACK|USER_TIMEOUT|INFO)|MSG_(ZEROCOPY|NOSIGNAL)|sys\.platform)\b|\"/proc"
)
#: What is only done where it was chosen there; and locks that every Unix has.
ALLOWED = {
    "net/tls.py": {"os.memfd_create", '"/proc'},
    "runtime/real_disk.py": {"os.preadv", "RWF_NOWAIT"},
    "runtime/server_transport.py": {"select.epoll("},
    "spark/pipelines/files.py": {"flock"},
}

# Takes away what macOS's Python does not have, then serves and uses a broker.
ROUND_TRIP = """
import os, fcntl, select, socket, sys, time
for module, names in (
    (os, "preadv pwritev fdatasync sendfile memfd_create eventfd eventfd_read eventfd_write sched_getaffinity"),
    (select, "epoll"), (time, "CLOCK_BOOTTIME"), (fcntl, "flock"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
listed = os.listdir
def listdir(path="."):
    if str(path).startswith("/proc"):
        raise FileNotFoundError(path)
    return listed(path)
os.listdir = listdir

from headrace import Consumer, Producer
from headrace.testing import broker

with broker(sys.argv[1]) as kafka:
    with Producer(bootstrap_servers=kafka.address) as producer:
        for number in range(2_000):
            producer.send("numbers", str(number).encode() * 50)
        producer.flush()
        # One record alone, by the caller's thread.
        assert producer.send("numbers", b"the last").result(30).offset == 2_000
    with Consumer(bootstrap_servers=kafka.address, group_id="me", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["numbers"])
        values = []
        while len(values) < 2_001:
            values += [record.value for record in consumer.poll(10.0)]
assert values == [str(number).encode() * 50 for number in range(2_000)] + [b"the last"], len(values)
print("done")
"""


def test_only_one_module_asks_which_system_it_is() -> None:
    found = [
        f"{name}: {match[0]}"
        for path in sorted(SOURCE.rglob("*.py"))
        if (name := path.relative_to(SOURCE).as_posix()) not in CHOOSERS
        for match in LINUX_ONLY.finditer(path.read_text("utf-8"))
        if match[0] not in ALLOWED.get(name, ())
    ]
    assert not found, "\n".join(found)


def test_records_go_in_and_out_without_what_only_linux_has(tmp_path: Path) -> None:
    environment = {**os.environ, "HEADRACE_PORTABLE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", ROUND_TRIP, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=100
    )
    assert result.stdout == "done\n", result.stderr


def _look(pid: int, portable: str) -> list[str]:
    code = (
        "import sys; from headrace.runtime.processes import process_info as f; p = f(int(sys.argv[1])); "
        "print(*([p.is_stopped, p.has_ended, p.began, p.memory_bytes] if p else ['none']))"
    )
    environment = {**os.environ, "HEADRACE_PORTABLE": portable}
    return subprocess.run(
        [sys.executable, "-c", code, str(pid)], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.mark.parametrize("portable", ["0", "1"])
def test_what_another_process_does_is_seen(portable: str) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    try:
        stopped, ended, began, memory = _look(other.pid, portable)
        assert (stopped, ended) == ("False", "False")
        assert int(memory) > 1_000_000
        other.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 30
        while (seen := _look(other.pid, portable))[0] == "False" and time.monotonic() < deadline:
            pass
        assert seen[:3] == ["True", "False", began], "the same process, stopped"
    finally:
        other.kill()
        other.wait()
    assert _look(other.pid, portable) == ["none"]
