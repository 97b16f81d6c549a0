"""The console script ``ssebench``: says what is missing when only the SDK was installed."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command; 2 with one line when the extra it needs is not installed."""
    try:
        from tasks.cli import main as run
    except ModuleNotFoundError as error:
        print(f"ssebench: {error.name} is missing: install ssebench-daemon with its extra [daemon]", file=sys.stderr)
        return 2
    return run()
