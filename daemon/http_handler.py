"""gevent's WSGI handler with its reading half replaced by a strict one, and JSON for every error.

Runs as: root. Distrusts: the client.
Promises: every answer is JSON, also for requests that never reach the app; whenever the connection is going to be
  closed the answer says so; a client that vanishes leaves no trace but its access line; no traceback leaves the log.
Checked by: tests/system/test_http_raw.py, tests/system/test_http_behaviour.py.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import gevent
from gevent import socket
from gevent.pywsgi import WSGIHandler

from daemon.connection import Connection, peer_of
from daemon.errors import RequestError
from daemon.http_head import Head, parse_head
from daemon.http_stream import Body, Stream
from daemon.log import printable

if TYPE_CHECKING:
    from daemon.listeners import Server

# Environ keys that only this module sets; headers of a request always become HTTP_*.
LISTENER_KEY = "ssebench.listener"
CLIENT_KEY = "ssebench.client"

_SEND_SECONDS = 60.0  # for one piece of an answer; a client that reads slower than that has gone to sleep
_SKIP_BYTES, _SKIP_SECONDS = 64 * 1024, 1.0
_LINGER_BYTES, _LINGER_SECONDS = 32 * 1024 * 1024, 2.0
_ONE_SEND_BYTES = 64 * 1024


class ClientLost(Exception):
    """The client stopped reading; nobody is left to be told about it."""


class RequestHandler(WSGIHandler):
    """Serves the requests of one connection, one after the other."""

    server: Server

    def __init__(self, sock: socket.socket, address: Any, server: Server) -> None:
        self.stream = Stream(sock)
        super().__init__(sock, address, server, rfile=self.stream)
        self.peer = peer_of(sock)
        self.connection = Connection(sock)
        self.head: Head | None = None
        self.requestline = ""
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # -- reading ------------------------------------------------------------------------------------------------

    def handle(self) -> None:
        """Serve until the client closes, or the connection has to be."""
        try:
            while self._serve_one():
                pass
            self.stream.linger(_LINGER_SECONDS, _LINGER_BYTES)
        except ClientLost:
            pass
        finally:
            self.socket.close()

    def _serve_one(self) -> bool:
        """Read one request and answer it; whether another one may follow."""
        self.head = None
        self.requestline = ""
        self.server.now_idle(self)
        try:
            if not self.stream.wait_for_request():
                return False
        finally:
            self.server.now_busy(self)
        self.time_start = time.monotonic()
        self._forget_last_answer()
        try:
            data = self.stream.read_head()
            if data is None:
                return False
            self.requestline = data[:1024].split(b"\r\n", 1)[0].decode("latin-1")
            self.head = parse_head(data)
        except RequestError as error:
            self.request_version, self.command, self.close_connection = "HTTP/1.1", "", True
            self.wsgi_input = Body(self.stream, 0, False)
            self._answer_with(lambda environ, start: self._error(start, error.status, str(error)))
            return False
        self._prepare(self.head)
        self._answer_with(self.server.application)
        return not self.close_connection

    def _prepare(self, head: Head) -> None:
        self.command, self.path = head.method, head.target
        self.request_version = f"HTTP/{head.version}"
        self.close_connection = not head.keep_alive or self.server.stopping
        self.content_length = head.length
        self.wsgi_input = Body(self.stream, head.length, head.expects_continue)
        self.environ = self._environ(head)

    def _environ(self, head: Head) -> dict[str, Any]:
        path, _, query = head.target.partition("?")
        environ: dict[str, Any] = self.server.get_environ()
        environ.update(
            REQUEST_METHOD=head.method,
            SCRIPT_NAME="",
            PATH_INFO=unquote_to_bytes(path).decode("latin-1"),
            QUERY_STRING=query,
            SERVER_PROTOCOL=self.request_version,
        )
        for name, value in head.fields.items():
            if name == "content-type":
                environ["CONTENT_TYPE"] = value
            elif name == "content-length":
                environ["CONTENT_LENGTH"] = value
            elif "_" not in name:  # "x_y" and "x-y" would become the same key
                environ[f"HTTP_{name.upper().replace('-', '_')}"] = value
        environ["wsgi.input"] = self.wsgi_input
        environ["wsgi.input_terminated"] = True
        environ[LISTENER_KEY] = self.server.kind
        environ[CLIENT_KEY] = self.connection
        return environ

    # -- answering ----------------------------------------------------------------------------------------------

    def _forget_last_answer(self) -> None:
        self.status = None
        self.code = 0
        self.headers_sent = False
        self.result = None
        self.response_use_chunked = False
        self.connection_upgraded = False
        self.response_length = 0

    def _answer_with(self, application: Callable[..., Iterable[bytes]]) -> None:
        self.application = application
        try:
            self.run_application()
        except ClientLost:
            self.close_connection = True
        except gevent.GreenletExit:
            raise
        except RequestError as error:
            self._answer_late(error.status, str(error))
        except Exception:
            number = uuid.uuid4().hex[:12]
            self.server.log_exception(number)
            self._answer_late(500, f"internal error {number}")
        finally:
            self.log_request()

    def _answer_late(self, status: int, message: str) -> None:
        """An error that came out of the app itself: answer it if nothing was sent yet, close in any case."""
        self.close_connection = True
        if self.headers_sent:
            return
        self.application = lambda environ, start: self._error(start, status, message)
        self.response_use_chunked = False
        try:
            self.run_application()
        except ClientLost:
            pass

    def _error(self, start: Callable[..., Any], status: int, message: str) -> list[bytes]:
        body = json.dumps({"error": message}).encode() + b"\n"
        reason = HTTPStatus(status).phrase
        start(f"{status} {reason}", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        """Begin an answer. What is left of the request is taken in first, or the connection is going to be closed."""
        if not self.wsgi_input.skip(_SKIP_BYTES, _SKIP_SECONDS):
            self.close_connection = True
        super().start_response(status, headers, exc_info)
        if self.close_connection and self.request_version != "HTTP/1.0":
            # gevent closes without saying so, and a pooled client would send its next request into the void.
            self.response_headers.append((b"Connection", b"close"))
        return self.write  # type: ignore[no-any-return]

    def finalize_headers(self) -> None:
        """Complete the fields of an answer. One to HEAD has no body, also none of zero chunks."""
        super().finalize_headers()
        if self.command == "HEAD":
            self.response_use_chunked = False

    def _write_with_headers(self, data: bytes) -> None:
        """The head and a small body in one send: two would cost a system call, and on TCP a delayed packet."""
        self.headers_sent = True
        self.finalize_headers()
        lines = [b"HTTP/1.1 " + self.status]
        lines += [name + b": " + value for name, value in self.response_headers]
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        if self.response_use_chunked or len(data) > _ONE_SEND_BYTES:
            self._sendall(head)
            self._write(data)
        else:
            self._sendall(head + data)

    def _sendall(self, data: bytes) -> None:
        self.socket.settimeout(_SEND_SECONDS)
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise ClientLost from error
        self.response_length += len(data)

    def log_request(self) -> None:
        """One line per request: who, what, how it ended, how long it took, how much was sent. No bodies."""
        taken_ms = (time.monotonic() - self.time_start) * 1000
        who = f" uid={self.peer.uid} pid={self.peer.pid}" if self.peer else f" from={self._address()}"
        what = printable(self.requestline.rpartition(" ")[0] or self.requestline or "-")
        self.server.access_log(
            f"{self.server.kind.value}{who} {what} {self.code or '-'} {taken_ms:.1f}ms {self.response_length}B"
        )

    def _address(self) -> str:
        return str(self.client_address[0]) if isinstance(self.client_address, tuple) else "-"
