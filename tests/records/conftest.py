"""Runs a test with the plain kernels and with the compiled ones, whatever the size of the work."""

import pytest

from headrace.records import kernels


@pytest.fixture(params=["plain", "fast"])
def either_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "plain":
        monkeypatch.setattr(kernels, "choose", lambda rows: kernels.PLAIN)
    else:
        pytest.importorskip("numba")
        assert kernels.use_fast()
        monkeypatch.setattr(kernels, "_fast_from_rows", 0)
    chosen = kernels.choose(1).NAME
    assert chosen == name
    return name
