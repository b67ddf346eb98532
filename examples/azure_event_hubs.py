"""Azure Event Hubs' Kafka endpoint with Entra ID: tokens come from Azure's own library.

    pip install headrace azure-identity
    python examples/azure_event_hubs.py my-namespace.servicebus.windows.net

Credentials come from where Azure's tools find them: a managed identity, the environment, `az login`. The identity needs
the role "Azure Event Hubs Data Sender" or "… Data Receiver". With a connection string instead, it is PLAIN: the user is
`$ConnectionString`, the password the whole string.

Spark: give the function by its dotted name, have this module where the executors' Python finds it
(`--py-files azure_event_hubs.py`), and set EVENT_HUBS_NAMESPACE there (`spark.executorEnv.EVENT_HUBS_NAMESPACE`).

    .option("kafka.security.protocol", "SASL_SSL")
    .option("kafka.sasl.mechanism", "OAUTHBEARER")
    .option("kafka.sasl.oauthbearer.token.callback", "azure_event_hubs.token")
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from azure.identity import DefaultAzureCredential

from headrace import Admin

PORT = 9093


@functools.cache
def credential() -> Any:
    """One for the process: it keeps what it has found out."""
    return DefaultAzureCredential()


def token() -> tuple[str, float]:
    """A token and when it ends, in seconds since 1970."""
    found = credential().get_token(f"https://{os.environ['EVENT_HUBS_NAMESPACE']}/.default")
    return found.token, float(found.expires_on)


def config(namespace: str) -> dict[str, object]:
    """For any client: Producer, Consumer, Admin, `exactly_once(…, config=…)`, parallel consumers."""
    return {
        "bootstrap.servers": f"{namespace}:{PORT}",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.callback": token,
    }


def main(namespace: str) -> None:
    os.environ["EVENT_HUBS_NAMESPACE"] = namespace
    with Admin(config(namespace)) as admin:
        for name in sorted(admin.list_topics()):
            print(name)


if __name__ == "__main__":
    main(sys.argv[1])
