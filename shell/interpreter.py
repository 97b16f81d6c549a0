"""Which Python a helper process of another user can run."""

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
