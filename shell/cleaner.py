"""A program of its own: removes what a user left, in one directory or in places that all users share.

    cleaner.py empty FD                         everything in the directory behind the descriptor
    cleaner.py purge UID PLACE... -- KEEP...    everything of UID in the places, but for the paths to keep; run as
                                                that user also its System V IPC
    cleaner.py mqueues UID                      POSIX message queues of UID, where they are not mounted anywhere

Runs as: the user whose things are removed; root only for what that user's own rights do not reach, when the user has no
  process left. Standard library only, nothing of the project on its path.
Distrusts: every name and every directory it meets.
Promises: follows no link; every step is relative to a descriptor; a few descriptors, no recursion and little memory,
  however deep a tree and however long a directory is; an exit code other than 0 when something is left.
Does not promise: anything while processes of the user still run.
Checked by: tests/system/test_cleaning.py.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterator

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DEPTH = 64
_LEFT = 3
_IPC_RMID = 0
# The same on every machine (but alpha), since Linux 5.2.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_FSCONFIG_CREATE, _CLOEXEC = 6, 1


def main(arguments: list[str]) -> int:
    task, *rest = arguments
    if task == "empty":
        return 0 if empty(int(rest[0])) else _LEFT
    if task == "purge":
        if os.geteuid() == int(rest[0]):
            remove_ipc(int(rest[0]))
        end = rest.index("--")
        left = [place for place in rest[1:end] if not purge(place, int(rest[0]), rest[end + 1 :])]
        return _LEFT if left else 0
    if task == "mqueues":
        remove_message_queues(int(rest[0]))
        return 0
    raise ValueError(f"unknown task: {task}")


def empty(top: int) -> bool:
    """Remove everything in the directory ``top``; whether that worked.

    Deep trees are taken apart from the top: a directory in a directory is moved up before its parent is removed, so
    depth needs neither recursion nor descriptors nor long paths.
    """
    serial = 0
    left = True
    while left:
        left = removed = False
        for name in names_in(top):
            left = True
            if unlink(top, name):
                removed = True
                continue
            moved = flatten(top, name, serial)
            serial += moved
            removed |= moved > 0 or rmdir(top, name)
        if left and not removed:
            return False
    return True


def names_in(folder: int) -> Iterator[str]:
    """The names in the directory ``folder``, never all of them in memory: there may be millions, and they may go."""
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name


def flatten(top: int, name: str, serial: int) -> int:
    """Empty the directory ``name`` of ``top``: files go, directories move up. How many moved; the rest may stay."""
    moved = 0
    try:
        folder = open_own(top, name)
    except OSError:
        return 0
    try:
        for child in names_in(folder):
            if unlink(folder, child) or rmdir(folder, child):
                continue
            grant(folder, child)
            try:
                os.rename(child, f".removed-{os.getpid()}-{serial + moved}", src_dir_fd=folder, dst_dir_fd=top)
                moved += 1
            except OSError:
                continue
    finally:
        os.close(folder)
    rmdir(top, name)
    return moved


def open_own(parent: int, name: str) -> int:
    """Open a directory that may have been closed by its own owner."""
    try:
        return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
    except PermissionError:
        grant(parent, name)
        return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)


def grant(parent: int, name: str) -> None:
    """Give the owner of a directory all rights to it. Through a descriptor: the name may change meanwhile."""
    try:
        fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    except OSError:
        pass
    finally:
        os.close(fd)


def unlink(parent: int, name: str) -> bool:
    """Remove a name that is no directory; whether it is gone."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def rmdir(parent: int, name: str) -> bool:
    """Remove an empty directory; whether it is gone."""
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def purge(place: str, uid: int, keep: list[str]) -> bool:
    """Remove what ``uid`` owns in the shared directory ``place`` and in shared directories below it."""
    try:
        top = os.open(place, _OPEN_DIRECTORY)
    except OSError:
        # Missing, or not for this user to list; root's pass sees the second case.
        return not os.path.lexists(place)
    try:
        return purge_directory(top, place.rstrip("/"), uid, keep, 0)
    finally:
        os.close(top)


def purge_directory(folder: int, path: str, uid: int, keep: list[str], depth: int) -> bool:
    """The same for the opened directory ``folder``, whose path is only compared with those to keep."""
    done = True
    for name in names_in(folder):
        below = f"{path}/{name}"
        if below in keep:
            continue
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue
        is_directory = stat.S_ISDIR(found.st_mode)
        holds_kept = any(kept.startswith(below + "/") for kept in keep)
        if found.st_uid == uid and not holds_kept:
            done &= remove_tree(folder, name) if is_directory else unlink(folder, name)
        elif is_directory and depth < _MAX_DEPTH and (holds_kept or found.st_mode & stat.S_IWOTH):
            done &= purge_below(folder, name, below, uid, keep, depth + 1)
    return done


def purge_below(parent: int, name: str, path: str, uid: int, keep: list[str], depth: int) -> bool:
    """The same for the directory ``name`` in ``parent``."""
    try:
        folder = os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
    except OSError:
        return False
    try:
        return purge_directory(folder, path, uid, keep, depth)
    finally:
        os.close(folder)


def remove_tree(parent: int, name: str) -> bool:
    """Remove a directory with all that is in it; whether it is gone."""
    if rmdir(parent, name):
        return True
    try:
        folder = open_own(parent, name)
    except OSError:
        return False
    try:
        empty(folder)
    finally:
        os.close(folder)
    return rmdir(parent, name)


def remove_ipc(uid: int) -> None:
    """Remove the System V shared memory, semaphores and message queues that ``uid`` owns or made."""
    libc = ctypes.CDLL(None)
    for number in ipc_ids("shm", "shmid", uid):
        libc.shmctl(number, _IPC_RMID, None)
    for number in ipc_ids("sem", "semid", uid):
        libc.semctl(number, 0, _IPC_RMID)
    for number in ipc_ids("msg", "msqid", uid):
        libc.msgctl(number, _IPC_RMID, None)


def ipc_ids(kind: str, column: str, uid: int) -> Iterator[int]:
    """The ids of one kind of System V object that ``uid`` owns or made."""
    try:
        with open(f"/proc/sysvipc/{kind}", encoding="ascii") as table:
            header = table.readline().split()
            for line in table:
                row = dict(zip(header, map(int, line.split()), strict=False))
                if uid in (row["uid"], row["cuid"]):
                    yield row[column]
    except OSError:
        return


def remove_message_queues(uid: int) -> None:
    """Remove POSIX message queues of ``uid``, through a mount of their file system that is attached nowhere."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: object) -> int:
        result: int = libc.syscall(number, *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    try:
        context = call(_FSOPEN, b"mqueue", _CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENODEV:  # a kernel without message queues
            return
        raise
    call(_FSCONFIG, context, _FSCONFIG_CREATE, None, None, 0)
    queues = os.open(".", _OPEN_DIRECTORY, dir_fd=call(_FSMOUNT, context, _CLOEXEC, 0))
    for name in names_in(queues):
        if os.stat(name, dir_fd=queues, follow_symlinks=False).st_uid == uid:
            os.unlink(name, dir_fd=queues)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
