"""The tree of commands. Only the one that is asked for is imported: `headrace --help` needs none of them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import Annotated, TextIO

import typer

from headrace._version import __version__
from headrace.cli.exits import Exit, ReaderGone
from headrace.config import ConfigError
from headrace.errors import HeadraceError, RequestTimedOutError
from headrace.words import visible

# name → module with an `app` (of several commands) or a `command`; what the list of commands says of it.
# A module is one of this package, or named in full.
COMMANDS = {
    "start": ("", "Start a broker, in the foreground."),
    "demo": ("headrace.demo", "See it all once, in ten seconds."),
    "topic": ("topic", "Create, list, describe, alter, delete topics and records."),
    "produce": ("produce", "Write records from standard input or a file."),
    "consume": ("consume", "Read records."),
    "group": ("group", "List, describe, reset, delete groups; remove members."),
    "share": ("share", "List, describe, reset, delete share groups: queues of topics."),
    "parallel": ("parallel", "Run a handler over topics with many hands."),
    "deadletters": ("deadletters", "List, show, put back what could not be handled."),
    "transaction": ("transaction", "List, describe, abort transactions; find those that hang."),
    "pipeline": ("pipeline", "Run ready-made pipelines on Spark, and see how far they are."),
    "config": ("config", "Get, set, delete configuration of topics, brokers, groups."),
    "user": ("user", "Create, list, delete users that log in by SCRAM."),
    "certs": ("certs", "Make an authority and certificates for a trial."),
    "cluster": ("cluster", "Describe a cluster; start, hurt and heal one on this machine."),
    "acl": ("acl", "Who may do what: rules, what decides, and which are missing."),
    "quota": ("quota", "How much users, client ids and addresses may use."),
    "reassign": ("reassign", "Move replicas between brokers: plan, run, status, cancel."),
    "elect": ("elect", "Elect leaders: the preferred ones, or, at a price, any."),
    "registry": ("registry", "Start a schema registry that speaks Confluent's interface."),
    "console": ("console", "Show a cluster in the browser: topics, messages, groups, lag."),
    "schema": ("schema", "Register, list, check and compare schemas of a registry."),
    "log": ("log", "Look into a data directory, without a broker."),
    "simulate": ("headrace.testing.simulated.command", "Run whole clusters in virtual time, under faults."),
}
EPILOG = (
    "Exit codes: 0 done; 1 refused or failed; 2 wrong command line or configuration; 3 no answer in time; 130 Ctrl-C."
)


class Interrupted(BaseException):
    """Ctrl-C. Not a KeyboardInterrupt, which typer would turn into an ordinary failure."""


def run(arguments: Sequence[str]) -> int:
    """Run one command; errors are one line on stderr, and the code says which kind."""
    previous = signal.signal(signal.SIGINT, _interrupt)
    # Connections that fail are told by the error that ends the command; the client's warnings would only repeat it.
    logger = logging.getLogger("headrace")
    level = logger.level
    logger.setLevel(logging.ERROR)
    out, show_warning = sys.stdout, warnings.showwarning
    warnings.showwarning = _show_warning
    try:
        ended = _run(arguments)
        if sys.stdout is not out:
            # That is what click does when a line could not be written because nobody reads any more.
            sys.stdout = out
            raise ReaderGone
        sys.stdout.flush()
        return ended
    except Interrupted:
        return Exit.INTERRUPTED
    except (ReaderGone, BrokenPipeError):
        # Python would complain while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except RequestTimedOutError as error:
        return _failed(error, Exit.TIMEOUT)
    except (HeadraceError, OSError) as error:
        code = getattr(error, "exit_code", Exit.USAGE if isinstance(error, ConfigError) else Exit.FAILED)
        return _failed(error, code)
    finally:
        warnings.showwarning = show_warning
        logger.setLevel(level)
        signal.signal(signal.SIGINT, previous)


def _run(arguments: Sequence[str]) -> int:
    try:
        build(arguments)(args=list(arguments), prog_name="headrace")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.OK if end.code is None else Exit.FAILED
    return Exit.OK


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning in a line: which line of ours it comes from is nothing to whoever typed a command."""
    sys.stderr.write(f"headrace: {visible(str(message), lines=True)}\n")


def _failed(error: BaseException, code: Exit) -> int:
    for line in str(error).splitlines() or [type(error).__name__]:
        sys.stderr.write(f"headrace: {visible(line)}\n")
    return code


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application, with the command that is about to run; the others are there by name and help only."""
    root = typer.Typer(
        name="headrace",
        help="Kafka in Python: a broker, and a command line for this and any other Kafka.",
        epilog=EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        # Plain help: it is read in narrow terminals too, and comes in half the time without rich.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    root.callback(invoke_without_command=True)(_root)
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    everything = "_HEADRACE_COMPLETE" in os.environ
    for name, (module, help_text) in COMMANDS.items():
        if module and (everything or name == wanted):
            loaded = import_module(module if "." in module else f"headrace.cli.{module}")
            if hasattr(loaded, "app"):
                root.add_typer(loaded.app, name=name, help=help_text)
            else:
                root.command(name)(loaded.command)
        else:
            root.command(name, help=help_text)(_unloaded)
    return root


def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"headrace {__version__}")
        raise typer.Exit


def _unloaded() -> None:
    """Stands for a command in the list. It is never called: `build` loads the command that is."""
    raise AssertionError("this command was not loaded")
