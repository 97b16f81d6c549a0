"""The bytes of one connection, in the order they come, with a deadline: heads, and bodies of known length or in chunks.

Runs as: root. Distrusts: the client: it may send nothing, one byte a minute, or endless chunks.
Promises: a head is complete within HEAD_SECONDS of its first byte, a body within BODY_SECONDS of its first read, or the
  request is over; never more than the limits of http_head is kept; bytes of a following request stay untouched.
Checked by: tests/unit/daemon/test_http_server.py, tests/system/test_http_raw.py.
"""

from __future__ import annotations

import contextlib
import time

from gevent import socket

from daemon.errors import BadRequestError, HeadTooLargeError, RequestTimeoutError, TargetTooLongError, TooLargeError
from daemon.http_chunks import Chunks
from daemon.http_head import MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_REQUEST_LINE_BYTES, Head

HEAD_SECONDS = 30.0
BODY_SECONDS = 30.0
_RECV_BYTES = 64 * 1024
_EMPTY_LINES_BYTES = 1024


class Stream:
    """Reads from a socket, keeping what was read too far."""

    __slots__ = ("_buffer", "_deadline", "socket")

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = b""
        self._deadline: float | None = None

    @property
    def holds_more(self) -> bool:
        """Whether bytes of a following request are here already."""
        return bool(self._buffer)

    def start_deadline(self, seconds: float | None) -> None:
        """From now on reading has to be done within ``seconds``; None takes the deadline away."""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def wait_for_request(self) -> bool:
        """Wait, without a deadline, for the first byte of a request; False when the client closed instead."""
        self._deadline = None
        empty_bytes = 0
        while empty_bytes <= _EMPTY_LINES_BYTES:
            received = len(self._buffer)
            self._buffer = self._buffer.lstrip(b"\r\n")  # tolerated before a request line, as the RFC asks
            if self._buffer:
                return True
            empty_bytes += received
            if not self._fill():
                return False
        return False

    def read_head(self) -> bytes | None:
        """The next head up to and with its empty line; None when the client closed in the middle of it."""
        self.start_deadline(HEAD_SECONDS)
        searched = 0
        while (end := self._buffer.find(b"\r\n\r\n", searched)) < 0:
            if b"\n" not in self._buffer[: MAX_REQUEST_LINE_BYTES + 2] and len(self._buffer) > MAX_REQUEST_LINE_BYTES:
                raise TargetTooLongError("the request line is too long")
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise HeadTooLargeError(f"the header fields are larger than {MAX_HEAD_BYTES} bytes")
            searched = max(0, len(self._buffer) - 3)
            if not self._fill():
                return None
        head, self._buffer = self._buffer[: end + 4], self._buffer[end + 4 :]
        self._deadline = None
        if len(head) > MAX_HEAD_BYTES:
            raise HeadTooLargeError(f"the header fields are larger than {MAX_HEAD_BYTES} bytes")
        return head

    def read(self, size: int) -> bytes:
        """At least one and at most ``size`` bytes; BadRequestError when the client closed before."""
        if not self._buffer and not self._fill():
            raise BadRequestError("the connection ended inside the body")
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def unread(self, data: bytes) -> None:
        """Take back what was read too far."""
        self._buffer = data + self._buffer

    def say_continue(self) -> None:
        """Ask for the body. A client that is gone by now is noticed when nothing comes."""
        self.socket.settimeout(BODY_SECONDS)
        with contextlib.suppress(OSError):
            self.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def linger(self, seconds: float, limit_bytes: int) -> None:
        """After the last answer: say that nothing more comes, and take in what the client is still sending.

        Closing with unread bytes would reset the connection, and the client would lose the answer.
        """
        with contextlib.suppress(OSError, RequestTimeoutError):
            self.socket.shutdown(socket.SHUT_WR)
            self.start_deadline(seconds)
            while limit_bytes > 0:
                self._buffer = b""
                if not self._fill():
                    return
                limit_bytes -= len(self._buffer)

    def _fill(self) -> bool:
        """Receive more; False at the end. RequestTimeoutError when the deadline passes."""
        timeout = None
        if self._deadline is not None:
            timeout = self._deadline - time.monotonic()
            if timeout <= 0:
                raise RequestTimeoutError("the request was not complete in time")
        self.socket.settimeout(timeout)
        try:
            data = self.socket.recv(_RECV_BYTES)
        except TimeoutError:
            raise RequestTimeoutError("the request was not complete in time") from None
        except OSError:
            data = b""
        self._buffer = self._buffer + data if self._buffer else data
        return bool(data)


class Body:
    """The body of one request, as WSGI's input: read as far as somebody asks, within the limits."""

    __slots__ = ("_chunks", "_expects_continue", "_left", "_started", "_stream", "broken", "ended")

    def __init__(self, stream: Stream, head: Head) -> None:
        self._stream = stream
        self._chunks = Chunks(stream, head.parser) if head.length is None else None
        self._left = head.length or 0
        self._expects_continue = head.expects_continue
        self._started = False
        self.ended = head.length == 0
        self.broken = False

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, all that is left when negative; empty at the end."""
        parts = []
        wanted = MAX_BODY_BYTES + 1 if size is None or size < 0 else size
        while wanted > 0 and not self.ended:
            part = self._read_some(wanted)
            wanted -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readline(self, size: int = -1) -> bytes:
        """WSGI asks for the method; bodies of the API have no lines."""
        return self.read(size)

    def skip(self, limit_bytes: int, seconds: float) -> bool:
        """Take in what nobody read, so that the connection can go on; False when it cannot."""
        if self.ended:
            return True
        # A client that waits for "100 Continue" will not send the body after another answer.
        if self.broken or (self._expects_continue and not self._started) or self._left > limit_bytes:
            return False
        self._started = True
        self._stream.start_deadline(seconds)
        try:
            while not self.ended and limit_bytes > 0:
                limit_bytes -= len(self._read_some(limit_bytes))
        except (BadRequestError, RequestTimeoutError, TooLargeError):
            return False
        return self.ended

    def _read_some(self, size: int) -> bytes:
        self._start()
        try:
            if self._chunks is not None:
                data = self._chunks.read(size)
                self.ended = not data
            else:
                data = self._stream.read(min(size, self._left))
                self._left -= len(data)
                self.ended = self._left == 0
        except BaseException:
            self.broken = True
            raise
        return data

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        if self._expects_continue:
            self._stream.say_continue()
        self._stream.start_deadline(BODY_SECONDS)
