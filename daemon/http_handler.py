"""The requests of one connection, one after the other. Takes the place of gevent's own handler in its WSGI server.

Runs as: root. Distrusts: the client.
Promises: every answer is JSON, also to requests that never reach the app; a client that vanishes leaves nothing behind
  but its line in the access log; no traceback leaves the log.
Checked by: tests/system/test_http_raw.py, tests/system/test_http_fuzz.py.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote_to_bytes

from gevent import GreenletExit, socket
from gevent.lock import Semaphore

from daemon.access import Kind
from daemon.connection import Connection, peer_of
from daemon.errors import RequestError
from daemon.http_answer import Answer, Application, ClientLostError
from daemon.http_head import Head, Heads
from daemon.http_stream import Body, Stream
from daemon.log import printable
from shell.turns import give_turn

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

# Environ keys that only this module sets; header fields of a request always become HTTP_*.
LISTENER_KEY = "ssebench.listener"
CLIENT_KEY = "ssebench.client"

_SKIP_BYTES, _SKIP_SECONDS = 64 * 1024, 1.0
_LINGER_BYTES, _LINGER_SECONDS = 32 * 1024 * 1024, 2.0
_LOGGED_LINE_BYTES = 1024
_LARGE_BODY_BYTES = 1024 * 1024


class Serving(Protocol):
    """What a handler needs of its server."""

    kind: Kind
    application: Application
    stopping: bool
    large_bodies: Semaphore
    access_log: Callable[[str], None]
    log_exception: Callable[[str], None]

    def get_environ(self) -> dict[str, Any]:
        """A new environ with what all requests share."""

    def now_idle(self, handler: RequestHandler) -> None:
        """The handler waits for a request, or for the rest of its head."""

    def now_busy(self, handler: RequestHandler) -> None:
        """The handler waits no longer."""


class RequestHandler:
    """Serves one connection."""

    def __init__(self, sock: socket.socket, address: Any, server: Serving) -> None:
        self.socket = sock
        self._server = server
        self._stream = Stream(sock)
        self._heads = Heads()
        self._connection = Connection(sock)
        self._peer = peer_of(sock)
        self._address = address[0] if isinstance(address, tuple) else "-"
        if self._peer is None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def handle(self) -> None:
        """Serve until the client closes, or the connection has to be."""
        try:
            while self._serve_one():
                pass
            self._stream.linger(_LINGER_SECONDS, _LINGER_BYTES)
        except ClientLostError:
            pass
        finally:
            self.socket.close()

    def _serve_one(self) -> bool:
        """Read one request and answer it; whether another one may follow."""
        if self._stream.holds_more:
            give_turn()  # recv never waits for a client that sends ahead: others would not get their turn
        line = b""
        try:
            data = self._next_head()
            started = time.monotonic()
            if data is None:
                return False
            line = data[:_LOGGED_LINE_BYTES].split(b"\r\n", 1)[0]
            head = self._heads.parse(data)
        except RequestError as error:
            answer = Answer(self.socket, "", "1.1", lambda: False)
            self._run(answer, _error_application(error.status, str(error)), {}, line, time.monotonic())
            return False
        body = Body(self._stream, head)

        def keeps_alive() -> bool:
            # What is left of the request is taken in before the answer begins: afterwards it is too late to say close.
            return head.keep_alive and not self._server.stopping and body.skip(_SKIP_BYTES, _SKIP_SECONDS)

        answer = Answer(self.socket, head.method, head.version, keeps_alive)
        with self._room_for(head):
            self._run(answer, self._server.application, self._environ(head, body), line, started)
        return not answer.closes

    def _next_head(self) -> bytes | None:
        """The head of the next request; None when the client closed before it was whole."""
        # Idle until it is: a client that sends half a head has no better claim to its connection than a silent one.
        self._server.now_idle(self)
        try:
            return self._stream.read_head() if self._stream.wait_for_request() else None
        finally:
            self._server.now_busy(self)

    def _room_for(self, head: Head) -> AbstractContextManager[object]:
        """Only so many large bodies are held at once; a further one waits in its socket until there is room."""
        large = head.length is None or head.length > _LARGE_BODY_BYTES
        return self._server.large_bodies if large else contextlib.nullcontext()

    def _run(
        self, answer: Answer, application: Application, environ: dict[str, Any], line: bytes, started: float
    ) -> None:
        try:
            answer.run(application, environ)
        except (ClientLostError, GreenletExit):
            answer.closes = True
        except RequestError as error:
            self._run_instead(answer, error.status, str(error))
        except Exception:
            number = uuid.uuid4().hex[:12]
            self._server.log_exception(number)
            self._run_instead(answer, 500, f"internal error {number}")
        finally:
            self._log(answer, line, started)

    def _run_instead(self, answer: Answer, status: int, message: str) -> None:
        """The application or its answer broke: say so if nothing was sent yet, and close in any case."""
        answer.closes = True
        if not answer.begun:
            with contextlib.suppress(ClientLostError):
                answer.run(_error_application(status, message), {})

    def _environ(self, head: Head, body: Body) -> dict[str, Any]:
        path, _, query = head.target.partition("?")
        environ = self._server.get_environ()
        environ["REQUEST_METHOD"] = head.method
        environ["PATH_INFO"] = unquote_to_bytes(path).decode("latin-1") if "%" in path else path
        environ["QUERY_STRING"] = query
        environ["SERVER_PROTOCOL"] = f"HTTP/{head.version}"
        for name, value in head.fields.items():
            if name == "content-type":
                environ["CONTENT_TYPE"] = value
            elif name == "content-length":
                environ["CONTENT_LENGTH"] = value
            elif "_" not in name and name != "upgrade":  # "x_y" and "x-y" would become one key; nothing upgrades here
                environ[f"HTTP_{name.upper().replace('-', '_')}"] = value
        environ["wsgi.input"] = body
        environ["wsgi.input_terminated"] = True
        environ[LISTENER_KEY] = self._server.kind
        environ[CLIENT_KEY] = self._connection
        return environ

    def _log(self, answer: Answer, line: bytes, started: float) -> None:
        """One line per request: who, what, how it ended, how long it took, how much was sent. No bodies."""
        taken_ms = (time.monotonic() - started) * 1000
        who = f"uid={self._peer.uid} pid={self._peer.pid}" if self._peer else f"from={self._address}"
        text = line.decode("latin-1")
        what = printable(text.rpartition(" ")[0] or text or "-")
        self._server.access_log(
            f"{self._server.kind.value} {who} {what} {answer.code} {taken_ms:.1f}ms {answer.sent_bytes}B"
        )


def _error_application(status: int, message: str) -> Application:
    """Answers every request with one error."""

    def application(environ: dict[str, Any], start: StartResponse, /) -> Iterable[bytes]:
        body = json.dumps({"error": message}).encode()
        fields = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start(f"{status} {HTTPStatus(status).phrase}", fields)
        return [body]

    return application
