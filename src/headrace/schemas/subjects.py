"""Names of subjects. A context has subjects and numbers of its own: `:.test:orders` is in the context `.test`."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_CONTEXT = "."
GLOBAL_CONTEXT = ".__GLOBAL"
_WILDCARD = ":*:"


class Subject(NamedTuple):
    """A subject's name in two parts. An empty name stands for the whole context."""

    context: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Subject:
        if text.startswith(":."):
            context, _, name = text[1:].partition(":")
            return cls(context, name)
        if text.startswith(_WILDCARD):
            return cls("*", text[len(_WILDCARD) :])
        return cls(DEFAULT_CONTEXT, text)

    def __str__(self) -> str:
        return f"{self.prefix}{self.name}"

    @property
    def prefix(self) -> str:
        """What its subjects' names begin with."""
        return "" if self.context == DEFAULT_CONTEXT else f":{self.context}:"


def normalized(text: str) -> str:
    """`:.:orders` is `orders`: one name for one subject."""
    return str(Subject.parse(text))


def beside(parent: str, text: str) -> str:
    """The subject that `text` names in a reference of `parent`: of the same context, unless it names its own."""
    if text.startswith((":.", _WILDCARD)):
        return normalized(text)
    return f"{Subject.parse(parent).prefix}{text}"
