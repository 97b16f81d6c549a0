"""One action at a time, first come first served.

Promises: actions start in the order they arrived; nobody barges in between the end of one and the start of the next;
  whoever stops waiting leaves the queue; the turn passes on whatever happened to the action.
Checked by: tests/unit/daemon/test_actions.py, tests/system/test_http_queue.py.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import gevent
from gevent.event import Event
from gevent.lock import Semaphore

from daemon.errors import RefusedError, RequestError, WithdrawnError
from shell.stop import StopSignal


class StoppingError(RequestError):
    """The daemon is about to exit and starts nothing any more."""

    status = 500


@dataclass(eq=False, slots=True)
class _Ticket:
    """One action, waiting or running."""

    from_agent: bool
    stop: StopSignal
    turn: Event = field(default_factory=Event)


class ActionQueue:
    """Hands the one turn from action to action."""

    def __init__(self) -> None:
        self._lock = Semaphore(1)
        self._waiting: deque[_Ticket] = deque()
        self._running: _Ticket | None = None
        self._closed = False
        self._agent_closed = False

    @property
    def waiting(self) -> int:
        """How many actions wait for their turn."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether an action is running."""
        return self._running is not None

    @contextmanager
    def turn(self, stop: StopSignal, *, from_agent: bool) -> Iterator[None]:
        """Wait for the turn, hold it for the body of the ``with``.

        RefusedError when the agent phase ends first, StoppingError when the daemon stops, WithdrawnError when ``stop``
        was set for any other reason (the client went away).
        """
        ticket = _Ticket(from_agent, stop)
        self._acquire(ticket)
        try:
            yield
        finally:
            self._pass_on()

    def end_agent_actions(self) -> None:
        """The agent phase is over: refuse what waits for an agent, stop what runs for one."""
        self._agent_closed = True
        for ticket in self._tickets():
            if ticket.from_agent:
                ticket.stop.set("the agent phase ended")

    def close(self) -> None:
        """The daemon stops: refuse what waits, stop what runs, start nothing more."""
        self._closed = True
        for ticket in self._tickets():
            ticket.stop.set("the daemon stops")

    def wait_idle(self, within_s: float) -> bool:
        """Wait until nothing runs and nobody waits; False after ``within_s`` seconds."""
        deadline = time.monotonic() + within_s
        while (self.busy or self.waiting) and time.monotonic() < deadline:
            gevent.sleep(0.02)
        return not self.busy

    def _tickets(self) -> list[_Ticket]:
        return [*self._waiting, *([self._running] if self._running else [])]

    def _acquire(self, ticket: _Ticket) -> None:
        self._check(ticket)
        # Whoever finds others waiting queues behind them, also when the lock happens to be free right now.
        if self._waiting or not self._lock.acquire(blocking=False):
            self._wait(ticket)
        else:
            self._running = ticket

    def _wait(self, ticket: _Ticket) -> None:
        self._waiting.append(ticket)
        try:
            gevent.wait([ticket.turn, ticket.stop.event], count=1)
            if ticket.stop.is_set():
                self._check(ticket)
        except BaseException:
            # Turn and stop can come in one round of the loop; a turn that is not taken must reach the next one.
            if ticket.turn.is_set():
                self._pass_on()
            else:
                self._waiting.remove(ticket)
            raise

    def _check(self, ticket: _Ticket) -> None:
        if self._closed:
            raise StoppingError("the daemon is stopping")
        if ticket.from_agent and self._agent_closed:
            raise RefusedError("the agent phase has ended: tools are no longer served here")
        if ticket.stop.is_set():
            raise WithdrawnError(str(ticket.stop.reason))

    def _pass_on(self) -> None:
        """Give the turn to the first in the queue. The lock stays taken meanwhile: that is what keeps others out."""
        self._running = self._waiting.popleft() if self._waiting else None
        if self._running is not None:
            self._running.turn.set()
        else:
            self._lock.release()
