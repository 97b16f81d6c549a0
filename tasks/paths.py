"""Opening what a task names, without being led out of its folder.

Runs as: whoever reads a task, the daemon as root among them.
Distrusts: links, FIFOs and devices that a task folder may contain.
Promises: only regular files whose real place is inside the folder are opened, and an open never waits.
Does not promise: anything while somebody else changes the folder; task folders are their owner's alone.
Checked by: tests/unit/tasks/test_paths.py.
"""

from __future__ import annotations

import os
import stat

MAX_TEXT_BYTES = 16 * 1024 * 1024


class PathError(ValueError):
    """Why a path is not usable; the message completes "PATH ..."."""


def find_regular(folder: str, relative: str) -> str:
    """The real path of the regular file ``relative`` inside ``folder``; PathError otherwise."""
    root = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(root, relative))
    if not path.startswith(root.rstrip("/") + "/"):
        raise PathError("leaves the task folder")
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise PathError("does not exist") from None
    except OSError as error:
        raise PathError(f"cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise PathError("is not a regular file")
    return path


def read_regular(folder: str, relative: str, *, limit_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """The bytes of a regular file inside ``folder``; PathError when it is none or larger than the limit."""
    path = find_regular(folder, relative)
    try:
        # O_NONBLOCK: should a FIFO have taken the file's place, the open still returns.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise PathError(f"cannot be read: {error.strerror}") from None
    if len(data) > limit_bytes:
        raise PathError(f"is larger than {limit_bytes} bytes")
    return data
