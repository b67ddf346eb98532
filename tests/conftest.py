"""For every test: HEADRACE_KAFKA_LIBS names Apache Kafka's jars, where `make peers` has fetched them."""

from __future__ import annotations

import os

from bench import peers

if "HEADRACE_KAFKA_LIBS" not in os.environ and (libs := peers.kafka_libs()) is not None:
    os.environ["HEADRACE_KAFKA_LIBS"] = str(libs)
