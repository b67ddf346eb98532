"""`ssl.*` settings, Kafka's and librdkafka's: what is understood, what is refused and with which words. No sockets."""

from __future__ import annotations

import ssl
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from headrace import Admin, Consumer, Producer
from headrace.certificates import Authority, Certified
from headrace.client.configs import COMMON_KEYS, UnknownConfigWarning, read_config
from headrace.client.producer.config import read_producer_config
from headrace.config import ConfigDefinition, ConfigError
from headrace.net.node import Node
from headrace.net.security import client_security
from headrace.net.tls import refusal

NODE = Node(1, "broker", 9092)
AUTHORITY = Authority()
CLIENT = AUTHORITY.issue("a client")
LOCKED = AUTHORITY.issue("a client", password="open sesame")


def context(**given: Any) -> ssl.SSLContext:
    dotted = {name.replace("_", "."): value for name, value in given.items()}
    values = read_config(
        ConfigDefinition(COMMON_KEYS), {"bootstrap.servers": "b:1", "security.protocol": "SSL", **dotted}
    )
    made = client_security(values).tls
    assert made is not None
    return made


def inline(identity: Certified, **more: Any) -> dict[str, Any]:
    return {"ssl_keystore_key": identity.key, "ssl_keystore_certificate_chain": identity.certificate, **more}


def test_authorities_as_text_and_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "authority.pem"
    file.write_text(AUTHORITY.certificate)
    for given in (
        {"ssl_truststore_certificates": AUTHORITY.certificate},
        {"ssl_ca_pem": AUTHORITY.certificate},
        {"ssl_truststore_location": str(file)},
        {"ssl_ca_location": str(file)},
    ):
        assert len(context(**given).get_ca_certs()) == 1
    assert context(ssl_ca_location="probe").verify_mode is ssl.CERT_REQUIRED


def test_keys_as_text_in_one_file_and_in_two(tmp_path: Path) -> None:
    store = CLIENT.save(tmp_path / "client.pem")
    (tmp_path / "c.pem").write_text(CLIENT.certificate)
    (tmp_path / "k.pem").write_text(LOCKED.key)
    (tmp_path / "lc.pem").write_text(LOCKED.certificate)
    context(**inline(CLIENT))
    context(**inline(LOCKED, ssl_key_password="open sesame"))
    context(ssl_keystore_location=str(store))
    context(
        ssl_certificate_location=str(tmp_path / "lc.pem"),
        ssl_key_location=str(tmp_path / "k.pem"),
        ssl_key_password="open sesame",
    )
    assert not list(tmp_path.glob("headrace*")), "no key is left on a disk"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ssl_ca_location": "/no/such.pem"}, "such.pem cannot be read: No such file"),
        ({"ssl_ca_pem": "-----BEGIN NOTHING"}, "no certificate that can be read"),
        ({"ssl_keystore_key": CLIENT.key}, "are needed together"),
        ({"ssl_key_location": "/k.pem"}, "are needed together"),
        (inline(LOCKED), "the key is encrypted: set ssl.key.password"),
        (inline(LOCKED, ssl_key_password="wrong secret"), "ssl.key.password is not the key's"),
        ({"ssl_enabled_protocols": "SSLv3"}, "TLSv1.2"),
        ({"ssl_ca_pem": AUTHORITY.certificate, "ssl_truststore_certificates": "x"}, "are the same configuration"),
    ],
)
def test_what_cannot_be_used_is_refused_and_no_secret_is_told(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        context(**given)
    assert words in str(refused.value)
    for secret in ("wrong secret", "open sesame", CLIENT.key, LOCKED.key):
        assert secret not in f"{refused.value} {refused.value.__cause__!r}"


def test_a_store_of_javas_is_answered_with_how_to_convert_it(tmp_path: Path) -> None:
    store = tmp_path / "client.jks"
    store.write_bytes(bytes.fromhex("feedfeed00000002"))
    with pytest.raises(ConfigError, match=r"which only Java reads.*keytool -importkeystore .*client.p12"):
        context(ssl_keystore_location=str(store))


def test_a_pkcs12_store_is_read_whatever_its_name_and_type(tmp_path: Path) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(AUTHORITY.pkcs12(CLIENT, "open sesame"))
    given = {"ssl_keystore_location": str(store), "ssl_truststore_location": str(store), "ssl_keystore_type": "JKS"}
    made = context(**given, ssl_keystore_password="open sesame", ssl_truststore_password="open sesame")
    assert {name[0][0][1] for name in (one["subject"] for one in made.get_ca_certs())} == {"Headrace trial authority"}
    with pytest.raises(ConfigError, match=r"cannot be opened \(is ssl.keystore.password right") as refused:
        context(ssl_keystore_location=str(store), ssl_keystore_password="wrong secret")
    assert "wrong secret" not in str(refused.value)


def test_cipher_suites_by_javas_names() -> None:
    named = {
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384": "DHE-RSA-AES256-GCM-SHA384",
        "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
        "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384": "ECDHE-RSA-AES256-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    }
    for name, expected in named.items():
        made = context(ssl_cipher_suites=name)
        assert [one["name"] for one in made.get_ciphers() if one["protocol"] != "TLSv1.3"] == [expected]
        assert made.maximum_version is ssl.TLSVersion.TLSv1_2, "Java speaks no version without a suite of its own"
    with_both = "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256"
    assert context(ssl_cipher_suites=with_both).minimum_version is ssl.TLSVersion.TLSv1_3
    for wrong, words in (
        ("TLS_NO_WITH_SUCH", "TLS_NO_WITH_SUCH is no cipher suite"),
        ("TLS_AES_128_CCM_SHA256", "TLS 1.3"),
    ):
        if wrong in with_both or not hasattr(ssl.SSLContext, "set_ciphersuites") or "WITH" in wrong:
            with pytest.raises(ConfigError, match=words):
                context(ssl_cipher_suites=wrong)


def test_checks_can_be_turned_off_by_either_name() -> None:
    assert context().check_hostname
    assert not context(ssl_endpoint_identification_algorithm="").check_hostname
    assert not context(ssl_endpoint_identification_algorithm="none").check_hostname
    assert context(enable_ssl_certificate_verification="false").verify_mode is ssl.CERT_NONE


def test_failed_handshakes_are_explained() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = 20, "unable to get local issuer certificate"
    told = refusal(NODE, error)
    assert told is not None
    assert "is not trusted" in str(told)
    wrapped = OSError("could not connect")
    wrapped.__cause__ = error
    assert refusal(NODE, wrapped) is not None, "asyncio's errors have it inside"
    error.verify_code, error.verify_message = 62, "Hostname mismatch"
    assert "another name" in str(refusal(NODE, error))
    assert refusal(NODE, ssl.SSLEOFError(8, "EOF")) is None, "that may pass"
    assert refusal(NODE, ConnectionRefusedError()) is None


# --- librdkafka's names -----------------------------------------------------------------------------------------------


def test_names_of_the_same_meaning_are_understood() -> None:
    values = read_producer_config(
        {
            "metadata.broker.list": "127.0.0.1:1",
            "queue.buffering.max.ms": 7,
            "message.timeout.ms": 60_000,
            "request.required.acks": 1,
            "compression.codec": "lz4",
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "open sesame",
        }
    )
    names = ("bootstrap.servers", "linger.ms", "delivery.timeout.ms", "acks", "compression.type", "sasl.mechanism")
    assert [values[name] for name in names] == [("127.0.0.1:1",), 7, 60_000, "1", "lz4", "PLAIN"]
    assert "open sesame" not in repr(values)


@pytest.mark.parametrize("make", [Admin, Consumer, Producer])
def test_others_are_answered_with_what_to_use(make: Any) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        make({"bootstrap.servers": "127.0.0.1:1", "statistics.interval.ms": 5}).close()
    (one,) = seen
    assert one.category is UnknownConfigWarning
    assert str(one.message).endswith("it is librdkafka's, use metrics()")
