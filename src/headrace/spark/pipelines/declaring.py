"""What a pipeline declares and gives: its options, what it tells while it runs, its result. No Spark here."""

from __future__ import annotations

import difflib
import hashlib
import json
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class WrongOptionError(HeadraceError):
    """An option that a pipeline does not have, or a value that it cannot take."""


class PipelineError(HeadraceError):
    """A pipeline that could not go on; the text has the first cause."""


class PipelineStoppedError(HeadraceError):
    """Raised inside a query that is being stopped, so that a batch is not begun; never seen by users."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `type`: str, int, float, bool (`--x/--no-x`), list (of texts; `a,b` or several times)."""

    name: str
    type: type = str
    default: Any = None
    help: str = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    names_run: bool = False
    """Whether another value means another run: such options (and those required) name the default checkpoint."""
    there: tuple[str, str] | None = None
    """For an option that names topics which have to be there already: the options that say where, by the servers and
    the clients' settings of that cluster."""
    is_cluster: bool = False
    """Whether it names the brokers of another cluster, which have to be reachable before Spark is started."""
    check: Callable[[str, str], None] | None = None
    """Looks at a text before Spark is started (with the option's flag): raises `WrongOptionError`."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


_MASTERS_OWN = "spark://"
_MASTER_S = 3.0


def check_master(master: str, flag: str) -> None:
    """Refuse a master of Spark's own kind that does not answer: Spark would go on asking for a minute."""
    if not master.startswith(_MASTERS_OWN):
        return
    problems = []
    for server in master.removeprefix(_MASTERS_OWN).split(","):
        host, _, port = server.rpartition(":")
        if not port.isdecimal():
            raise WrongOptionError(f"{flag} {master} is not {_MASTERS_OWN}HOST:PORT")
        try:
            socket.create_connection((host, int(port)), timeout=_MASTER_S).close()
        except OSError as error:
            problems.append(f"{server} ({error.strerror or 'no answer'})")
        else:
            return
    raise WrongOptionError(f"{flag}: no master of Spark's answers at {', '.join(problems)}")


HERE = ("servers", "client_config")
"""The cluster that a pipeline reads from."""

# What most pipelines take, by the same names.
SERVERS = Option(
    "servers", str, "127.0.0.1:9092", "Brokers to ask first (also -b, HEADRACE_BOOTSTRAP).", names_run=True
)
CLIENT_CONFIG = Option("client_config", str, None, "A properties file for Kafka's clients (security.protocol …).")
CHECKPOINT = Option("checkpoint", str, None, "Where progress is kept; default: a place named after the options.")
CONTINUOUS = Option("continuous", bool, False, "Go on with what comes; otherwise (--once) until all there is is done.")
MASTER = Option(
    "master",
    str,
    None,
    "Where Spark runs: local[4,4], spark://host:7077, yarn, k8s://…; default: here.",
    check=check_master,
)
MAX_PER_BATCH = Option("max_per_batch", int, 500_000, "At most so many records in a micro-batch; 0: no limit.")
STREAMING = (SERVERS, CLIENT_CONFIG, CHECKPOINT, CONTINUOUS, MAX_PER_BATCH, MASTER)
"""Those that every pipeline with a streaming query takes."""


@dataclass(frozen=True, slots=True)
class PipelineProgress:
    """How far a pipeline is."""

    pipeline: str
    rows_in: int = 0
    rows_out: int = 0
    batches: int = 0
    elapsed_s: float = 0.0
    rate_per_s: float = 0.0
    """Rows in, a second, of the last micro-batch."""
    lag: int | None = None
    """How many records are still to be read, where that is known."""
    note: str = ""

    @property
    def total(self) -> int | None:
        return None if self.lag is None else self.rows_in + self.lag


Watch = Callable[[PipelineProgress], None]


@dataclass(slots=True)
class Result:
    """What a pipeline gives back: for programs (`document`, `--json`), for people (`lines`)."""

    pipeline: str
    document: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    has_findings: bool = False
    """Something is wrong with the data (exit code 1), though the pipeline did what it should."""


class Pipeline(Protocol):
    """A module of this package."""

    OPTIONS: Sequence[Option]

    def run(
        self, options: Mapping[str, Any], session: SparkSession | None = None, *, watch: Watch | None = None
    ) -> Result: ...


# --- options ----------------------------------------------------------------------------------------------------------


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean x?`, or the list of names when none is near (if there are any)."""
    known = list(names)
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(known)}" if known else ""


def parsed(declared: Sequence[Option], given: Mapping[str, Any], problems: list[str] | None = None) -> dict[str, Any]:
    """Every declared option with its value: as given (texts are converted), else the default. All errors at once.

    With `problems` they are put there instead of being raised, and what is wrong has its default.
    """
    by_name = {option.name: option for option in declared}
    errors: list[str] = []
    values: dict[str, Any] = {}
    for name, value in given.items():
        option = by_name.get(name.replace("-", "_"))
        if option is None:
            flags = [known.flag for known in declared]
            errors.append(
                f"there is no option --{name.replace('_', '-')}{nearest('--' + name.replace('_', '-'), flags)}"
            )
            continue
        try:
            values[option.name] = _converted(option, value)
            if option.check is not None and isinstance(value, str):
                option.check(value, option.flag)
        except (ValueError, WrongOptionError) as error:
            errors.append(str(error))
    # One that is misspelt, or has a wrong value, would be reported twice: as that and as missing.
    said = "\n".join(errors)
    missing = [
        one.flag for one in declared if one.required and values.get(one.name) in (None, "", []) and one.flag not in said
    ]
    if missing:
        errors.append(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} needed")
    if errors and problems is None:
        raise WrongOptionError("\n".join(errors))
    if problems is not None:
        problems += errors
    return {option.name: values.get(option.name, option.default) for option in declared}


def _converted(option: Option, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping):
        # Settings of clients, from a program that has them and no file.
        return dict(value)
    if option.type is list:
        given = [value] if isinstance(value, str) else list(value)
        converted: Any = [part.strip() for text in given for part in str(text).split(",") if part.strip()]
    elif option.type is bool:
        text = str(value).lower()
        if text not in _TRUE + _FALSE:
            raise ValueError(f"{option.flag} is true or false, not {value!r}")
        converted = text in _TRUE
    else:
        try:
            converted = option.type(value)
        except (TypeError, ValueError):
            wanted = {int: "a whole number", float: "a number"}.get(option.type, option.type.__name__)
            raise ValueError(f"{option.flag} is {wanted}, not {value!r}") from None
    chosen = converted if isinstance(converted, list) else [converted]
    for one in chosen:
        if option.choices and one not in option.choices:
            raise ValueError(f"{option.flag} is {', '.join(option.choices)}, not {one!r}")
    return converted


def run_name(pipeline: str, declared: Sequence[Option], values: Mapping[str, Any]) -> str:
    """A name for a run with these options: the same when it is started again."""
    said = {one.name: values.get(one.name) for one in declared if one.required or one.names_run}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
    return f"{pipeline}-{digest[:8]}"
