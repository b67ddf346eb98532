"""The import contracts name every module that they are about; import-linter itself knows no pattern for `_*`."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_private_module_of_the_client_is_closed_to_what_is_built_on_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (public_names,) = (one for one in contracts if one["name"] == "what is built on the client uses its public names")
    private = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in (ROOT / "src/headrace/client").rglob("_*.py")
        if path.stem != "__init__"
    }
    assert set(public_names["forbidden_modules"]) == private
