"""What prepare_grading does: the agent's final patch, his commit messages, and the graded copy of the repository.

Runs as: root; the tree is read by grading.capture, the clone and the results directory can be changed by root alone.
Distrusts: the patch's contents, though the daemon wrote the patch itself from a capture: only for that reason is
  ``git apply`` told to accept any path. What git did is compared with what was captured.
Promises: every call starts over from the pristine clone; ``final.patch`` and ``commits.log`` appear whole or not at
  all; after a failed apply the clone is what it was at start-up; no configuration or attributes of anybody take part.
Does not promise: that the graded project builds.
Checked by: tests/system/test_submission.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable

import gevent

from grading import paths
from grading.capture import Capture
from grading.history import read_log
from grading.objects import GIT_ENVIRONMENT, Change, git_path
from grading.patchfile import read_whole
from grading.state import RunState, write_durably
from grading.treeview import CaptureError
from shell.accounts import Account, current_account
from shell.command import Ending, run_command
from shell.errors import SSEBenchError
from shell.turns import Turns

_APPLY_TIMEOUT_S = 900.0
_MESSAGE_BYTES = 1 << 16
_PIECE_BYTES = 1 << 18
_KINDS = {stat.S_IFREG: b"f", stat.S_IFLNK: b"l"}


class ApplyError(SSEBenchError):
    """The patch could not be applied to the clean clone; the message begins ``git apply failed``."""


class SubmissionError(SSEBenchError):
    """What was submitted cannot be read."""


class Submission:
    """The submission of one run; its files are in ``results_path``, the graded copy is at ``repo_path``."""

    def __init__(
        self, capture: Capture, state: RunState, repo_path: str, results_path: str, source: str, agent: Account
    ) -> None:
        self._capture = capture
        self._state = state
        self._repo = repo_path
        self._results = results_path
        self._source = source
        self._agent = agent

    @property
    def patch_path(self) -> str:
        """Where the final patch is once there is one."""
        return os.path.join(self._results, "final.patch")

    def prepare(self) -> None:
        """Save patch and commit messages, and apply the patch to a clone that is as it was at start-up.

        ApplyError when it does not apply; CaptureError when the agent's tree cannot be captured or saved.
        """
        self._state.free_reserve()
        try:
            self._prepare()
        except OSError as error:
            raise CaptureError(f"the submission could not be saved: {error.strerror or error}") from error

    def final_diff(self) -> bytes:
        """The saved patch; empty before grading. SubmissionError when it is there and cannot be read."""
        try:
            return read_whole(self.patch_path)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise SubmissionError(f"the saved diff cannot be read: {error.strerror}") from error

    def _prepare(self) -> None:
        os.makedirs(self._results, mode=0o700, exist_ok=True)
        changes = self._save_patch()
        log = read_log(self._source, self._agent, self._capture.baseline.initial.commit)
        write_durably(os.path.join(self._results, "commits.log"), log)
        self._capture.wait_for_pristine()
        self._capture.baseline.reset_clone()
        if not changes:
            return
        try:
            self._clear_the_way(changes)
            self._apply()
            self._verify(changes)
        except BaseException:
            self._capture.baseline.reset_clone()
            raise

    def _save_patch(self) -> tuple[Change, ...]:
        partial = f"{self.patch_path}.partial"
        try:
            changes = self._capture.final(partial).changes
            _make_durable(partial, self.patch_path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
            raise
        return changes

    def _clear_the_way(self, changes: Iterable[Change]) -> None:
        """Remove what no patch can delete, empty directories and repositories, from directories that become a file."""
        turns = Turns()
        for change in changes:
            found = change.after and paths.look_at(self._repo, change.path)
            if found and stat.S_ISDIR(found.st_mode):
                gevent.get_hub().threadpool.apply(paths.remove_unpatchable, (self._repo, change.path))
            turns.take()

    def _apply(self) -> None:
        result = run_command(
            [
                git_path(), "-c", "core.protectNTFS=false", "apply", "--binary", "--unsafe-paths",
                "--whitespace=nowarn", "-p1", self.patch_path,
            ],
            account=current_account(),
            cwd=self._repo,
            # A repository that does not exist: one above or in the clone would bring its attributes, or make git skip
            # the files outside of it and call that a success.
            env={**GIT_ENVIRONMENT, "GIT_DIR": "/nonexistent"},
            limit_bytes=_MESSAGE_BYTES,
            timeout_s=_APPLY_TIMEOUT_S,
        )  # fmt: skip
        if result.ending is not Ending.EXITED:
            raise ApplyError(f"git apply failed: it took longer than {_APPLY_TIMEOUT_S:g} s")
        if result.code != 0:
            message = result.stderr.decode("utf-8", "replace").strip()[:2000] or f"code {result.code}"
            raise ApplyError(f"git apply failed: {message}")

    def _verify(self, changes: Iterable[Change]) -> None:
        turns = Turns()
        for change in changes:
            found = _blob_at(self._repo, change.path, turns)
            wanted = change.after and (change.after.kind, change.after.oid)
            if found != wanted:
                name = os.fsdecode(change.path)
                raise ApplyError(f"git apply failed: {name!a} is not what was captured after the patch was applied")


def _make_durable(partial: str, path: str) -> None:
    """Give a written file its name; bytes and name are on the disk on return."""
    fd = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(partial, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _blob_at(root: str, path: bytes, turns: Turns) -> tuple[bytes, str] | None:
    """Kind and git's id of what is at ``path`` below ``root``; None when there is no file or link."""
    found = paths.look_at(root, path)
    if found is None or stat.S_IFMT(found.st_mode) not in _KINDS:
        return None
    digest = hashlib.sha1(b"blob %d\0" % found.st_size, usedforsecurity=False)
    if stat.S_ISLNK(found.st_mode):
        digest.update(paths.read_link(root, path))
        return b"l", digest.hexdigest()
    fd = paths.open_file(root, path)
    try:
        while data := os.read(fd, _PIECE_BYTES):
            digest.update(data)
            turns.take()
    finally:
        os.close(fd)
    return b"x" if found.st_mode & stat.S_IXUSR else b"f", digest.hexdigest()


__all__ = ["ApplyError", "Submission", "SubmissionError"]
