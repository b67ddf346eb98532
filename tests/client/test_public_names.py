"""What users import: any of it can be imported first."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace
import headrace.aio

ALONE = """
import importlib, sys
for name in sys.argv[1:]:
    for loaded in [one for one in sys.modules if one.partition(".")[0] == "headrace"]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""


@pytest.mark.slow
def test_every_module_that_users_import_from_can_be_the_first() -> None:
    """Which of two modules that need each other comes first must not matter."""
    names = {*headrace._LAZY.values(), "headrace.aio", "headrace.client.transactions", "headrace.client.cluster"}
    names |= {"headrace.client.cluster.coordinator", "headrace.client.producer"}
    subprocess.run([sys.executable, "-c", ALONE, *sorted(names)], check=True)
