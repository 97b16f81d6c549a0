"""The directory that a persistent shell's FIFOs lie in, and the removal of those that dead daemons left.

Runs as: the daemon.
Distrusts: every name it finds beside its own: the place may be open to others (a daemon that is not root's uses /tmp).
Promises: only its own user's directories are removed, and never one whose daemon lives: each daemon holds a lock on
  its directory, which ends with its process, however that ends. No link is followed.
Does not promise: that nothing of a dead daemon's is left before another one has run its first command.
Checked by: tests/system/test_bash_directory.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile

from shell.accounts import is_isolated

_PREFIX = "bash-io-"


class SessionDirectory:
    """A fresh directory that others may pass through, to names they know, and not list or change."""

    def __init__(self) -> None:
        parent = _parent()
        _remove_leftovers(parent)
        self.path, self._lock = _make(parent)
        os.chmod(self.path, 0o711)  # noqa: S103

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _parent() -> str:
    """Where the directory goes: /run where there is one, as it needs no disk."""
    return "/run" if is_isolated() and os.path.isdir("/run") else tempfile.gettempdir()


def _make(parent: str) -> tuple[str, int]:
    """A new directory and a descriptor that holds its lock."""
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        lock = _locked(path)
        # Without the lock another daemon, just cleaning up, has taken it for a leftover.
        if lock is not None:
            return path, lock


def _locked(path: str) -> int | None:
    """A descriptor that holds the lock of the directory at ``path``; None when another has it or the path is none."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as undo:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        undo.callback(os.close, fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.lstat(path)):
            undo.pop_all()
            return fd
    return None


def _remove_leftovers(parent: str) -> None:
    with os.scandir(parent) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(_PREFIX) and _is_ours(entry)]
    for path in paths:
        lock = _locked(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    return False
