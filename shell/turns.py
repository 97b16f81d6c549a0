"""Long loops of one greenlet that leave the others their turn."""

from __future__ import annotations

import time

import gevent

_SLICE_S = 0.004


class Turns:
    """``take`` is called once per step of a long loop; every few milliseconds it lets other greenlets run."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.monotonic()

    def take(self) -> None:
        """Yield to the hub when this greenlet has run for longer than its slice."""
        if time.monotonic() - self._since > _SLICE_S:
            gevent.sleep(0)
            self._since = time.monotonic()
