"""The compiled kernels are loaded when it pays, never when a client is made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

import headrace.testing

pytest.importorskip("numba")

FEW = """
producer.send(topic, b"x").result(30)
"""
MANY = """
for _ in range(200_000):
    producer.send(topic, b"x" * 50)
producer.flush(60)
"""
BATCH = """
producer.send_batch(topic, [b"x"] * 25_000).result(60)
"""
READ = """
with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
    consumer.assign([(topic, 0)])
    read = 0
    while read < count:
        read += len(consumer.poll(1.0))
"""
AIO = """
import asyncio
from headrace import aio
async def main():
    async with aio.Producer(bootstrap_servers=address) as producer:
        for i in range(count):
            producer.send(topic, b"x")
            if i % 1000 == 0:
                await asyncio.sleep(0)
        await producer.flush(60)
    async with aio.Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        read = 0
        while read < count:
            read += len(await consumer.poll(1.0))
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with headrace.testing.broker() as kafka:
        yield kafka.address


def has_numba(address: str, topic: str, code: str, count: int) -> bool:
    script = (
        "import sys; from headrace import Consumer, Producer\n"
        f"address, topic, count = {address!r}, {topic!r}, {count}\n"
        "with Producer(bootstrap_servers=address) as producer:\n"
        + "".join(f"    {line}\n" for line in code.strip().splitlines())
        + "from headrace.client.compiled import finish_loading; finish_loading()\n"
        + "print('numba' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize("code", [FEW + READ, AIO], ids=["blocking", "asyncio"])
def test_a_few_records_do_not_load_the_compiled_kernels(address: str, code: str) -> None:
    assert not has_numba(address, f"few-{code == AIO}", code, 1)


@pytest.mark.slow
@pytest.mark.parametrize("code", [MANY, BATCH, FEW + READ, AIO], ids=["send", "send_batch", "consumer", "asyncio"])
def test_many_records_load_the_compiled_kernels(address: str, code: str) -> None:
    topic = f"many-{[MANY, BATCH, FEW + READ, AIO].index(code)}"
    count = 25_000
    if code == FEW + READ:
        assert has_numba(address, topic, BATCH, count)
    assert has_numba(address, topic, code, count)
