"""Greenlets that share their time: long loops that leave others their turn, and calls side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import gevent

_SLICE_S = 0.004
_HIGHEST_PRIORITY = 2  # of the event loop's watchers


def give_turn() -> None:
    """Let every other greenlet that can go on do so, also those that wait for a socket.

    ``gevent.sleep(0)`` is not enough: the loop runs up to fifty such wake-ups before it looks at a socket again, and
    with slices of milliseconds that is a tenth of a second. A watcher of the idle kind comes once per look.
    """
    gevent.idle(priority=_HIGHEST_PRIORITY)


class Turns:
    """``take`` is called once per step of a long loop; every few milliseconds it lets other greenlets run."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.monotonic()

    def take(self) -> None:
        """Yield to the hub when this greenlet has run for longer than its slice."""
        if time.monotonic() - self._since > _SLICE_S:
            give_turn()
            self._since = time.monotonic()


def in_parallel(calls: Iterable[Callable[[], None]]) -> None:
    """Run calls as greenlets and wait for all of them; the first error is raised after all have ended."""
    errors: list[Exception] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    greenlets = [gevent.spawn(run, call) for call in calls]
    try:
        gevent.joinall(greenlets)
    finally:
        gevent.killall(greenlets)
    if errors:
        raise errors[0]
