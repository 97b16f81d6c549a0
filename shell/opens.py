"""Whether somebody has opened a file: the kernel's word (inotify), which nobody who opens it can hold back.

Runs as: the daemon. Distrusts: whoever opens the file.
Promises: an open is never missed. Does not promise: to say whose it was.
Checked by: tests/system/test_opens.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

_IN_OPEN = 0x20
_READ_BYTES = 4096
_libc = ctypes.CDLL(None, use_errno=True)


class OpenWatch:
    """Watches one path. Where the kernel has no watch left, every file counts as opened."""

    def __init__(self, path: str) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0 and _libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_OPEN) < 0:
            self.close()

    def forget(self) -> None:
        """What was opened up to now does not count any more."""
        if self._fd >= 0:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._fd, _READ_BYTES):
                    pass

    def was_opened(self) -> bool:
        """Whether the file was opened since the last ``forget`` or ``was_opened``."""
        if self._fd < 0:
            return True
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self._fd, _READ_BYTES))
        return False

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
