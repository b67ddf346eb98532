"""Settings of a broker as options of `headrace start`, for whoever starts one in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.cluster.broker_config import is_secret
from headrace.config import format_properties
from headrace.secret_files import write_secret


def settings_as_options(settings: Mapping[str, str], file: Path) -> list[str]:
    """Options of `headrace start`; secrets go to a file, as everybody on the machine can see command lines."""
    secret = {name: value for name, value in settings.items() if is_secret(name)}
    options = [part for name in settings if name not in secret for part in ("--override", f"{name}={settings[name]}")]
    if secret:
        file.parent.mkdir(parents=True, exist_ok=True)
        options += ["--config", str(write_secret(file, format_properties(secret)))]
    return options
