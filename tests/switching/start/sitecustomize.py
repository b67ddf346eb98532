"""Imported by Python itself when a process starts that was told to switch threads often: see `tests/switching`."""

import os
import sys

if os.environ.get("HEADRACE_TEST_SWITCH_INTERVAL"):
    sys.setswitchinterval(float(os.environ["HEADRACE_TEST_SWITCH_INTERVAL"]))
