"""The run's root-only state directory: what must survive a crash of the daemon.

Runs as: root.
Distrusts: nothing inside; the directory is 0700 and root's, and is refused otherwise.
Promises: a new start of the same run (same task, same source) finds the base and the mark "agent phase ended" of the
  one before; the mark is on the disk before ``mark_phase_ended`` returns; the reserve can be freed on a full disk.
Does not promise: to notice that an operator exchanged its files.
Checked by: tests/unit/grading/test_state.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from dataclasses import dataclass

from shell.errors import SSEBenchError

RESERVE_BYTES = 64 * 1024 * 1024
_RUN_FILE = "run.json"
_ENDED_FILE = "agent-phase-ended"
_RESERVE_FILE = "reserve"


class StateError(SSEBenchError):
    """The state directory is not usable; the message says what to do."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The opened state directory. ``resumed`` tells whether an earlier start of the same run left it."""

    path: str
    resumed: bool

    @property
    def baseline_path(self) -> str:
        """Where the private base repository lies."""
        return os.path.join(self.path, "baseline")

    @property
    def pristine_path(self) -> str:
        """Where the pristine copy of the clean clone lies."""
        return os.path.join(self.path, "pristine")

    def phase_ended(self) -> bool:
        """Whether the agent phase of this run has ended, in this or an earlier start."""
        return os.path.lexists(os.path.join(self.path, _ENDED_FILE))

    def mark_phase_ended(self) -> None:
        """Record for good that the agent phase has ended; on the disk when this returns."""
        # A full disk must not keep the phase open: the reserve makes room for one small file.
        try:
            write_durably(os.path.join(self.path, _ENDED_FILE), b"ended\n")
        except OSError:
            self.free_reserve()
            write_durably(os.path.join(self.path, _ENDED_FILE), b"ended\n")

    def free_reserve(self) -> None:
        """Give the reserved disk space back, so that grading can write on a full disk."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, _RESERVE_FILE))


def open_state(path: str, *, task_id: str, source: str, fresh: bool) -> RunState:
    """Open or make the state directory at ``path`` for the run of ``task_id`` on ``source``.

    State of another run, or any state when ``fresh``, is discarded. StateError when the directory is a link, belongs
    to another user, is open to others, or cannot be written.
    """
    run = {"task": task_id, "source": source}
    try:
        _make_private(path)
        resumed = not fresh and _read_run(path) == run
        if not resumed:
            _empty(path)
            _reserve(path)
            write_durably(os.path.join(path, _RUN_FILE), json.dumps(run, sort_keys=True).encode())
    except OSError as error:
        raise StateError(f"state directory {path} is not usable: {error.strerror}") from error
    return RunState(path, resumed)


def resumes(path: str, *, task_id: str, source: str) -> bool:
    """Whether an earlier start of the run of ``task_id`` on ``source`` left its state at ``path``; changes nothing."""
    try:
        return _read_run(path) == {"task": task_id, "source": source}
    except OSError:
        return False


def write_durably(path: str, data: bytes, mode: int = 0o600) -> None:
    """Replace the file at ``path`` by ``data`` in one step; its bytes and its name are on the disk on return."""
    partial = f"{path}.partial"
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _make_private(path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.makedirs(path, mode=0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise StateError(f"state directory {path} is not a directory; remove it or set SSE_RESULTS elsewhere")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StateError(f"state directory {path} must belong to the daemon's user with mode 0700")


def _read_run(path: str) -> object:
    try:
        with open(os.path.join(path, _RUN_FILE), "rb") as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):
        return None


def _empty(path: str) -> None:
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _reserve(path: str) -> None:
    fd = os.open(os.path.join(path, _RESERVE_FILE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, RESERVE_BYTES)
    finally:
        os.close(fd)
