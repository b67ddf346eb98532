"""A setting for brokers that serve many tests: what a test has written stays until the test is over.

Records of tests bear timestamps of one fixed day, longer ago than Kafka keeps records by default. A broker looks for
such records every five minutes, and a test that reads again just then finds nothing.
"""

from __future__ import annotations

KEEP_RECORDS = {"log.retention.check.interval.ms": str(24 * 60 * 60 * 1000)}
