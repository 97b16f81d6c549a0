"""What every capture compares with: the clean clone's bytes at start-up, and the names that the source's commit tracks.

Runs as: root, in the state directory and the clean clone, which root alone can change. Without a clone the source tree
  is copied once, with the agent's rights, before anything of the agent runs.
Distrusts: the source tree and its repository.
Promises: a base that was taken completely is never taken again in the same run, whatever the agent did since; one that
  was not is taken anew; neither the hub nor the sockets wait for it.
Does not promise: anything when an operator changes the clean clone while it is read.
Checked by: tests/system/test_capture.py, tests/system/test_submission.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import struct
from collections.abc import Iterator
from typing import NamedTuple

from grading import paths
from grading.history import Initial, read_initial
from grading.state import RunState, write_durably
from shell.accounts import Account, current_account
from shell.command import Ending, run_command
from shell.errors import SSEBenchError
from shell.programs import program_argv
from shell.reader import Content, ReaderProcess, ReadRequest
from shell.turns import Turns

_log = logging.getLogger(__name__)
_TIMEOUT_S = 1800.0
_PIECE_BYTES = 1 << 18
_NOTES_BYTES = 1 << 16


class BaselineError(SSEBenchError):
    """The base could not be taken or read back."""


class BaseFile(NamedTuple):
    """One file of the base: its kind (f, x, l; see shell.tree_channel), SHA-256 and size in bytes.

    A tuple, because there are tens of thousands: the garbage collector does not visit tuples of bytes and numbers.
    """

    kind: bytes
    digest: bytes
    size: int


class Baseline:
    """The base of one run, kept in its state directory."""

    def __init__(self, source: str, repo: str, state: RunState, agent: Account) -> None:
        self._source = source
        self._repo = repo
        self._state = state
        self._agent = agent
        self._folder = state.baseline_path
        self._has_clone = os.path.isdir(repo)
        self.files: dict[bytes, BaseFile] = {}
        self.initial = Initial("", frozenset())

    @property
    def tracked(self) -> frozenset[bytes]:
        """Names that no ignore rule hides. Without a commit: whatever the base holds."""
        return self.initial.names if self.initial.commit else frozenset(self.files)

    def note_initial(self) -> None:
        """Read or remember the source's one commit. Has to be over before the agent can change the repository."""
        path = self._path("initial")
        if not os.path.lexists(path):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            initial = read_initial(self._source, self._agent)
            write_durably(path, b"\0".join([initial.commit.encode(), *sorted(initial.names)]))
        with open(path, "rb") as file:
            commit, *names = file.read().split(b"\0")
        self.initial = Initial(commit.decode(), frozenset(names))

    @property
    def needs_source(self) -> bool:
        """Whether the base still has to come from the source tree: then before the agent can change it."""
        return not self._has_clone and not os.path.lexists(self._path("manifest"))

    def take(self) -> None:
        """Load the base, and take it first unless that was done. ``files`` is filled on return."""
        manifest = self._path("manifest")
        if not os.path.lexists(manifest):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            if self._has_clone:
                self._hash(self._repo)
            else:
                self._copy_source()
                self._hash(self._state.pristine_path)
        self.files = _read_manifest(manifest)

    def keep_pristine(self) -> None:
        """Copy the clean clone into the state directory, unless that was done."""
        if os.path.lexists(self._path("pristine-complete")):
            return
        if self._has_clone:
            os.makedirs(self._state.pristine_path, mode=0o700, exist_ok=True)
            self._program("mirror", self._repo, self._state.pristine_path)
        write_durably(self._path("pristine-complete"), b"complete\n")

    def reset_clone(self) -> None:
        """Make the clean clone what it was at start-up."""
        os.makedirs(self._repo, mode=0o700, exist_ok=True)
        self._program("mirror", self._state.pristine_path, self._repo)

    def content(self, path: bytes) -> Iterator[bytes]:
        """The bytes of one file of the base, in pieces."""
        root = self._content_root()
        if self.files[path].kind == b"l":
            yield paths.read_link(root, path)
            return
        fd = paths.open_file(root, path)
        try:
            while data := os.read(fd, _PIECE_BYTES):
                yield data
        finally:
            os.close(fd)

    def _content_root(self) -> str:
        """The clone serves until its copy is whole: nothing is graded, and so nothing changed in it, before that."""
        whole = os.path.lexists(self._path("pristine-complete")) or not self._has_clone
        return self._state.pristine_path if whole else self._repo

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _hash(self, tree: str) -> None:
        partial = self._path("manifest.partial")
        self._program("hash", tree, partial)
        os.rename(partial, self._path("manifest"))

    def _program(self, action: str, first: str, second: str) -> None:
        result = run_command(
            program_argv("tree_mirror", action, first, second),
            account=current_account(),
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            limit_bytes=_NOTES_BYTES,
            timeout_s=_TIMEOUT_S,
            umask=0o077,
        )
        text = result.stderr.decode("utf-8", "replace").strip()
        if result.ending is not Ending.EXITED or result.code != 0:
            last = text.splitlines()[-1] if text else f"code {result.code}"
            raise BaselineError(f"could not {action} {first}: {last}")
        if text:
            _log.warning("%s", text)

    def _copy_source(self) -> None:
        """Copy the source tree with the agent's rights; only the bytes come from there, root writes them."""
        pristine = self._state.pristine_path
        shutil.rmtree(pristine, ignore_errors=True)
        os.makedirs(pristine, mode=0o700)
        reader = ReaderProcess(os.fsencode(self._source), self._agent)
        try:
            found = reader.scan()
            reader.read([ReadRequest(path) for kind, path in found if kind in b"fxl"], _Copier(pristine))
        finally:
            reader.close()


class _Copier:
    """Writes what a reader reads into a tree of root's."""

    def __init__(self, root: str) -> None:
        self._root = root

    def content(self, request: ReadRequest, kind: bytes, size: int) -> Content:
        if kind == b"l":
            return _LinkCopy(self._root, request.path)
        return _FileCopy(paths.create_file(self._root, request.path, 0o755 if kind == b"x" else 0o644))

    def same(self, request: ReadRequest, kind: bytes) -> None:
        raise BaselineError("the helper that reads the tree sent nonsense")

    def gone(self, request: ReadRequest) -> None:
        raise BaselineError(f"{os.fsdecode(request.path)!a} changed while the base was taken")

    def unreadable(self, request: ReadRequest) -> None:
        _log.warning("left out of the base: %a is closed to the agent's user", os.fsdecode(request.path))

    def too_big(self, request: ReadRequest) -> None:
        raise BaselineError(f"{os.fsdecode(request.path)!a} is too large for a base")


class _FileCopy:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def finish(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)

    def discard(self) -> None:
        if self._fd >= 0:
            self.finish()


class _LinkCopy:
    def __init__(self, root: str, path: bytes) -> None:
        self._root, self._path = root, path
        self._target = b""

    def write(self, data: bytes) -> None:
        self._target += data

    def finish(self) -> None:
        paths.create_link(self._root, self._path, self._target)

    def discard(self) -> None:
        self._target = b""


def _read_manifest(path: str) -> dict[bytes, BaseFile]:
    """Parse what ``tree_mirror hash`` wrote."""
    turns = Turns()
    files: dict[bytes, BaseFile] = {}
    with open(path, "rb") as file:
        data = file.read()
    start = 0
    with contextlib.suppress(IndexError):
        while start < len(data):
            end = data.index(b"\0", start + 41)
            (size,) = struct.unpack_from(">q", data, start + 33)
            files[data[start + 41 : end]] = BaseFile(data[start : start + 1], data[start + 1 : start + 33], size)
            start = end + 1
            turns.take()
    return files
