"""Which Python a helper process of another user can run, and how it gets its program.

Helper programs are started as ``[shared_python(), "-I", "-S", "-B", f"/dev/fd/{fd}"]`` with ``fd`` from ``program_fd``.
"""

from __future__ import annotations

import functools
import os
import stat
import sys

from shell.errors import CommandError

_SYSTEM_PYTHON = "/usr/bin/python3"


@functools.cache
def shared_python() -> str:
    """The real path of a Python that every user may execute; CommandError when there is none.

    The daemon's own interpreter when it lies where others may go (it does in an image), else the system's: a
    developer's Python often lives in a home directory that is closed to others.
    """
    for candidate in (getattr(sys, "_base_executable", sys.executable), _SYSTEM_PYTHON):
        path = os.path.realpath(candidate)
        if _all_may_execute(path):
            return path
    raise CommandError(
        f"no Python that other users may run: {sys.executable} is closed to them and {_SYSTEM_PYTHON} is missing; "
        "install the system's python3"
    )


def program_fd(path: str) -> int:
    """A descriptor that holds the program at ``path``; the caller passes it to the child and closes it.

    The checkout may lie in a directory that other users cannot enter, so they get the text and not its path.
    """
    with open(path, "rb") as file:
        text = file.read()
    fd = os.memfd_create("helper", os.MFD_CLOEXEC)
    try:
        os.write(fd, text)
    except OSError:
        os.close(fd)
        raise
    return fd


def _all_may_execute(path: str) -> bool:
    """Whether the file and every directory above it grant execution to others."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        while True:
            if not os.stat(path).st_mode & stat.S_IXOTH:
                return False
            if path == "/":
                return True
            path = os.path.dirname(path)
    except OSError:
        return False
