"""Waiting for what a test is about, instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; what the test is about begins then, however slow the machine is."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
