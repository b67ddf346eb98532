"""What tests of the log share."""

from __future__ import annotations

import pytest

from headrace.runtime import Runtime, real_runtime


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    """The real one; no thread of it is started, because a log never starts one."""
    return real_runtime()
