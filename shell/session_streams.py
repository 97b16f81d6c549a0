"""What lies between the persistent shell and the daemon beside the terminal: two FIFOs and a file.

Runs as: the daemon.
Distrusts: whoever writes: amount, speed and content are the agent's.
Promises: the FIFOs lie in a directory that only root changes, so no link can be put in their place; reading never
  blocks the hub; what is kept is bounded while it is read.
Does not promise: that what arrives was printed by the command; the agent may write to its own FIFO.
Checked by: tests/conformance (output), tests/system/test_bash_session.py.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import termios
from collections.abc import Callable

import gevent

from shell.accounts import Account, is_isolated
from shell.opens import OpenWatch
from shell.output import BoundedOutput
from shell.session_directory import SessionDirectory
from shell.session_protocol import Paths

_READ_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20


class Reader:
    """Hands what arrives at a descriptor to ``take``, for as long as it is open. Owns the descriptor."""

    def __init__(self, fd: int, take: Callable[[bytes], None]) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._take = take
        self._watcher = gevent.get_hub().loop.io(fd, 1)
        self._watcher.start(self._readable)

    def read_what_is_there(self) -> None:
        """Take what has already been written. Bounded by the size now, so that a fast writer cannot hold us here."""
        left = pending_bytes(self._fd)
        while left > 0:
            left -= self._read(left) or left

    def close(self) -> None:
        """Stop reading and close the descriptor."""
        if self._fd >= 0:
            self._watcher.stop()
            self._watcher.close()
            os.close(self._fd)
            self._fd = -1

    def _readable(self) -> None:
        if self._fd >= 0 and self._read(_READ_BYTES) == 0:
            # The other side is gone for good (a hung up terminal): a ready descriptor would wake the hub for ever.
            self._watcher.stop()

    def _read(self, most: int) -> int | None:
        """Read once; the number of bytes, 0 at the end, None when nothing is there."""
        try:
            data = os.read(self._fd, most)
        except BlockingIOError:
            return None
        except OSError:
            return 0
        if data:
            self._take(data)
        return len(data)


def pending_bytes(fd: int) -> int:
    """How many bytes lie in a pipe, asked at either end."""
    size = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, size)
    return size[0]


class OutputFifo:
    """One FIFO that the agent's commands write to, and what has arrived since the last answer."""

    def __init__(self, path: str, account: Account, limit_bytes: int) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        self._kept = BoundedOutput(limit_bytes)
        os.mkfifo(path, 0o600)
        if is_isolated():
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
        # Opened for both, so that it is never at its end while no command runs.
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._fd = fd
        self._reader = Reader(fd, self._add)

    def open_up(self) -> None:
        """Let the agent write to it again: ``cp -p`` of a read-only file to /dev/stdout gives it that file's mode."""
        os.fchmod(self._fd, 0o600)

    def take(self) -> BoundedOutput:
        """Everything that has been written and not been taken before."""
        self._reader.read_what_is_there()
        kept, self._kept = self._kept, BoundedOutput(self._limit_bytes)
        return kept

    def close(self) -> None:
        """Stop reading; writers get SIGPIPE."""
        self._reader.close()

    def _add(self, data: bytes) -> None:
        self._kept.add(data)


class Exchange:
    """A directory that only root changes, with the two FIFOs and the file for a command's text."""

    def __init__(self, account: Account, limit_bytes: int) -> None:
        self._account = account
        self._directory = SessionDirectory()
        self.paths = Paths(*(os.path.join(self._directory.path, name) for name in ("out", "err", "command")))
        self.stdout = OutputFifo(self.paths.stdout, account, limit_bytes)
        self.stderr = OutputFifo(self.paths.stderr, account, limit_bytes)
        self._opens = OpenWatch(self.paths.stderr)

    def prepare(self) -> None:
        """Make the streams ready for the next text."""
        self.stdout.open_up()
        self.stderr.open_up()
        self._opens.forget()

    def was_opened(self) -> bool:
        """Whether the streams were opened since ``prepare``: bash does that last before it begins with the text."""
        return self._opens.was_opened()

    def write_text(self, text: bytes) -> bool:
        """Put a command's text into the file, for the agent's eyes only; False when the disk has no room for it."""
        try:
            with open(self.paths.text, "wb", opener=lambda path, flags: os.open(path, flags, 0o640)) as file:
                if is_isolated():
                    os.fchown(file.fileno(), 0, self._account.gid)
                file.write(text)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Stop reading and remove the directory."""
        self._opens.close()
        self.stdout.close()
        self.stderr.close()
        self._directory.remove()
