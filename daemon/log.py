"""Lines to standard error that never block the hub, however slowly somebody reads them.

Promises: one call writes whole lines or nothing; control characters in what clients sent cannot make a line of their
  own; when the reader is too slow, lines are dropped and their number is logged later.
Checked by: tests/unit/daemon/test_log.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time

from gevent import monkey

# gevent's poll switches to the hub; this one asks the kernel and returns at once.
_poll = monkey.get_original("select", "poll")

# A pipe that polls writable takes this many bytes at once (PIPE_BUF): longer lines are cut into such parts.
_ATOMIC_BYTES = 4096
_ESCAPES = {code: f"\\x{code:02x}" for code in [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]} | {ord("\\"): "\\\\"}


class LineLog:
    """Writes lines to one descriptor."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._poll = _poll()
        self._poll.register(fd, select.POLLOUT)
        self._dropped = 0

    def line(self, text: str) -> None:
        """Write ``text`` as one line behind the time of day."""
        now = time.time()
        stamp = time.strftime("%H:%M:%S", time.localtime(now))
        self.raw(f"{stamp}.{int(now * 1000) % 1000:03d} {text}\n")

    def raw(self, text: str) -> None:
        """Write ``text`` as it is; it ends with a newline."""
        if self._dropped:
            note = f"log: {self._dropped} lines were dropped because nobody read them in time\n"
            if not self._write(note.encode()):
                self._dropped += 1
                return
            self._dropped = 0
        if not self._write(text.encode("utf-8", "backslashreplace")):
            self._dropped += 1

    def _write(self, data: bytes) -> bool:
        with contextlib.suppress(OSError):
            while data:
                if not self._poll.poll(0):
                    return False
                data = data[os.write(self._fd, data[:_ATOMIC_BYTES]) :]
        return True


class LogHandler(logging.Handler):
    """Takes the records of every module's logger to a LineLog."""

    def __init__(self, log: LineLog) -> None:
        super().__init__()
        self._log = log
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a record that cannot be formatted is no reason to fail a request."""
        try:
            self._log.line(self.format(record))
        except Exception:
            self.handleError(record)


def printable(text: str, limit: int = 512) -> str:
    """``text`` for a log line: control characters escaped, at most ``limit`` characters of it."""
    escaped = text[:limit].translate(_ESCAPES)
    return escaped if len(text) <= limit else escaped + "..."
