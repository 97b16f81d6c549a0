"""What a user closed to himself, opened by root all the same.

Runs as: root.
Distrusts: the path: any part of it may be a link, or become one.
Promises: no link is followed, on no part of the way; only what belongs to the user is opened or told about, and only
  regular files and directories are opened, without waiting; nothing is changed, no mode either.
Does not promise: that a name still means what was opened.
Checked by: tests/system/test_capture_cases.py (nested.yaml), tests/system/test_capture.py.
"""

from __future__ import annotations

import os
import stat

from shell.tree_channel import STAT

_PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def look_for(operation: bytes, path: bytes, uid: int) -> tuple[bytes, int | None]:
    """The answer to one cry for help and the descriptor that goes with it; OSError when it is refused."""
    fd = _open_owned(path, uid)
    try:
        found = os.fstat(fd)
        if operation == b"s":
            return b"y" + STAT.pack(found.st_mode, found.st_ino, found.st_ctime_ns, found.st_size), None
        if operation == b"l" and stat.S_ISLNK(found.st_mode):
            return b"y" + os.readlink(b"", dir_fd=fd), None
        flags = {b"f": os.O_NONBLOCK, b"d": os.O_DIRECTORY}.get(operation, 0)
        wanted = {b"f": stat.S_ISREG, b"d": stat.S_ISDIR}.get(operation)
        if wanted is None or not wanted(found.st_mode):
            raise FileNotFoundError
        # Opened through the descriptor that was looked at: the name may mean something else by now.
        return b"y", os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | flags | os.O_CLOEXEC | os.O_NOCTTY)
    finally:
        os.close(fd)


def _open_owned(path: bytes, uid: int) -> int:
    """An O_PATH descriptor of what belongs to ``uid`` at ``path``, reached component by component, no link followed.

    A directory on the way that others may not enter must be the user's too: else root would lead him past it.
    """
    fd = os.open("/", _PATH_FLAGS | os.O_DIRECTORY)
    for name in filter(None, path.split(b"/")):
        found = os.fstat(fd)
        if found.st_uid != uid and not found.st_mode & stat.S_IXOTH:
            os.close(fd)
            raise PermissionError
        try:
            inner = os.open(name, _PATH_FLAGS, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    if os.fstat(fd).st_uid != uid:
        os.close(fd)
        raise PermissionError
    return fd
