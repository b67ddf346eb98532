"""Methods that are made from operations (`create_topics = method(topics.create_topics)`), for the API reference.

mkdocstrings reads the source without running it, and sees an attribute. Here it is told the signature and the
documentation that `help` shows.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import griffe

_MAKERS = ("method", "async_method")


class Operations(griffe.Extension):
    """Replaces such attributes by methods."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        for name, member in list(cls.members.items()):
            if isinstance(member, griffe.Attribute) and str(member.value).partition("(")[0] in _MAKERS:
                owner = getattr(importlib.import_module(cls.module.path), cls.name)
                cls.set_member(name, _method(name, getattr(owner, name)))


def _method(name: str, found: Any) -> griffe.Function:
    signature = inspect.signature(found)
    parameters = [
        griffe.Parameter(
            each.name,
            annotation=None if each.annotation is each.empty else str(each.annotation),
            kind=getattr(griffe.ParameterKind, each.kind.name.lower()),
            default=None if each.default is each.empty else repr(each.default),
        )
        for each in signature.parameters.values()
    ]
    made = griffe.Function(name, parameters=griffe.Parameters(*parameters), returns=str(signature.return_annotation))
    made.docstring = griffe.Docstring(inspect.getdoc(found) or "", parent=made)
    if inspect.iscoroutinefunction(found):
        made.labels.add("async")
    return made
