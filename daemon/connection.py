"""Who is at the other end of a connection, and whether it is still there."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import gevent
from gevent import monkey
from gevent import socket as gevent_socket

from shell.stop import StopSignal

# gevent's poll waits in the hub and knows no POLLRDHUP; this one asks the kernel and returns at once.
_poll = monkey.get_original("select", "poll")
_CHECK_SECONDS = 0.2
_UCRED = struct.Struct("3i")

# A Unix peer that closed hangs up. A TCP peer's close looks like a shutdown of its sending side: clients that
# half-close and still wait for their answer are taken for gone while an action runs.
_GONE_UNIX = select.POLLHUP | select.POLLERR | select.POLLNVAL
_GONE_TCP = _GONE_UNIX | select.POLLRDHUP


class Client(Protocol):
    """What an action needs to know about whoever asked for it."""

    def is_gone(self) -> bool:
        """Whether nobody waits for the answer any more."""


class UnknownClient:
    """The client of a request that came over no connection (WSGI tests)."""

    def is_gone(self) -> bool:
        """Never."""
        return False


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected to a Unix socket, as the kernel saw it at connect."""

    uid: int
    pid: int


def peer_of(sock: gevent_socket.socket) -> Peer | None:
    """The peer of a Unix socket; None on TCP."""
    if sock.family != socket.AF_UNIX:
        return None
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(uid, pid)


class Connection:
    """Looks at a socket without reading from it: pipelined requests stay where they are."""

    __slots__ = ("_poll", "_sock")

    def __init__(self, sock: gevent_socket.socket) -> None:
        self._sock = sock
        self._poll: select.poll | None = None

    def is_gone(self) -> bool:
        """Whether the client closed its end."""
        if self._poll is None:
            self._poll = _poll()
            self._poll.register(self._sock.fileno(), _GONE_UNIX if self._sock.family == socket.AF_UNIX else _GONE_TCP)
        return bool(self._poll.poll(0))


class _Watch:
    """A timer of the loop: cheaper than a greenlet for the commands that end before it first fires."""

    __slots__ = ("_client", "_stop", "_timer")

    def __init__(self, client: Client, stop: StopSignal) -> None:
        self._client, self._stop = client, stop
        self._timer = gevent.get_hub().loop.timer(_CHECK_SECONDS, repeat=_CHECK_SECONDS)

    def __enter__(self) -> None:
        self._timer.start(self._check)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.stop()
        self._timer.close()

    def _check(self) -> None:
        if self._client.is_gone():
            self._stop.set("the client went away")


@contextmanager
def stopped_when_gone(client: Client) -> Iterator[StopSignal]:
    """A stop signal that is set when the client goes away before the body of the ``with`` ends."""
    stop = StopSignal()
    with _Watch(client, stop):
        yield stop
