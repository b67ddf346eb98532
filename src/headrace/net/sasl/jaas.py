"""Java's `sasl.jaas.config`: who logs in, in the one line that Kafka's own documentation shows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": ("OAUTHBEARER",),
}
_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^\s="\';]+)|(=)|(;))')


class InvalidJaasError(ValueError):
    """The line cannot be read; the text says why, and never what secrets were in it."""


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """One login module with its options."""

    module: str
    options: dict[str, str] = field(repr=False)

    def is_for(self, mechanism: str) -> bool:
        return mechanism in _MODULES.get(self.module, ())

    def check_mechanism(self, mechanism: str) -> None:
        known = _MODULES.get(self.module)
        if known is None:
            raise InvalidJaasError(f"the login module {self.module} is not known; there are {', '.join(_MODULES)}")
        if mechanism not in known:
            raise InvalidJaasError(f"{self.module} is for {' and '.join(known)}, but sasl.mechanism is {mechanism}")


def parse_jaas(text: str) -> JaasEntry:
    """`Module flag name="value" …;`"""
    tokens = list(_tokens(text))
    if len(tokens) < 3 or tokens[-1] != ";" or ";" in tokens[:-1]:
        raise InvalidJaasError('it must be one entry and end with a semicolon: Module required name="value";')
    module, flag, *rest = tokens[:-1]
    if flag.lower() not in _FLAGS:
        raise InvalidJaasError(f"after the login module comes one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    for at in range(0, len(rest), 3):
        part = rest[at : at + 3]
        if len(part) != 3 or part[1] != "=":
            raise InvalidJaasError('options are written name="value"')
        options[part[0]] = part[2]
    return JaasEntry(module, options)


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidJaasError(
                'a quote is not closed, or a sign stands where none may: values go in double quotes (")'
            )
        quoted, bare, equals, end = match.groups()
        found.append(re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare or equals or end)
        at = match.end()
    return found
