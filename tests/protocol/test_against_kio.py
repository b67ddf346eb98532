"""Every message, version and direction, held against kio: the same bytes from the same values, and the way back."""

import random

import pytest

from headrace.protocol.api import Api, ApiKey, api, declared_keys
from headrace.protocol.codec import decode_from, encode

from .kio_pairs import kio_class, kio_decode, kio_encode, pair


def hold_against_kio(found: Api, version: int, kind: str, examples: int) -> None:
    ours = found.request if kind == "request" else found.response
    theirs = kio_class(found.key.name.lower(), version, kind)
    for example in range(examples):
        rng = random.Random(f"{found.name} {version} {kind} {example}")
        message, kio_message = pair(ours, theirs, version, rng)
        raw = encode(message, version)
        assert raw == kio_encode(kio_message)
        assert decode_from(ours, version, raw) == (message, len(raw))
        assert kio_decode(theirs, raw) == (kio_message, len(raw))


@pytest.mark.parametrize("kind", ["request", "response"])
@pytest.mark.parametrize("key", declared_keys(), ids=lambda key: key.name.lower())
def test_every_version_travels_as_kio_has_it(key: ApiKey, kind: str) -> None:
    found = api(key)
    for version in range(found.min_version, found.max_version + 1):
        hold_against_kio(found, version, kind, examples=4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["request", "response"])
@pytest.mark.parametrize("key", declared_keys(), ids=lambda key: key.name.lower())
def test_every_version_travels_as_kio_has_it_in_many_examples(key: ApiKey, kind: str) -> None:
    found = api(key)
    for version in range(found.min_version, found.max_version + 1):
        hold_against_kio(found, version, kind, examples=150)
