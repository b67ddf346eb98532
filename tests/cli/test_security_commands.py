"""`headrace certs` and `headrace user`: what they make lets clients in, and nothing shows a secret that need not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Command

from headrace import Admin
from headrace.cli.exits import Exit
from headrace.config import format_properties, parse_properties
from headrace.errors import HeadraceError
from headrace.runtime.free_ports import free_ports
from headrace.testing import EmbeddedBroker, broker


def properties(out: str, title: str) -> dict[str, str]:
    return parse_properties(out.partition(f"# {title}.properties\n")[2].partition("\n\n")[0])


def test_certificates_of_one_line_make_a_broker_that_knows_its_clients(command: Command, tmp_path: Path) -> None:
    made = command("certs", "--dir", str(tmp_path), "--client", "alice")
    assert (made.code, made.err) == (Exit.OK, "")
    server, client = properties(made.out, "server"), properties(made.out, "client")
    assert {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir() if path.suffix != ".pem"} == {
        "authority.key": 0
    }
    assert [(tmp_path / name).stat().st_mode & 0o077 for name in ("alice.pem", "broker.pem")] == [0, 0]
    with broker(overrides={**server, "listeners": "SSL://127.0.0.1:0"}) as kafka:
        with Admin({**client, "bootstrap.servers": kafka.address}) as admin:
            admin.list_topics()
            assert kafka.call(lambda one: [c.principal for c in one.acceptor.connections]) == ["User:CN=alice"]
        more = command("certs", "--dir", str(tmp_path), "--client", "bob", "--json").json()
        assert [one["name"] for one in more["certificates"]] == ["bob"], "the broker's is there"
        with Admin({**more["client"], "bootstrap.servers": kafka.address}) as admin:
            admin.list_topics()


def test_names_of_a_broker(command: Command, tmp_path: Path) -> None:
    from cryptography import x509

    made = command("certs", "--dir", str(tmp_path), "--broker", "b1=kafka.example.com,10.0.0.1", "--days", "7")
    assert "CN=b1, valid for 7 days" in made.out
    certificate = x509.load_pem_x509_certificate((tmp_path / "b1.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["kafka.example.com"]
    assert [str(found) for found in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]


@pytest.mark.parametrize("name", ["authority", "../x", ".hidden", "x" * 65])
def test_names_that_cannot_be_are_refused(command: Command, tmp_path: Path, name: str) -> None:
    assert command("certs", "--dir", str(tmp_path), "--client", name).code == Exit.USAGE


def test_an_authority_without_its_key_is_not_replaced(command: Command, tmp_path: Path) -> None:
    command("certs", "--dir", str(tmp_path))
    os.rename(tmp_path / "authority.key", tmp_path / "elsewhere")
    refused = command("certs", "--dir", str(tmp_path))
    assert refused.code == Exit.USAGE
    assert "put it back" in refused.err


def test_brokers_of_several_names_are_named_to_each_other(command: Command, tmp_path: Path) -> None:
    words = ("certs", "--dir", str(tmp_path), "--json", "--client", "alice", "--broker", "b1")
    assert "super.users" not in command(*words).json()["server"]
    assert command(*words, "--broker", "b2").json()["server"]["super.users"] == "User:CN=b1;User:CN=b2"


@pytest.mark.slow
def test_a_secured_cluster_of_one_line(command: Command, tmp_path: Path) -> None:
    where, port = str(tmp_path / "cluster"), free_ports(1)[0]
    made = command("cluster", "start", "--secure", "--dir", where, "--port", str(port), "--brokers", "1")
    assert made.code == Exit.OK, made.err
    try:
        properties = tmp_path / "cluster" / "secrets" / "client.properties"
        settings = parse_properties(properties.read_text())
        secret = settings["sasl.jaas.config"].partition('password="')[2].partition('"')[0]
        assert secret in made.out, "whoever started it is told"
        assert f"127.0.0.1:{port}" in command("cluster", "status", "--dir", where).out
        with Admin({**settings, "bootstrap.servers": f"127.0.0.1:{port}"}) as admin:
            assert admin.describe_user_scram_credentials().ok.keys() == {"admin", "broker"}
        anonymous = {"bootstrap.servers": f"127.0.0.1:{port}", "default.api.timeout.ms": 5000}
        with Admin(anonymous) as admin, pytest.raises(HeadraceError, match="TLS"):
            admin.list_topics()
        pids = [one["pid"] for one in json.loads((tmp_path / "cluster" / "cluster.json").read_text())["brokers"]]
        assert all("password" not in Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)
        made_by_it = [tmp_path / "cluster", *(tmp_path / "cluster").rglob("*")]
        open_to_others = {path.name for path in made_by_it if path.stat().st_mode & 0o077}
        assert open_to_others == {"authority.pem"}, "whom one trusts is no secret"
        again = command("cluster", "start", "--secure", "--dir", where)
        assert "runs already" in again.err
    finally:
        assert command("cluster", "stop", "--dir", where, "--remove", "--yes").code == Exit.OK
    assert not (tmp_path / "cluster").exists()


# --- users ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedBroker]:
    with broker(security="SASL_SSL") as embedded:
        yield embedded


@pytest.fixture
def as_admin(command: Command, secured: EmbeddedBroker, tmp_path: Path) -> Command:
    file = tmp_path / "client.properties"
    file.write_text(format_properties(secured.client()))
    return lambda *words, stdin="": command(*words, "--command-config", str(file), stdin=stdin)


def test_a_user_is_made_listed_and_deleted(as_admin: Command, secured: EmbeddedBroker) -> None:
    made = as_admin("user", "create", "dora", "--generate", "--json").json()
    assert made["mechanisms"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    for mechanism in made["mechanisms"]:
        login = {"sasl.username": "dora", "sasl.password": made["password"], "sasl.mechanism": mechanism}
        with Admin({**secured.client(), **login}) as admin:
            admin.list_topics()
    listed = {one["user"]: one["mechanisms"] for one in as_admin("user", "list", "--json").json()}
    assert listed["dora"] == ["SCRAM-SHA-256 (8192)", "SCRAM-SHA-512 (8192)"]
    assert "dora" in as_admin("user", "list").out
    assert as_admin("user", "delete", "dora", "--yes").code == Exit.OK
    gone = as_admin("user", "delete", "dora", "--yes")
    assert (gone.code, "dora" in gone.err) == (Exit.FAILED, True)


def test_a_password_is_read_from_standard_input_and_not_shown(as_admin: Command, secured: EmbeddedBroker) -> None:
    made = as_admin("user", "create", "emil", "-m", "scram-sha-256", "--password-stdin", stdin="my secret word\n")
    assert made.code == Exit.OK
    assert "my secret word" not in made.out + made.err
    with Admin({**secured.client(), "sasl.username": "emil", "sasl.password": "my secret word"}) as admin:
        admin.list_topics()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["create", "x"], "nobody to ask"),
        (["create", "x", "--generate", "--password-stdin"], "give one of them"),
        (["create", "x", "--generate", "-m", "PLAIN"], "SCRAM-SHA-256, SCRAM-SHA-512"),
        (["create", "x", "--password-stdin"], "is empty"),
        (["delete", "x"], "--yes"),
    ],
)
def test_what_cannot_be_done_is_said(as_admin: Command, words: list[str], said: str) -> None:
    refused = as_admin("user", *words)
    assert refused.code in (Exit.USAGE, Exit.FAILED)
    assert said in refused.err
