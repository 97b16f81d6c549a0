"""HTTP by hand: what a client library would never send, and answers exactly as they came."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any


@dataclass
class RawAnswer:
    """One answer: status, fields under lower-case names, the body's bytes."""

    status: int
    fields: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, which must be JSON and say so."""
        assert self.fields["content-type"] == "application/json", self
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of an error's body, which has nothing else."""
        body = self.json()
        assert list(body) == ["error"], body
        return str(body["error"])


class RawClient:
    """One connection. ``address`` is a Unix socket's path or a TCP port of this machine."""

    def __init__(self, address: str | int, timeout_s: float = 20.0) -> None:
        family = socket.AF_INET if isinstance(address, int) else socket.AF_UNIX
        self.socket = socket.socket(family)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(("127.0.0.1", address) if isinstance(address, int) else address)
        except BaseException:
            self.socket.close()
            raise
        self._buffer = b""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes | str) -> None:
        """Send bytes as they are; a string's line ends become CRLF."""
        self.socket.sendall(data.replace("\n", "\r\n").encode("latin-1") if isinstance(data, str) else data)

    def read(self, method: str = "GET") -> RawAnswer:
        """The next answer; ``method`` tells whether it has a body."""
        head = self._until(b"\r\n\r\n").decode("latin-1")
        first, *lines = head.split("\r\n")
        assert first.startswith("HTTP/1.1 "), first
        status = int(first.split()[1])
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if method == "HEAD" or status < 200 or status in (204, 304):
            return RawAnswer(status, fields, b"")
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self._until(b"\r\n"), 16):
                body += self._exactly(size)
                assert self._exactly(2) == b"\r\n"
            assert self._exactly(2) == b"\r\n"
        elif "content-length" in fields:
            body = self._exactly(int(fields["content-length"]))
        else:
            assert fields.get("connection") == "close", fields
            body = self.rest()
        return RawAnswer(status, fields, body)

    def ask(self, data: bytes | str) -> RawAnswer:
        """Send and read one answer."""
        self.send(data)
        return self.read()

    def rest(self) -> bytes:
        """Everything until the server closes."""
        data, self._buffer = self._buffer, b""
        while True:
            try:
                more = self.socket.recv(65536)
            except ConnectionResetError:
                return data
            if not more:
                return data
            data += more

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            self._receive()
        data, _, self._buffer = self._buffer.partition(end)
        return data

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._receive()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _receive(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise EOFError(f"the connection ended after {self._buffer!r}")
        self._buffer += data


def post(path: str, body: bytes | str, *fields: str) -> bytes:
    """A POST with a JSON body of known length and further fields."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"POST {path} HTTP/1.1", "Host: daemon", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, *fields, "", ""]).encode("latin-1") + data
