"""The runner's sessions and workspaces: fresh directories that only the runner and root can enter.

Runs as: root in directories that root alone can write; everything below a workspace or a home is made and removed with
  the runner's rights.
Distrusts: everything that a script left in a workspace or a home.
Promises: names cannot be guessed; nobody but root and the runner can enter; what is discarded is out of everybody's
  reach at once, in one rename, before its removal begins; a new session has a new home, new caches and no workspace.
Does not promise: any limit on what a script writes.
Checked by: tests/system/test_workspace.py.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from shell.accounts import Account, is_isolated
from shell.cleaning import empty_directory
from shell.errors import SSEBenchError

log = logging.getLogger(__name__)

_TRASH = "trash"
# What a build or a test may leave for the next one, inside the session's home.
_HOME_FOLDERS = {
    "TMPDIR": "tmp",
    "XDG_CACHE_HOME": "cache",
    "GOCACHE": "cache/go-build",
    "CCACHE_DIR": "cache/ccache",
}
# The daemon's own, or true of the daemon's process only.
_NOT_INHERITED = frozenset({"TIMEOUT", "AGENT_DURATION", "PWD", "OLDPWD", "SHLVL", "_", "HOME", "USER", "LOGNAME"})


class WorkspaceError(SSEBenchError):
    """The runner's directory is not usable, or a workspace could not be made."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A directory of the runner's, 0700, and in it ``tree``, where the copy of the project goes."""

    path: str
    tree: str


class RunnerDirectory:
    """``SSE_RUNNER_DIR``: root's, to be traversed by the runner's group; holds the sessions and the trash."""

    def __init__(self, path: str, runner: Account) -> None:
        self.path = os.path.abspath(path)
        self.runner = runner

    def prepare(self) -> None:
        """Make the directory, or check it; WorkspaceError when it is a link or not the daemon's own."""
        try:
            os.makedirs(self.path, mode=0o710, exist_ok=True)
            found = os.lstat(self.path)
        except OSError as error:
            raise WorkspaceError(f"runner directory {self.path} is not usable: {error.strerror}") from error
        if not stat.S_ISDIR(found.st_mode):
            raise WorkspaceError(f"runner directory {self.path} is not a directory; set SSE_RUNNER_DIR elsewhere")
        if found.st_uid != os.geteuid():
            raise WorkspaceError(f"runner directory {self.path} must belong to the daemon's user; remove it")
        give(self.path, 0o710, self.runner)
        trash = os.path.join(self.path, _TRASH)
        os.makedirs(trash, mode=0o700, exist_ok=True)
        os.chmod(trash, 0o700)

    def clear(self) -> None:
        """Discard everything in it: sessions of an earlier start, trash that was not emptied."""
        for name in os.listdir(self.path):
            if name != _TRASH:
                self.discard(os.path.join(self.path, name))
        trash = os.path.join(self.path, _TRASH)
        for name in os.listdir(trash):
            self._empty(os.path.join(trash, name))

    def discard(self, path: str) -> None:
        """Take ``path``, an entry of one of root's directories, out of reach and remove it."""
        target = os.path.join(self.path, _TRASH, secrets.token_hex(16))
        try:
            os.rename(path, target)
        except FileNotFoundError:
            return
        self._empty(target)

    def _empty(self, path: str) -> bool:
        """Remove a tree in the trash, where only this process can go; whether it is gone."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            os.unlink(path)
            return True
        try:
            if is_isolated() and os.fstat(fd).st_uid == 0:
                # A directory of root's own: a session or a stage. What the runner made is one level down, if anywhere.
                gone = not [name for name in os.listdir(fd) if not self._empty(os.path.join(path, name))]
            else:
                gone = empty_directory(fd, self.runner)
        finally:
            os.close(fd)
        if gone:
            os.rmdir(path)
        else:
            log.warning("could not remove a workspace completely: %s", path)
        return gone


class RunnerSession:
    """One session of the runner: its home with the caches, and the workspaces of its checks."""

    def __init__(self, directory: RunnerDirectory, project: str) -> None:
        self._directory = directory
        self._project = project
        self.path = os.path.join(directory.path, secrets.token_hex(16))
        os.mkdir(self.path, 0o700)
        give(self.path, 0o710, directory.runner)
        self.home = self._runner_folders("home", *(f"home/{folder}" for folder in _HOME_FOLDERS.values()))

    def environment(self, image: Mapping[str, str]) -> dict[str, str]:
        """The environment of a script: the image's, without settings of ours, and the session's own places."""
        env = {
            name: value for name, value in image.items() if not name.startswith("SSE_") and name not in _NOT_INHERITED
        }
        runner = self._directory.runner
        env |= {"HOME": self.home, "USER": runner.name, "LOGNAME": runner.name, "SHELL": "/bin/sh"}
        env |= {name: os.path.join(self.home, folder) for name, folder in _HOME_FOLDERS.items()}
        return env

    def new_workspace(self) -> Workspace:
        """A fresh workspace with an empty ``tree``."""
        name = secrets.token_hex(16)
        path = self._runner_folders(name, f"{name}/{self._project}")
        return Workspace(path, os.path.join(path, self._project))

    def new_stage(self) -> str:
        """A fresh directory of root's that the runner may read: for hidden material, while a check needs it."""
        path = os.path.join(self.path, secrets.token_hex(16))
        os.mkdir(path, 0o700)
        give(path, 0o750, self._directory.runner)
        return path

    def discard(self, path: str) -> None:
        """Remove a workspace or a stage of this session."""
        self._directory.discard(path)

    def close(self) -> None:
        """Discard the whole session; the runner must have no process left."""
        self._directory.discard(self.path)

    def _runner_folders(self, *names: str) -> str:
        """Make directories of the runner's, outer ones first; returns the path of the first."""
        paths = [os.path.join(self.path, name) for name in names]
        for path in paths:
            os.mkdir(path, 0o700)
        # From the inside out: while root still makes directories, the runner cannot change anything there.
        if is_isolated():
            for path in reversed(paths):
                os.chown(path, self._directory.runner.uid, self._directory.runner.gid, follow_symlinks=False)
        return paths[0]


def give(path: str, mode: int, runner: Account) -> None:
    """Give a path in a directory of root's the group of the runner and a mode."""
    if is_isolated():
        os.chown(path, 0, runner.gid, follow_symlinks=False)
    os.chmod(path, mode)


def stage_file(source: str, target: str, runner: Account) -> None:
    """Copy one file of the task for the runner to read, and to execute if it is executable."""
    shutil.copyfile(source, target, follow_symlinks=False)
    give(target, 0o750 if os.stat(source).st_mode & 0o111 else 0o640, runner)
