"""Many seeds of power losses: `python -m tests.log.crash_seeds 2000 [first seed]`."""

from __future__ import annotations

import sys
import traceback

from tests.log.crashes import run_seed
from tests.log.directory_crashes import run_directories_seed
from tests.log.follower_crashes import run_follower_seed


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    failed = []
    for seed in range(first, first + count):
        try:
            run_seed(seed)
            run_follower_seed(seed)
            run_directories_seed(seed)
        except Exception:  # noqa: BLE001 - every failing seed is reported, whatever it fails with
            failed.append(seed)
            print(f"seed {seed} failed:", file=sys.stderr)
            traceback.print_exc()
    print(f"{count - len(failed)} of {count} seeds passed" + (f"; failed: {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
