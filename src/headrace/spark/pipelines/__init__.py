"""Ready-made pipelines: programs on Kafka and Spark that only want their options (`headrace pipeline run NAME`).

A pipeline is a module here with its name, which has

- `OPTIONS`: what it takes, as `declaring.Option`s; names are Python's (`max_rows`), flags follow (`--max-rows`);
- a function of the same name with those as keyword arguments, and `session` and `watch`: for programs;
- `run(options, session=None, *, watch=None) -> Result`: that function with options that `declaring.parsed` has checked.

Importing one needs no pyspark; running it does.
"""

from __future__ import annotations

import importlib
from typing import cast

from headrace.spark.pipelines.declaring import (
    Option,
    Pipeline,
    PipelineError,
    PipelineProgress,
    PipelineStoppedError,
    Result,
    Watch,
    WrongOptionError,
    nearest,
    parsed,
)

PIPELINES = {
    "activity": "Raw activity and metrics to typed rows, dead letters with reasons, windowed counts; exactly once.",
    "audit": "One topic, or two, checked for loss, duplicates, order, gaps and aborted transactions.",
    "land": "Topics to a table: Parquet, Delta or Iceberg, by date, small files compacted; exactly once.",
    "mirror": "Topics of one cluster to another: configs, records as they are, groups' offsets translated.",
    "redrive": "Dead letters back to where they came from, after a fix.",
    "replay": "A table back into a topic, at a rate.",
}
"""Name → what it does, in a line. The module has the pipeline's name."""

__all__ = [
    "PIPELINES",
    "Option",
    "Pipeline",
    "PipelineError",
    "PipelineProgress",
    "PipelineStoppedError",
    "Result",
    "Watch",
    "WrongOptionError",
    "load",
    "nearest",
    "parsed",
]


def load(name: str) -> Pipeline:
    """The pipeline of that name."""
    if name not in PIPELINES:
        raise WrongOptionError(f"there is no pipeline {name!r}{nearest(name, PIPELINES)}")
    return cast("Pipeline", importlib.import_module(f"{__name__}.{name}"))
