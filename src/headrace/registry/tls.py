"""TLS of the registry's listener, out of the settings `ssl.*`, which are those of Kafka's brokers and clients."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from headrace.config import ConfigError
from headrace.net.tls import server_context as context_of


def server_context(values: Mapping[str, Any]) -> ssl.SSLContext:
    """The context of an https listener; a `ConfigError` says which file is missing or is none."""
    client_authentication = str(values["ssl.client.authentication"]).lower()
    try:
        return context_of({**values, "ssl.client.auth": client_authentication})
    except (OSError, ValueError) as error:
        raise ConfigError({"listeners": f"the https listener: {error}"}) from error
