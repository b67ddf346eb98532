"""The examples for AWS and Azure, with stand-ins for their libraries: what clients make of the tokens."""

from __future__ import annotations

import importlib
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headrace import Admin
from headrace.client.configs import COMMON_KEYS, read_config
from headrace.config import ConfigDefinition
from headrace.net.sasl import sasl_security

NAMESPACE = "mine.servicebus.windows.net"


def example(name: str, monkeypatch: pytest.MonkeyPatch, **fakes: dict[str, Any]) -> Any:
    for module, names in fakes.items():
        made = ModuleType(module.replace("_dot_", "."))
        made.__dict__.update(names)
        monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.delitem(sys.modules, f"examples.{name}", raising=False)
    return importlib.import_module(f"examples.{name}")


def first_words(config: dict[str, Any]) -> bytes:
    """What a client says to a broker that asks who it is."""
    authenticate, prepare = sasl_security(read_config(ConfigDefinition(COMMON_KEYS), config))
    assert prepare is not None
    prepare()
    flow = authenticate(SimpleNamespace())  # type: ignore[arg-type]  # a node is only named in errors
    next(flow)
    said: bytes = flow.send(SimpleNamespace(error_code=0)).auth_bytes
    return said


def test_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    class Signer:
        @staticmethod
        def generate_auth_token(region: str) -> tuple[str, int]:
            return f"signed-for-{region}", int((time.time() + 900) * 1000)

    module = example("aws_msk_iam", monkeypatch, aws_msk_iam_sasl_signer={"MSKAuthTokenProvider": Signer})
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    config = module.config("b-1.kafka.amazonaws.com:9098")
    assert b"auth=Bearer signed-for-eu-central-1\x01" in first_words(config)
    by_name = {**config, "sasl.oauthbearer.token.callback": "examples.aws_msk_iam.token"}
    assert first_words(by_name) == first_words(config)
    assert 800 < module.token()[1] - time.time() < 1000
    Admin(config).close()


def test_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Credential:
        def get_token(self, scope: str) -> Any:
            return SimpleNamespace(token=f"for-{scope}", expires_on=int(time.time()) + 3600)

    module = example(
        "azure_event_hubs", monkeypatch, azure={}, azure_dot_identity={"DefaultAzureCredential": Credential}
    )
    monkeypatch.setenv("EVENT_HUBS_NAMESPACE", NAMESPACE)
    config = module.config(NAMESPACE)
    assert config["bootstrap.servers"] == f"{NAMESPACE}:9093"
    assert f"auth=Bearer for-https://{NAMESPACE}/.default\x01".encode() in first_words(config)
    assert module.credential() is module.credential()
    Admin(config).close()
