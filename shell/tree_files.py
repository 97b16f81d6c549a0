"""Contents of the agent's files; part of the program shell.tree_reader.

Runs as: the agent's user under a private group.
Distrusts: that a file is what it was when it was listed: it may be a named pipe, shrink, grow, or be leased by now.
Promises: never waits for a writer or for long for the holder of a lease; never follows a link, except for files of the
  repository; announces a size only when exactly so many bytes follow.
Does not promise: that all bytes were in the file at the same moment.
Checked by: tests/system/test_capture.py, tests/system/test_capture_cases.py.

Standard library only: it is part of a program of another user.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import time

from shell.tree_channel import (
    BUFFER_BYTES,
    SMALL_BYTES,
    Channel,
    GoneError,
    HeldError,
    UnreadableError,
    check_gone,
    kind_of,
)
from shell.tree_scanner import TreeScanner

LARGEST_BYTES = 1 << 30
LEASE_S = 10.0
SHRINK_ATTEMPTS = 5


class FileReader:
    """Answers what is asked about single files of the tree that ``scanner`` looks at."""

    def __init__(self, channel: Channel, scanner: TreeScanner, root: bytes) -> None:
        self._channel = channel
        self._scanner = scanner
        self._root = root

    def read(self, path: bytes, digest: bytes, size: int) -> None:
        """Answer one line of an ``R`` request."""
        try:
            mode = self._scanner.look(path)[0]
            if stat.S_ISLNK(mode):
                self._send_small(b"l", self._read_link(path), digest)
            elif stat.S_ISREG(mode):
                self._read_file(path, digest, size)
            else:
                raise GoneError
        except GoneError:
            self._scanner.distrust(path)
            self._channel.send(b"G")
        except UnreadableError:
            self._channel.send(b"U")
        except HeldError:
            self._channel.send(b"L")
        self._channel.heartbeat()

    def _read_link(self, path: bytes) -> bytes:
        try:
            target: bytes = self._scanner.os.readlink(path)
        except PermissionError:
            target = self._channel.ask(b"l", path)[0]
        except OSError as error:
            check_gone(error)
            raise GoneError from None
        return target

    def _read_file(self, path: bytes, digest: bytes, size: int) -> None:
        fd = self._open(path)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise GoneError
            kind = kind_of(found.st_mode)
            if found.st_size <= SMALL_BYTES:
                self._send_small(kind, self._read_at_most(fd, found.st_size), digest)
            elif found.st_size == size and self._hash(fd, size) == digest:
                self._channel.send(b"=", kind)
            elif found.st_size > LARGEST_BYTES:
                self._channel.send(b"B")
            else:
                self._send_large(fd, kind)
        finally:
            os.close(fd)

    def _open(self, path: bytes) -> int:
        # Without waiting: for a FIFO that took the file's place, or for a holder of a lease, who may hold it for long.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        until = time.monotonic() + LEASE_S
        while True:
            try:
                fd: int = self._scanner.os.open(path, flags)
                return fd
            except BlockingIOError:
                if time.monotonic() > until:
                    raise HeldError from None
                time.sleep(0.01)
                self._channel.heartbeat()
            except PermissionError:
                return self._channel.ask_for_descriptor(b"f", path)
            except OSError as error:
                check_gone(error)
                raise GoneError from None

    def _read_at_most(self, fd: int, size: int) -> bytes:
        parts = []
        while size > 0 and (data := os.read(fd, size)):
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def _hash(self, fd: int, size: int) -> bytes:
        digest = hashlib.sha256()
        while size > 0 and (data := os.read(fd, min(size, 1 << 20))):
            digest.update(data)
            size -= len(data)
            self._channel.heartbeat()
        return digest.digest()

    def _send_small(self, kind: bytes, data: bytes, digest: bytes) -> None:
        if hashlib.sha256(data).digest() == digest:
            self._channel.send(b"=", kind)
        else:
            self._channel.send(b"c", kind + data)

    def _send_large(self, fd: int, kind: bytes) -> None:
        """Send exactly as many bytes as are announced; a file that shrinks meanwhile is begun anew."""
        for _ in range(SHRINK_ATTEMPTS):
            os.lseek(fd, 0, os.SEEK_SET)
            left = os.fstat(fd).st_size
            if left > LARGEST_BYTES:
                break
            self._channel.send(b"C", kind + struct.pack(">Q", left))
            while left > 0 and (data := os.read(fd, min(left, BUFFER_BYTES))):
                self._channel.send(b"D", data)
                left -= len(data)
            if left == 0:
                self._channel.send(b"F")
                return
            self._channel.send(b"A")
        raise GoneError

    def repository_file(self, path: bytes, limit: int) -> bytes:
        """A small file of the repository, by the agent's rights, links followed; GoneError when there is none."""
        try:
            fd = os.open(os.path.join(self._root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            raise GoneError from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise GoneError
            return self._read_at_most(fd, limit)
        finally:
            os.close(fd)
