"""What every test may rely on: Apache Kafka's jars, where `make peers` has fetched them, named by HEADRACE_KAFKA_LIBS."""

from __future__ import annotations

import os

from bench import peers

if "HEADRACE_KAFKA_LIBS" not in os.environ and (libs := peers.kafka_libs()) is not None:
    os.environ["HEADRACE_KAFKA_LIBS"] = str(libs)
