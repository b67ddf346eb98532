"""What MkDocs does to a page beside rendering it: tables are made from the code, pictures become part of the page.

A page says where: `<!-- from the code: config consumer -->` is replaced by what `MAKERS` has under the first word, made
with the others. A picture is an ordinary image (`![what it shows](pictures/log.svg)`), put into the page as it is, so
that it has the page's colours in light and in dark.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

_MARK = re.compile(r"^<!-- from the code: (.+?) -->$", re.M)
_PICTURE = re.compile(r"^!\[([^\]]*)\]\((?:\.\./)?(pictures/[\w-]+\.svg)\)$", re.M)
_HERE = Path(__file__).parent


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs with every page."""
    return _PICTURE.sub(_inlined, _MARK.sub(lambda found: made(found[1]), markdown))


def made(words: str) -> str:
    """What stands for a mark."""
    maker, *arguments = words.split()
    return MAKERS[maker](*arguments)


def _inlined(found: re.Match[str]) -> str:
    drawing = (_HERE / found[2]).read_text("utf-8").strip()
    return f'<figure class="picture" role="img" aria-label="{found[1]}">\n{drawing}\n</figure>'


# --- text -------------------------------------------------------------------------------------------------------------


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    heads = list(titles)
    lines = [heads, ["---"] * len(heads), *([_cell(text) for text in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _first_paragraph(text: str | None) -> str:
    return (text or "").strip().partition("\n\n")[0]


# --- settings of the clients ------------------------------------------------------------------------------------------


def config(client: str) -> str:
    """Every setting of a client; or, for `common`, of all of them."""
    from headrace.client.admin.drivers import ADMIN_CONFIGS
    from headrace.client.configs import COMMON_KEYS
    from headrace.client.consumer.config import CONSUMER_CONFIGS
    from headrace.client.producer.config import PRODUCER_CONFIGS

    definitions = {"consumer": CONSUMER_CONFIGS, "producer": PRODUCER_CONFIGS, "admin": ADMIN_CONFIGS}
    shared = {key.name for key in COMMON_KEYS}
    keys = COMMON_KEYS if client == "common" else [key for key in definitions[client] if key.name not in shared]
    rows = ((_name(key.name), _default(key), _allowed(key), key.doc) for key in keys)
    return table(("setting", "default", "allowed", "meaning"), rows)


def _name(name: str) -> str:
    """A setting's name, which may be broken at its dots where there is little room."""
    return f"<code>{name.replace('.', '.<wbr>')}</code>"


def _default(key: Any) -> str:
    if key.required:
        return "**needed**"
    value = key.default
    if value is None or value == "" or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _allowed(key: Any) -> str:
    said = key.type.name.lower() if key.validator is None else str(key.validator)
    return re.sub(r"\w{25,}", lambda word: word[0].replace("_", "_<wbr>"), said)


def names(whose: str, which: str) -> str:
    """Another library's names: those that are understood (`same`), and those answered with what to use (`instead`)."""
    from headrace.client import other_names as known

    title, same, instead = {
        "librdkafka": ("librdkafka's", known.LIBRDKAFKA_SAME, known.LIBRDKAFKA_INSTEAD),
        "python": ("kafka-python's, aiokafka's", known.PYTHON_SAME, known.PYTHON_INSTEAD),
    }[whose]
    spelt = _code if whose == "librdkafka" else lambda name: _code(name.replace(".", "_"))
    if which == "same":
        return table((title, "is understood as"), ((spelt(a), _code(b)) for a, b in same.items()))
    return table((title, "is answered with: use …"), ((spelt(a), b) for a, b in instead.items()))


def inert() -> str:
    """Every setting of brokers that changes nothing, by the first word of its name."""
    from headrace.cluster.broker_config import inert_keys

    by_word: dict[str, list[str]] = {}
    for name in inert_keys():
        by_word.setdefault(name.partition(".")[0], []).append(name)
    several = {word: found for word, found in by_word.items() if len(found) > 2}
    others = [name for word, found in by_word.items() if word not in several for name in found]
    rows = [(_code(f"{word}.*"), ", ".join(map(_name, found))) for word, found in several.items()]
    return table(("of", "settings"), [*rows, ("others", ", ".join(map(_name, others)))])


# --- calls, errors, options -------------------------------------------------------------------------------------------


def calls(name: str) -> str:
    """Every method of a class for users: how it is called, and the first sentences of its documentation."""
    return table(("call", "does"), _calls(_object(name)))


def _calls(of: type) -> Iterator[tuple[str, str]]:
    for name, found in sorted(inspect.getmembers(of, callable)):
        if not name.startswith("_"):
            parameters = list(inspect.signature(found).parameters.values())[1:]
            called = ", ".join(str(each.replace(annotation=inspect.Parameter.empty)) for each in _marked(parameters))
            yield _code(f"{name}({called})"), _first_paragraph(inspect.getdoc(found))


def _marked(parameters: list[inspect.Parameter]) -> Iterator[Any]:
    """Parameters with the star before those that are given by name."""
    star = False
    for each in parameters:
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            star = True
            yield _Star()
        yield each


class _Star:
    def replace(self, **_: Any) -> str:
        return "*"


def errors(module: str) -> str:
    """Every exception that a module defines, with its documentation."""
    found = importlib.import_module(module)
    rows = (
        (_code(name), _code(one.__mro__[1].__name__), _first_paragraph(inspect.getdoc(one)))
        for name, one in vars(found).items()
        if inspect.isclass(one) and issubclass(one, Exception) and one.__module__ == module
    )
    return table(("raised", "is a", "means"), rows)


def codes() -> str:
    """Kafka's error codes, and what is raised for each."""
    from headrace.errors import ErrorCode, error_for

    rows = (
        (str(int(code)), _code(code.name), _code(type(error_for(code)).__name__), "yes" if code.retriable else "")
        for code in ErrorCode
        if code is not ErrorCode.NONE
    )
    return table(("code", "name", "raised as", "may pass"), rows)


def options(name: str) -> str:
    """The parameters of a function or class whose documentation explains them under `Args:`."""
    found = _object(name)
    how = found.__init__ if inspect.isclass(found) else found
    said = _arguments(inspect.getdoc(how) or "")
    rows = (
        (_code(each.name if each.kind is not each.VAR_KEYWORD else "**" + each.name), _given(each), said[each.name])
        for each in inspect.signature(found).parameters.values()
    )
    return table(("option", "default", "meaning"), rows)


def _arguments(text: str) -> dict[str, str]:
    section = textwrap.dedent(text.partition("Args:\n")[2])
    found = re.findall(r"^\*{0,2}(\w+): (.*(?:\n[ ]+.*)*)", section, re.M)
    return {name: " ".join(words.split()) for name, words in found}


def _given(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return ""
    value = parameter.default
    return "**needed**" if value is parameter.empty else _code(repr(getattr(value, "value", value)))


def fields(name: str) -> str:
    """The fields of a dataclass, with the texts that stand below them in the source."""
    found = _object(name)
    tree = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
    assert isinstance(tree, ast.ClassDef)
    rows = []
    for line, following in zip(tree.body, [*tree.body[1:], ast.Pass()]):
        if isinstance(line, ast.AnnAssign) and line.value is not None:
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            default = getattr(found(), ast.unparse(line.target))
            shown = repr(getattr(default, "value", default))
            rows.append((_code(ast.unparse(line.target)), _code(shown), following.value.value if is_text else ""))
    return table((f"of `{found.__name__}`", "default", "meaning"), rows)


def _object(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


# --- the command line -------------------------------------------------------------------------------------------------


@functools.cache
def _root() -> Any:
    import typer

    from headrace.cli.app import build

    # As completion does: every command is loaded.
    os.environ["_HEADRACE_COMPLETE"] = "documentation"
    try:
        return typer.main.get_command(build([]))
    finally:
        del os.environ["_HEADRACE_COMPLETE"]


def commands() -> str:
    """Every command of `headrace`, with what it takes; what all take that talk to a cluster stands first, once."""
    shared = _cluster_options()
    text = ["## Options of every command that talks to a cluster", _option_table(shared.values())]
    for name in _command_names():
        text.append(f"## headrace {name}")
        if name == "start":
            text.append(_start())
            continue
        command = _root().commands[name]
        under = getattr(command, "commands", None)
        text.append(_said(command))
        if under is None:
            text.append(_one(f"headrace {name}", command, shared))
            continue
        if command.params and getattr(command, "invoke_without_command", False):
            text.append(_one(f"headrace {name}", command, shared))
        for inner, found in under.items():
            text += [f"### headrace {name} {inner}", _said(found)]
            text.append(_pipelines() if (name, inner) == ("pipeline", "run") else "")
            text.append(_one(f"headrace {name} {inner}", found, shared))
    # The home directory of whoever makes the page is not the reader's.
    return "\n\n".join(filter(None, text)).replace(str(Path.home()), "~")


def _command_names() -> list[str]:
    from headrace.cli.app import COMMANDS

    return list(COMMANDS)


def _cluster_options() -> dict[str, Any]:
    described = _root().commands["topic"].commands["list"]
    wanted = ("bootstrap", "command_config", "properties", "timeout")
    return {option.name: option for option in described.params if option.name in wanted}


def _said(command: Any) -> str:
    return textwrap.dedent(command.help or "").strip()


def _one(name: str, command: Any, shared: dict[str, Any]) -> str:
    own = [option for option in command.params if option.name not in shared and not getattr(option, "hidden", False)]
    takes = [option for option in own if option.opts[0].startswith("-")]
    words = [_word(option) for option in own if not option.opts[0].startswith("-")]
    usage = " ".join([name, *(["[OPTIONS]"] if command.params else []), *words])
    text = [f"```\n{usage}\n```"]
    said = [option for option in own if not option.opts[0].startswith("-") and getattr(option, "help", None)]
    if said:
        text.append(table(("argument", "meaning"), ((_code(_word(option)), option.help) for option in said)))
    if takes:
        text.append(_option_table(takes))
    if shared.keys() & {option.name for option in command.params}:
        text.append("And the options of every command that talks to a cluster.")
    return "\n\n".join(text)


def _word(argument: Any) -> str:
    word = argument.metavar or argument.name.upper()
    word = word if argument.required else f"[{word}]"
    return f"{word}…" if argument.nargs == -1 else word


def _option_table(takes: Iterable[Any]) -> str:
    rows = []
    for option in takes:
        flags = ", ".join([*option.opts, *option.secondary_opts])
        value = "" if option.is_flag else f" {option.metavar or _kind(option)}"
        default = option.default
        is_shown = default not in (None, False, "", ()) and not option.is_flag and not callable(default)
        variable = f" Also `{option.envvar}`." if option.envvar else ""
        rows.append((_code(flags + value), _code(str(default)) if is_shown else "", f"{option.help or ''}{variable}"))
    return table(("option", "default", "meaning"), rows)


def _kind(option: Any) -> str:
    # Click has `type`; newer releases of typer, which stand without it, a descriptor.
    kind = option.type.name if hasattr(option, "type") else option.type_descriptor.annotation.__name__
    return {"integer": "N", "int": "N", "float": "X"}.get(kind.lower(), "TEXT")


def _start() -> str:
    from headrace.cli.start import parser

    found = parser()
    rows = [
        (_code(", ".join(one.option_strings) + (f" {one.metavar}" if one.metavar else "")), one.help or "")
        for one in found._actions
    ]
    text = table(("option", "meaning"), rows)
    return f"{found.description}\n\n```\nheadrace start [OPTIONS]\n```\n\n{text}\n\n{found.epilog}"


def _pipelines() -> str:
    from headrace.spark.pipelines import PIPELINES, load

    text = []
    for name, does in PIPELINES.items():
        rows = (
            (_code(option.flag), "**needed**" if option.required else _plain(option.default), option.help)
            for option in load(name).OPTIONS
        )
        text += [f"#### headrace pipeline run {name}", does, table(("option", "default", "meaning"), rows)]
    return "\n\n".join(text)


def _plain(value: Any) -> str:
    if value in (None, False, "", [], ()):
        return ""
    return _code(",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


MAKERS: dict[str, Callable[..., str]] = {
    "config": config,
    "inert": inert,
    "names": names,
    "calls": calls,
    "errors": errors,
    "codes": codes,
    "options": options,
    "fields": fields,
    "commands": commands,
}
