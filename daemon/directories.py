"""Directories that only root can change: looked at, made, never taken over.

Runs as: root. Distrusts: every directory on the way that somebody else could change.
Promises: a path that passes cannot be pointed elsewhere by another user afterwards; nothing is changed through a link.
Checked by: tests/system/test_start.py, tests/system/test_listeners.py.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import stat
from collections.abc import Mapping

from daemon.errors import StartError
from shell.accounts import Account


def check_ancestors(path: str, variable: str) -> None:
    """StartError unless every directory above ``path`` that exists is safe from other users."""
    while (path := os.path.dirname(path)) != "/":
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StartError(f"{variable}: {path}: {error.strerror}") from error
        if found.st_uid not in (0, os.geteuid()):
            raise StartError(f"{variable}: {path} belongs to uid {found.st_uid}, who could exchange what is in it")
        if stat.S_ISLNK(found.st_mode):
            check_ancestors(os.path.realpath(path) + "/.", variable)
        elif not stat.S_ISDIR(found.st_mode):
            raise StartError(f"{variable}: {path} is not a directory")
        elif found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            raise StartError(f"{variable}: {path} is writable by others; run: chmod go-w {path}")


def private_directory(path: str, variable: str, *, mode: int = 0o700) -> None:
    """Make ``path`` with ``mode``, or check that it is a directory of ours with no more rights than that."""
    check_ancestors(path, variable)
    try:
        _make(path, mode)
        found = os.lstat(path)
    except OSError as error:
        raise StartError(f"{variable}: {path} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise StartError(f"{variable}: {path} is not a directory")
    if found.st_uid != os.geteuid():
        raise StartError(f"{variable}: {path} belongs to uid {found.st_uid}; run: chown root: {path}")
    if found.st_mode & 0o7777 & ~mode:
        raise StartError(f"{variable}: {path} is open to others; run: chmod {mode:o} {path}")


def results_directory(path: str) -> int:
    """Make or close SSE_RESULTS, prove that files can be made in it, and lock it for this process's life.

    Returns the descriptor that holds the lock: two daemons on one run would end each other's processes.
    """
    check_ancestors(path, "SSE_RESULTS")
    try:
        _make(path, 0o700)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise StartError(f"SSE_RESULTS: {path} is not usable: {error.strerror}") from error
    try:
        _close_to_others(fd, path)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _prove_writable(fd)
    except BlockingIOError as error:
        os.close(fd)
        raise StartError(f"SSE_RESULTS: {path} is in use by a running daemon; stop it or choose another") from error
    except OSError as error:
        os.close(fd)
        raise StartError(f"SSE_RESULTS: {path} is not writable: {error.strerror}") from error
    return fd


def check_apart(places: Mapping[str, str]) -> None:
    """StartError when one of the named places is another or lies in it: what is done to one would be done to both."""
    real = {name: os.path.realpath(path) for name, path in places.items()}
    for (first, one), (second, other) in itertools.combinations(real.items(), 2):
        if os.path.commonpath((one, other)) in (one, other):
            raise StartError(f"{first} ({one}) and {second} ({other}) have to be apart: one is the other or lies in it")


def close_clone(path: str) -> None:
    """Close SSE_REPO_PATH to everybody but root, who then alone can change what is graded; it need not be there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartError(f"SSE_REPO_PATH: {path} is not a directory: {error.strerror}") from error
    try:
        if os.geteuid() == 0:
            os.fchown(fd, 0, 0)
            os.fchmod(fd, 0o700)
    finally:
        os.close(fd)


def archive_directory(path: str, agent: Account) -> None:
    """Make SSE_ARCHIVE for the agent where that is safe; one that exists is the agent's business."""
    try:
        check_ancestors(path, "SSE_ARCHIVE")
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        os.mkdir(path, 0o700)
    except (StartError, OSError):
        return
    # Nobody else can exchange the new directory: it is root's, in a directory that is root's or sticky.
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.geteuid() == 0:
            os.fchown(fd, agent.uid, agent.gid)
        os.fchmod(fd, 0o755)
    finally:
        os.close(fd)


def _make(path: str, mode: int) -> None:
    if not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        os.mkdir(path, mode)


def _close_to_others(fd: int, path: str) -> None:
    found = os.fstat(fd)
    if found.st_uid != os.geteuid():
        raise StartError(f"SSE_RESULTS: {path} belongs to uid {found.st_uid}; run: chown root: {path}")
    if found.st_mode & 0o077:
        os.fchmod(fd, 0o700)


def _prove_writable(fd: int) -> None:
    name = f".writable-{os.getpid()}"
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=fd))
    os.unlink(name, dir_fd=fd)
