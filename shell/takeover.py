"""What a user may write and nobody meant it to: taken from it by root.

Runs as: root.
Distrusts: the path, which comes from a search that took its time: any part of it may be a link by now.
Promises: no link is followed; only what still belongs to the user, or is still open to a group of the user's, is
  changed, through the descriptor that was looked at.
Does not promise: anything about access control lists.
Checked by: tests/system/test_takeover.py, tests/attack/test_left_for_grading.py.
"""

from __future__ import annotations

import os
import stat

from shell.accounts import Account
from shell.directories import open_directory


def take_from(account: Account, path: str) -> bool:
    """Make what is at ``path`` root's, or take the group's right to write to it; whether that was needed.

    A directory of the account's is closed to everybody else, with all that is below it. OSError when the path leads
    through a link or nowhere.
    """
    folder, name = os.path.split(path)
    parent = open_directory(folder, os.O_PATH)
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        return _take(account, fd)
    finally:
        os.close(fd)


def _take(account: Account, fd: int) -> bool:
    found = os.fstat(fd)
    mode = stat.S_IMODE(found.st_mode)
    if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        return False
    # The way around O_PATH, which takes no fchown and no fchmod; what it leads to is no link.
    way = f"/proc/self/fd/{fd}"
    if found.st_uid == account.uid:
        os.chown(way, 0, 0)
        os.chmod(way, 0o700 if stat.S_ISDIR(found.st_mode) else mode & 0o755)
        return True
    if found.st_gid in (account.gid, *account.groups) and mode & stat.S_IWGRP:
        os.chmod(way, mode & ~stat.S_IWGRP)
        return True
    return False
