"""One answer on its way to the client: WSGI's start_response, and how its bytes are framed.

Promises: an answer has a length, comes in chunks, or ends with the connection, and says which; one that closes the
  connection says so (gevent's own handler closes silently, and a pooled client then sends into the void).
Checked by: tests/system/test_http_raw.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, TypeAlias

from gevent import socket

_SEND_SECONDS = 60.0  # for one piece; a client that reads slower than that has gone to sleep
_ONE_SEND_BYTES = 64 * 1024

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

Application: TypeAlias = "WSGIApplication"


class ClientLostError(Exception):
    """The client stopped reading. Nobody is left to be told about it."""


class Answer:
    """Sends what an application answers to one request.

    ``keeps_alive`` is asked when the answer begins: whether the connection can serve another request afterwards.
    """

    def __init__(self, sock: socket.socket, method: str, version: str, keeps_alive: Callable[[], bool]) -> None:
        self._socket = sock
        self._has_body = method != "HEAD"
        self._version = version
        self._keeps_alive = keeps_alive
        self._status = ""
        self._headers: list[tuple[str, str]] = []
        self._chunked = False
        self.begun = False
        self.closes = False
        self.sent_bytes = 0

    @property
    def code(self) -> str:
        """The status code, "-" as long as there is none."""
        return self._status[:3] or "-"

    def run(self, application: Application, environ: dict[str, Any]) -> None:
        """Send the whole answer of ``application``; ClientLostError when nobody takes it."""
        pieces = application(environ, self._start)
        try:
            for piece in pieces:
                if piece:
                    self._write(piece)
            if not self.begun:
                self._begin(b"")
            if self._chunked:
                self._send(b"0\r\n\r\n")
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()

    def _start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Callable[[bytes], object]:
        if self.begun and exc_info:
            raise exc_info[1]
        self._status, self._headers = status, headers
        return self._write

    def _write(self, data: bytes) -> None:
        if not self.begun:
            self._begin(data)
        elif self._chunked:
            self._send(b"%x\r\n%b\r\n" % (len(data), data))
        elif self._has_body:
            self._send(data)

    def _begin(self, data: bytes) -> None:
        """Send the head, with a small body in the same packet: a second one may wait for an acknowledgement."""
        self.begun = True
        sized = any(name.lower() == "content-length" for name, _ in self._headers)
        self._has_body = self._has_body and self.code not in ("204", "304")
        self._chunked = self._has_body and not sized and self._version == "1.1"
        unsized = not sized and not self._chunked and self._has_body
        self.closes = self.closes or unsized or not self._keeps_alive()
        head = self._head(sized)
        if self._chunked or len(data) > _ONE_SEND_BYTES:
            self._send(head)
            self._write(data)
        else:
            self._send(head + data if self._has_body else head)

    def _head(self, sized: bool) -> bytes:
        lines = [f"HTTP/1.1 {self._status}", *(f"{name}: {value}" for name, value in self._headers)]
        lines.append(f"Date: {http_date(int(time.time()))}")
        if self._chunked:
            lines.append("Transfer-Encoding: chunked")
        if self.closes:
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _send(self, data: bytes) -> None:
        self._socket.settimeout(_SEND_SECONDS)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ClientLostError from error
        self.sent_bytes += len(data)


_date = (0, "")


def http_date(second: int) -> str:
    """The time of day in HTTP's format; formatted once per second."""
    global _date
    if _date[0] != second:
        _date = (second, formatdate(second, usegmt=True))
    return _date[1]
