"""The one way to end a running action early: a signal that is set once and read by everything that waits."""

from __future__ import annotations

from gevent.event import Event


class StopSignal:
    """Set at most once, by whoever ends an action: its client went away, the phase ended, the daemon stops.

    Whatever runs an action waits on ``event`` beside its own end, and then ends what it started the way a
    timeout would. Setting it again keeps the first reason.
    """

    __slots__ = ("event", "reason")

    def __init__(self) -> None:
        self.event = Event()
        self.reason: str | None = None

    def set(self, reason: str) -> None:
        """Ask the action to end; ``reason`` completes "stopped because ..."."""
        if self.reason is None:
            self.reason = reason
            self.event.set()

    def is_set(self) -> bool:
        """Whether somebody has asked."""
        return self.reason is not None
