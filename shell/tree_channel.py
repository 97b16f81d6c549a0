"""Frames between the daemon and the program that reads the agent's tree; see shell.tree_reader.

Runs as: both ends use the formats; ``Channel`` is the program's end, with the agent's rights.
Distrusts: nothing; the other end is the daemon.
Promises: what is sent arrives in order; while the program works, the daemon hears of it at least every second.
Does not promise: anything once the socket is closed: the program ends then.
Checked by: tests/system/test_capture.py.

A frame is one letter, the payload's length, the payload. Standard library only: it is part of that program.
"""

from __future__ import annotations

import array
import errno
import socket
import stat
import struct
import sys
import time

FRAME = struct.Struct(">cI")
STAT = struct.Struct(">IQqq")
# What an R request says of one file before its name: the expected SHA-256 and size.
EXPECTED = struct.Struct(">32sq")
SMALL_BYTES = 1 << 20
BUFFER_BYTES = 1 << 18
_HEARTBEAT_S = 0.5


class GoneError(Exception):
    """There is no regular file or link at the path (any more)."""


# What the system says when a name is gone or means something else by now. Any other error ends the program: what is
# only out of reach for a moment, for want of memory or descriptors, must not count as deleted.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EINVAL, errno.ESTALE})


def check_gone(error: OSError) -> None:
    """Raise ``error`` unless it means that there is nothing at the path."""
    if error.errno not in _GONE:
        raise error


class UnreadableError(Exception):
    """The file is closed to the agent and not his own."""


class HeldError(Exception):
    """A lease on the file keeps it from being opened."""


class Channel:
    """Frames over the socket, buffered on the way out."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._flushed = time.monotonic()

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self._buffer.append(FRAME.pack(kind, len(payload)))
        self._buffer.append(payload)
        self._buffered += len(payload) + FRAME.size
        if self._buffered >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._buffer:
            self._socket.sendall(b"".join(self._buffer))
        self._buffer, self._buffered = [], 0
        self._flushed = time.monotonic()

    def heartbeat(self) -> None:
        if time.monotonic() - self._flushed > _HEARTBEAT_S:
            self.send(b".")
            self.flush()

    def receive(self) -> tuple[bytes, bytes, int | None]:
        """The next frame and a descriptor that came with it, or None."""
        head, ancillary, _flags, _address = self._socket.recvmsg(FRAME.size, socket.CMSG_SPACE(4))
        fd = None
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                fd = fds[0]
        while 0 < len(head) < FRAME.size:
            head += self._socket.recv(FRAME.size - len(head))
        if not head:
            sys.exit(0)
        kind, length = FRAME.unpack(head)
        payload = bytearray()
        while len(payload) < length:
            data = self._socket.recv(min(1 << 20, length - len(payload)))
            if not data:
                sys.exit(0)
            payload += data
        return kind, bytes(payload), fd

    def ask(self, operation: bytes, path: bytes) -> tuple[bytes, int | None]:
        """Have root look at what the agent closed to himself; (answer, descriptor)."""
        self.send(b"O", operation + path)
        self.flush()
        _kind, payload, fd = self.receive()
        if payload[:1] == b"g":
            raise GoneError
        if payload[:1] == b"h":
            raise HeldError
        if payload[:1] != b"y":
            raise UnreadableError
        return payload[1:], fd

    def ask_for_descriptor(self, operation: bytes, path: bytes) -> int:
        """Like ``ask``, for what is answered by a descriptor."""
        fd = self.ask(operation, path)[1]
        if fd is None:
            raise GoneError
        return fd


def kind_of(mode: int) -> bytes:
    """``f`` file, ``x`` executable file, ``l`` link, ``s`` anything that is never captured."""
    if stat.S_ISREG(mode):
        return b"x" if mode & stat.S_IXUSR else b"f"
    return b"l" if stat.S_ISLNK(mode) else b"s"
