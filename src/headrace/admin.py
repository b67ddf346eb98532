"""Administration: `Admin`, and every value that its operations take and give, under the names of Kafka's Admin."""

from __future__ import annotations

from headrace.client.admin import *  # noqa: F403
from headrace.client.admin import __all__ as __all__
