"""API keys: what is declared, and that nothing is imported before it is asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.protocol.api import ApiKey, api, declared_keys, is_flexible
from headrace.protocol.schema import MessageKind


def test_every_declared_key_has_a_request_and_a_response_of_the_same_versions() -> None:
    for key in declared_keys():
        found = api(key)
        request, response = found.request.SCHEMA, found.response.SCHEMA
        assert (request.kind, response.kind) == (MessageKind.REQUEST, MessageKind.RESPONSE)
        assert request.api_key == response.api_key == key == found.key
        assert request.versions == response.versions
        assert request.flexible == response.flexible
        assert (found.min_version, found.max_version) == (request.versions.low, request.versions.high)
        assert api(int(key)) is found


def test_the_declared_versions_are_those_of_kafka_4_3() -> None:
    """From `ApiKeys` of Apache Kafka 4.3.1, unstable versions left out."""
    expected = (
        "0:3-13 1:4-18 2:1-11 3:0-13 8:2-10 9:1-10 10:0-6 11:0-9 12:0-4 13:0-5 14:0-5 15:0-6 16:0-5 17:0-1 "
        "18:0-4 19:2-7 20:1-6 21:0-2 22:0-5 23:2-4 24:0-5 25:0-4 26:0-5 27:1-2 28:0-5 29:1-3 30:1-3 31:1-3 "
        "32:1-4 33:0-2 34:1-2 35:1-5 36:0-2 37:0-3 38:1-3 39:1-2 40:1-2 41:1-3 42:0-2 "
        "43:0-2 44:0-1 45:0-1 46:0-0 47:0-0 48:0-1 49:0-1 "
        "50:0-0 51:0-0 55:0-2 56:2-3 57:0-2 60:0-2 61:0-0 62:0-4 63:0-1 64:0-0 65:0-0 66:0-2 67:0-0 "
        "68:0-1 69:0-1 71:0-0 72:0-0 73:0-0 74:0-1 75:0-0 76:1-1 77:1-1 78:1-2 79:1-2 80:0-1 81:0-0 "
        "83:0-0 84:0-0 85:0-1 86:0-0 87:0-1 88:0-0 89:0-0 90:0-1 91:0-0 92:0-0"
    )
    assert " ".join(f"{key:d}:{api(key).min_version}-{api(key).max_version}" for key in declared_keys()) == expected


def test_a_key_without_messages_is_a_key_error() -> None:
    for key in (ApiKey.VOTE, 4, -1, 999):
        with pytest.raises(KeyError):
            api(key)
        assert not is_flexible(key, 0)


def test_flexible_versions() -> None:
    assert not is_flexible(ApiKey.METADATA, 8)
    assert is_flexible(ApiKey.METADATA, 9)
    assert is_flexible(ApiKey.DESCRIBE_CLUSTER, 0)
    assert not is_flexible(ApiKey.OFFSET_DELETE, 0)
    assert not is_flexible(ApiKey.SASL_HANDSHAKE, 1)


def test_messages_are_imported_only_when_asked_for() -> None:
    script = (
        "import sys; from headrace.protocol import api, codec\n"
        "loaded = lambda: [m for m in sys.modules if m.startswith('headrace.protocol.messages.')]\n"
        "assert not loaded(), loaded()\n"
        "api.api(12)\n"
        "assert loaded() == ['headrace.protocol.messages.heartbeat'], loaded()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.slow
def test_importing_the_protocol_takes_no_more_than_20_ms(tmp_path: Path) -> None:
    """Processor time, compiled and without what Python itself imports; the best of several on a busy machine."""
    script = (
        "import dataclasses, enum, functools, importlib, struct, time, typing\n"
        "start = time.process_time(); from headrace.protocol import api, codec\n"
        "print(time.process_time() - start)\n"
    )
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    best = 1.0
    for _ in range(20):
        run = subprocess.run(
            [sys.executable, "-c", script], check=True, timeout=60, capture_output=True, text=True, env=environment
        )
        best = min(best, float(run.stdout))
    assert best < 0.020
