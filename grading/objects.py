"""A private, throw-away git repository: the two sides of the changed files, and the patch between them.

Runs as: root, in a directory that root alone can enter; git is started on this private data only.
Distrusts: contents and names, which are the agent's; never interpreted, only stored under their hash.
Promises: no configuration, attributes, hooks or filters of anybody take part; the repository holds what the last
  capture needed and little else; the same change gives the same patch, byte for byte.
Does not promise: to keep apart two contents with one SHA-1; the check after the apply notices those.
Checked by: tests/system/test_capture_cases.py.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shell.accounts import current_account
from shell.command import CommandResult, Ending, run_command
from shell.errors import SSEBenchError
from shell.turns import Turns

PATCH_BYTES = 1 << 30
_SLACK_OBJECTS = 5000
_SLACK_BYTES = 32 << 20
_GIT_TIMEOUT_S = 900.0
_GIT_OUTPUT_BYTES = 1 << 16
_NUMSTAT_BYTES = 1 << 28
# For a file of nothing but newlines git needs forty times its size: better a clear error than a machine out of memory.
_GIT_MEMORY_KIB = 8 << 20
_CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tattributesFile = /dev/null\n"

# Nothing but this reaches git: no user, no system, no configuration, no attributes of anybody.
GIT_ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C",
    "LC_ALL": "C",
    "HOME": "/nonexistent",
    "XDG_CONFIG_HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LITERAL_PATHSPECS": "1",
}


class GitError(SSEBenchError):
    """git itself failed on private data."""


@dataclass(frozen=True, slots=True)
class Blob:
    """One version of a file: kind ``f``, ``x`` or ``l`` (see shell.tree_channel), git's id and size in bytes."""

    kind: bytes
    oid: str
    size: int


class Change(NamedTuple):
    """A path and its two sides; None where the file does not exist. A tuple: many of them are compared quickly."""

    path: bytes
    before: Blob | None
    after: Blob | None


_MODES = {b"f": b"100644", b"x": b"100755", b"l": b"120000"}


@dataclass(frozen=True, slots=True)
class _Folder:
    """A directory whose tree is being put together; see ``_entry``."""

    name: bytes
    entries: list[tuple[bytes, bytes]] = field(default_factory=list)


def _entry(name: bytes, mode: bytes, oid: str, *, is_folder: bool = False) -> tuple[bytes, bytes]:
    """What a tree says of one name, behind the key that it is sorted by: a directory's as if it ended in a slash."""
    return (name + b"/" if is_folder else name), b"%s %s\0%s" % (mode, name, bytes.fromhex(oid))


class BlobWriter:
    """Writes one blob of known size into the repository, in pieces. Keeps the hash of what was given."""

    def __init__(self, store: ObjectStore, size: int) -> None:
        self._store = store
        self._size = size
        # A blob that comes in one piece is written at once under its name; any other goes through a file of its own.
        self._whole: bytes | None = b"" if size == 0 else None
        self._stream: _BlobFile | None = None

    def write(self, data: bytes) -> None:
        """The next piece."""
        if self._stream is None and len(data) == self._size:
            self._whole = data
            return
        if self._stream is None:
            self._stream = _BlobFile(self._store.partial_path(), self._size)
        self._stream.write(data)

    def finish(self) -> str:
        """Put the object in its place; its id."""
        if self._whole is not None:
            return self._store.add(b"blob", self._whole)
        assert self._stream is not None, "a blob must be given as many bytes as were announced"
        oid = self._stream.finish()
        self._store.adopt(self._stream.path, oid, self._size)
        return oid

    def discard(self) -> None:
        """Forget what was written."""
        if self._stream is not None:
            self._stream.discard()


class _BlobFile:
    """A loose object in the making, under a name that means nothing to git."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        header = b"blob %d\0" % size
        self._hash = hashlib.sha1(header, usedforsecurity=False)
        # Stored, not compressed: the object lives for few captures and is read once in each.
        self._pack = zlib.compressobj(0)
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115
        try:
            self._write(self._pack.compress(header))
        except BaseException:
            self.discard()
            raise

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._write(self._pack.compress(data))

    def finish(self) -> str:
        self._write(self._pack.flush())
        self._file.close()
        return self._hash.hexdigest()

    def discard(self) -> None:
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]


class ObjectStore:
    """The repository at ``path``, begun anew by the constructor."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._objects = os.path.join(path, "objects")
        self._partials = 0
        # Every object and its size.
        self._known: dict[str, int] = {}
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(os.path.join(path, "refs"), mode=0o700)
        os.mkdir(self._objects, 0o700)
        for first in range(256):
            os.mkdir(os.path.join(self._objects, f"{first:02x}"), 0o700)
        for name, text in (("HEAD", b"ref: refs/heads/none\n"), ("config", _CONFIG)):
            with open(os.path.join(path, name), "wb") as file:
                file.write(text)

    def holds(self, oid: str) -> bool:
        """Whether the object is there."""
        return oid in self._known

    def adopt(self, path: str, oid: str, size: int) -> None:
        """Take a file written by a BlobWriter as the object ``oid``."""
        os.rename(path, self._object_path(oid))
        self._known[oid] = size

    def _object_path(self, oid: str) -> str:
        return os.path.join(self._objects, oid[:2], oid[2:])

    def partial_path(self) -> str:
        """A fresh name for an object whose id is not known yet."""
        self._partials += 1
        return os.path.join(self._objects, f"partial-{self._partials}")

    def add(self, kind: bytes, data: bytes) -> str:
        """Store one whole object; its id."""
        whole = b"%s %d\0%s" % (kind, len(data), data)
        oid = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        if oid not in self._known:
            # Not yet known: a file that a full disk cut short is written over by the next attempt.
            with open(self._object_path(oid), "wb", buffering=0) as file:
                packed = zlib.compress(whole, 0)
                if file.write(packed) != len(packed):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._known[oid] = len(data)
        return oid

    def tree(self, blobs: Mapping[bytes, Blob]) -> str:
        """Store the trees that hold exactly ``blobs``; the id of the root."""
        # Names with a beginning in common are neighbours when sorted: each directory is complete once it is left. No
        # recursion: a path may have two thousand directories.
        turns = Turns()
        around = [_Folder(b"")]
        for path in sorted(blobs):
            *folders, name = path.split(b"/")
            shared = _common_length([folder.name for folder in around[1:]], folders)
            while len(around) > shared + 1:
                self._leave(around, turns)
            around.extend(_Folder(folder) for folder in folders[shared:])
            blob = blobs[path]
            around[-1].entries.append(_entry(name, _MODES[blob.kind], blob.oid))
            turns.take()
        while len(around) > 1:
            self._leave(around, turns)
        return self._add_tree(around[0].entries, turns)

    def keep(self, oids: Iterable[str]) -> None:
        """Remove what is not among ``oids`` once it takes some room: removing costs as much as adding."""
        others = self._known.keys() - set(oids)
        if len(others) <= _SLACK_OBJECTS and sum(self._known[oid] for oid in others) <= _SLACK_BYTES:
            return
        turns = Turns()
        for oid in others:
            os.unlink(self._object_path(oid))
            del self._known[oid]
            turns.take()

    def write_patch(self, before: str, after: str, path: str) -> None:
        """Write the patch between two trees to the file ``path``; GitError when it is larger than a patch may be."""
        result = self._diff(
            "-p", "--binary", "--full-index", f"--output={path}", before, after, limit=_GIT_OUTPUT_BYTES
        )
        _check(result, "diff-tree")
        if os.stat(path).st_size > PATCH_BYTES:
            raise GitError(f"the patch is larger than {PATCH_BYTES} bytes; nothing that large can be graded")

    def line_counts(self, before: str, after: str) -> dict[bytes, tuple[int, int]]:
        """Lines added and deleted for each path that differs; (0, 0) for binary files."""
        result = self._diff("--numstat", "-z", before, after, limit=_NUMSTAT_BYTES)
        _check(result, "diff-tree")
        turns = Turns()
        counts = {}
        for record in result.stdout.split(b"\0"):
            if record:
                added, deleted, path = record.split(b"\t", 2)
                counts[path] = (0, 0) if added == b"-" else (int(added), int(deleted))
            turns.take()
        return counts

    def _leave(self, around: list[_Folder], turns: Turns) -> None:
        """Store the innermost directory; its entry goes into the one around it."""
        folder = around.pop()
        around[-1].entries.append(_entry(folder.name, b"40000", self._add_tree(folder.entries, turns), is_folder=True))

    def _add_tree(self, entries: list[tuple[bytes, bytes]], turns: Turns) -> str:
        entries.sort()
        pieces = []
        for _key, entry in entries:
            pieces.append(entry)
            turns.take()
        return self.add(b"tree", b"".join(pieces))

    def _diff(self, *arguments: str, limit: int) -> CommandResult:
        options = (
            "-r",
            "--no-renames",
            "--no-textconv",
            "--no-ext-diff",
            "--no-color",
            "--src-prefix=a/",
            "--dst-prefix=b/",
        )
        return run_git(["diff-tree", *options, *arguments], git_dir=self.path, cwd=self.path, limit_bytes=limit)


def _common_length(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """How many names two paths share at their beginning."""
    length = 0
    for first, second in zip(one, other, strict=False):
        if first != second:
            break
        length += 1
    return length


@functools.cache
def git_path() -> str:
    """Where git is; GitError when it is not installed."""
    path = shutil.which("git")
    if path is None:
        raise GitError("git is not installed: install git")
    return path


def limited_git(arguments: Sequence[str], memory_kib: int) -> list[str]:
    """The command line of git within a limit of memory, and without a core file when it meets that.

    One option per ulimit: dash takes no more, and then sets nothing. A limit that is lower already stays.
    """
    limits = f'ulimit -v {memory_kib} 2>/dev/null; ulimit -c 0; exec "$@"'
    return ["/bin/sh", "-c", limits, "sh", git_path(), *arguments]


def run_git(arguments: list[str], *, git_dir: str, cwd: str, limit_bytes: int = _GIT_OUTPUT_BYTES) -> CommandResult:
    """Run git as the daemon's user on private data, within a limit of memory and without anybody's configuration."""
    return run_command(
        limited_git(arguments, _GIT_MEMORY_KIB),
        account=current_account(),
        cwd=cwd,
        env={**GIT_ENVIRONMENT, "GIT_DIR": git_dir},
        limit_bytes=limit_bytes,
        timeout_s=_GIT_TIMEOUT_S,
    )


def _check(result: CommandResult, what: str) -> None:
    if result.ending is not Ending.EXITED:
        raise GitError(f"git {what} took longer than {_GIT_TIMEOUT_S:g} s")
    if result.code != 0:
        raise GitError(f"git {what} failed: {result.stderr.decode('utf-8', 'replace').strip()[:1000]}")
