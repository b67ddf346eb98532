"""Starts Spark's Python processes sooner: runs a module of pyspark as `python -m` would, with less to load.

    python daemon.py pyspark.daemon pyspark.worker

Spark hands its Python processes pyspark as an archive of sources, which each of them compiles anew, for almost a second
of processor time. Where that archive lies in an installed pyspark, the installed one is used: it is the same, compiled.
And the process that workers are forked from loads what each of them would load for itself: pyspark's worker, Arrow,
this package, its compiled kernels. Nothing may run beside it when it forks, so whatever starts a thread undoes that:
the process begins again, as Spark's own. Run as a file, it needs nothing to be importable that Spark does not need.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_DAEMON, _WORKER = "pyspark.daemon", "pyspark.worker"
_THREADS = "/proc/self/task"
_ARCHIVES = os.path.join("pyspark", "python", "lib", "")
_LOADED = (
    _WORKER,
    "pyarrow.compute",
    "pyarrow.ipc",
    "headrace.client.producer.blocking",
    "headrace.spark.reading",
    "headrace.spark.sink",
    "headrace.spark.source",
    "headrace.spark.writing",
)
_NO_THREAD_OF_ARROW = ("JE_ARROW_MALLOC_CONF", "background_thread:false")
"""Arrow's second allocator keeps a thread otherwise, from when it is imported on."""


def prefer_installed(path: Sequence[str]) -> list[str]:
    """The places modules are looked for, with the archives of an installed pyspark behind all others.

    `…/site-packages/pyspark/python/lib/pyspark.zip` is what `…/site-packages/pyspark` is, if that place is one, too.
    """
    kept, archives = [], []
    places = {os.path.realpath(place) for place in path}
    for place in path:
        root, found, name = place.rpartition(_ARCHIVES)
        if found and name.endswith(".zip") and os.path.realpath(root) in places and _is_package(root):
            archives.append(place)
        else:
            kept.append(place)
    return kept + archives


def _is_package(root: str) -> bool:
    return os.path.isfile(os.path.join(root, "pyspark", "__init__.py"))


def preload() -> None:
    """Load what workers of this package's source and sinks use. Starts no thread, as far as that can be told."""
    name, value = _NO_THREAD_OF_ARROW
    is_set = name in os.environ
    os.environ.setdefault(name, value)
    import gc
    import importlib
    from importlib.util import find_spec

    try:
        for module in _LOADED:
            importlib.import_module(module)
        if find_spec("pandas") is not None:
            # Arrow loads it where it is, as soon as it makes an array.
            importlib.import_module("pandas")
        from headrace.records import use_fast

        use_fast()
    finally:
        if not is_set:
            # It is read when Arrow is loaded; what a worker starts is not to inherit it.
            del os.environ[name]
    # What is there now stays: no collection in any worker (Spark asks for one after each task) looks at it again.
    gc.collect()
    gc.freeze()
    os.register_at_fork(after_in_child=reseed)


def reseed() -> None:
    """Every worker begins with random numbers of its own (Python's own module sees to that by itself)."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def is_alone() -> bool:
    """Whether this process has one thread only; False where the system does not say (it is asked as on Linux)."""
    if os.environ.get("HEADRACE_PORTABLE", "") not in ("", "0"):
        return False
    try:
        return len(os.listdir(_THREADS)) == 1
    except OSError:
        return False


def main() -> None:
    """Run the module of pyspark that the arguments name, with the arguments that follow."""
    module, arguments = sys.argv[1], sys.argv[2:]
    if not sys.flags.safe_path:
        # As `python -m` has it; this file's own directory is no place to look for modules.
        sys.path[0] = os.getcwd()
    own = [sys.executable, "-m", module, *arguments]
    sys.path[:] = prefer_installed(sys.path)
    if module == _DAEMON and arguments == [_WORKER] and is_alone():
        try:
            preload()
            problem = None if is_alone() else "a thread was started"
        except Exception as error:  # noqa: BLE001 - whatever it is: Spark's own way does not need it
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            print(f"headrace: workers load everything themselves ({problem})", file=sys.stderr, flush=True)
            os.execv(sys.executable, own)
    import runpy

    sys.argv = [sys.argv[0], *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
