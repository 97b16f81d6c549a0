"""The three sockets: bound safely, told apart for good, removed only while they are still ours.

Runs as: root. Distrusts: whatever already lies at a socket's path; clients that only hold connections open.
Promises: no socket has looser permissions than its own for a moment; a path is replaced only if it holds a socket of
  ours that nobody listens on; the kind of a request is the kind of the socket it came in on; however many connections
  stay open, new ones are served (the oldest idle one gives way); one listener never takes the descriptors of another.
Does not promise: anything against another process of root.
Checked by: tests/system/test_listeners.py, tests/system/test_http_raw.py.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import time
from collections.abc import Callable
from typing import Any

import gevent
from gevent import socket
from gevent.lock import Semaphore
from gevent.pywsgi import WSGIServer

from daemon.access import Kind
from daemon.directories import check_ancestors, private_directory
from daemon.errors import StartError
from daemon.http_answer import Application
from daemon.http_handler import RequestHandler

_BACKLOG = 1024
_LIVE_CHECK_SECONDS = 2.0
_LARGE_BODIES = 8  # of up to 16 MiB each, on one listener


class Listener:
    """One bound socket and what kind it is."""

    def __init__(self, kind: Kind, sock: socket.socket, path: str | None = None) -> None:
        self.kind, self.socket, self._path = kind, sock, path
        self._identity = _identity(path) if path else None

    @property
    def address(self) -> str:
        """Where clients find it: a path, or host:port."""
        if self._path:
            return self._path
        host, port = self.socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def remove(self) -> None:
        """Close it, and remove its path if that is still the socket we bound."""
        self.socket.close()
        if self._path and _identity(self._path) == self._identity:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def bind_agent_socket(path: str) -> Listener:
    """The agent-facing Unix socket, mode 0666."""
    check_ancestors(path, "SSE_DAEMON_SOCKET")
    return Listener(Kind.AGENT, _bind_unix(path, "SSE_DAEMON_SOCKET", umask=0o111), path)


def bind_admin_socket(path: str) -> Listener:
    """The admin Unix socket, mode 0600, in a directory of root's with mode 0700."""
    private_directory(os.path.dirname(path), "SSE_ADMIN_SOCKET")
    return Listener(Kind.ADMIN, _bind_unix(path, "SSE_ADMIN_SOCKET", umask=0o177), path)


def bind_http(host: str, port: int) -> Listener:
    """The agent-facing TCP listener."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartError(f"SSE_HTTP_HOST={host}: {error.strerror or error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"SSE_HTTP_PORT={port} is taken by another program on {host}; choose another") from error
        raise StartError(f"SSE_HTTP_PORT={port} on {host} cannot be bound: {error.strerror}") from error
    return Listener(Kind.HTTP, sock)


def _bind_unix(path: str, variable: str, *, umask: int) -> socket.socket:
    _remove_stale(path, variable)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode has to be right from the first moment, and chmod would follow a link. bind itself follows none.
    before = os.umask(umask)
    try:
        sock.bind(path)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise StartError(f"{variable}={path} cannot be bound: {error.strerror}") from error
    finally:
        os.umask(before)
    return sock


def _remove_stale(path: str, variable: str) -> None:
    """Unlink a socket of ours that nobody listens on; StartError for anything else at ``path``."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartError(f"{variable}={path}: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise StartError(f"{variable}={path} is not a socket; remove it or choose another path")
    if found.st_uid != os.geteuid():
        raise StartError(f"{variable}={path} is a socket of uid {found.st_uid}; remove it or choose another path")
    if _is_live(path):
        raise StartError(f"{variable}={path} is in use by a running daemon; stop it or choose another path")
    os.unlink(path)


def _is_live(path: str) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(_LIVE_CHECK_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Server(WSGIServer):
    """Serves the app on one listener."""

    def __init__(
        self,
        listener: Listener,
        application: Application,
        *,
        access_log: Callable[[str], None],
        log_exception: Callable[[str], None],
        max_connections: int,
    ) -> None:
        self.kind = listener.kind
        self.access_log, self.log_exception = access_log, log_exception
        self.stopping = False
        self.large_bodies = Semaphore(_LARGE_BODIES)
        self._listener = listener
        self._max_connections = max_connections
        self._open = 0
        self._idle: dict[RequestHandler, None] = {}  # oldest first
        super().__init__(
            listener.socket,
            application,
            log=None,
            error_log=None,
            environ={"SERVER_NAME": "localhost", "SERVER_PORT": "0", "wsgi.multithread": True},
        )

    def handle(self, sock: socket.socket, address: Any) -> None:
        """Serve one connection."""
        if self._open >= self._max_connections and not self._end_idle(1):
            sock.close()  # as many requests as there may be are being served
            return
        self._open += 1
        try:
            RequestHandler(sock, address, self).handle()
        except OSError:
            sock.close()
        finally:
            self._open -= 1

    def now_idle(self, handler: RequestHandler) -> None:
        """``handler`` waits for a request, or for the rest of its head."""
        self._idle[handler] = None
        if self.stopping:
            self._end_idle(len(self._idle))

    def now_busy(self, handler: RequestHandler) -> None:
        """``handler`` waits no longer."""
        self._idle.pop(handler, None)

    def close_gracefully(self) -> None:
        """Accept nothing more, remove the socket, end idle connections; running requests say that they are the last."""
        self.stopping = True
        self.stop_accepting()
        self._listener.remove()
        self._end_idle(len(self._idle))

    def wait_finished(self, within_s: float) -> None:
        """Wait for running requests, at most ``within_s`` seconds."""
        deadline = time.monotonic() + within_s
        while self._open and time.monotonic() < deadline:
            gevent.sleep(0.02)

    def _end_idle(self, count: int) -> int:
        """End the oldest ``count`` idle connections; how many there were."""
        oldest = list(itertools.islice(self._idle, count))
        for handler in oldest:
            self._idle.pop(handler, None)
            # Its recv then returns the end of the stream, the way a closing client would end it.
            with contextlib.suppress(OSError):
                handler.socket.shutdown(socket.SHUT_RDWR)
        return len(oldest)
