"""What the source's own git repository says: its one commit, the names in it, and the commits the agent added.

Runs as: the agent's user under a private group, with a time limit, and limits of output and memory.
Distrusts: everything in the agent's ``.git``.
Promises: none of its configuration, hooks, attributes, replacements or grafts is used: git works in an empty
  repository of root's and only takes objects from the agent's; failure to read the history never fails a grade.
Does not promise: anything about what the agent wrote into it, beyond that it is shown as it is.
Checked by: tests/system/test_submission_history.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from grading.objects import GIT_ENVIRONMENT, limited_git
from shell.accounts import Account
from shell.command import CommandResult, Ending, run_command
from shell.errors import SSEBenchError
from shell.reader import ReaderError, ReaderProcess, reader_account

_TIMEOUT_S = 60.0
_MEMORY_KIB = 4 << 20
_LIST_BYTES = 1 << 28
_LOG_BYTES = 1 << 24
_MAX_COMMITS = 10_000
_SHOWN = 5
_CONFIG = b"""\
[core]
\trepositoryformatversion = 0
\tbare = true
\tattributesFile = /dev/null
\tcommitGraph = false
\tmultiPackIndex = false
\tpackedGitWindowSize = 32m
\tpackedGitLimit = 256m
\tbigFileThreshold = 16m
"""
_LOG_OPTIONS = (
    "-z",
    "--no-color",
    "--no-decorate",
    "--no-notes",
    "--no-show-signature",
    "--no-patch",
    "--encoding=UTF-8",
    f"--max-count={_MAX_COMMITS}",
    "--format=%H%n%s%n%b",
)
_OID = re.compile(rb"[0-9a-f]{40}")
_REF = re.compile(rb"ref:\s*(refs/[^\s]+)")


class SourceHistoryError(SSEBenchError):
    """The source's repository holds more than its one commit; the answer could be in it."""


@dataclass(frozen=True, slots=True)
class Initial:
    """The source's one commit: its id, and the names it tracks; both empty without a repository."""

    commit: str
    names: frozenset[bytes]


def read_initial(source: str, agent: Account) -> Initial:
    """The commit that HEAD means now and the names in it."""
    with _repository(source, agent) as repository:
        commit = repository.head()
        if not commit:
            return Initial("", frozenset())
        listed = repository.git("ls-tree", "-r", "-z", "--full-tree", "--name-only", commit)
        if listed.code != 0:
            raise SourceHistoryError(f"the names in commit {commit} of {source} cannot be read: {_reason(listed)}")
        return Initial(commit, frozenset(listed.stdout.split(b"\0")) - {b""})


def read_log(source: str, agent: Account, initial: str) -> bytes:
    """The text of commits.log: hash, subject and body of each commit on top of ``initial``, newest first.

    Entries are separated by a line ``---``. What cannot be read is replaced by one line in brackets.
    """
    try:
        with _repository(source, agent) as repository:
            return _log_text(repository, initial)
    except (SSEBenchError, OSError) as error:
        return b"[the history could not be read: %s]\n" % str(error).encode("utf-8", "replace")


def check_single_commit(source: str, agent: Account) -> None:
    """Raise SourceHistoryError when the repository in ``source`` holds more than the objects of its one commit."""
    with _repository(source, agent) as repository:
        found = _more_than_one_commit(source, repository)
    if found:
        raise SourceHistoryError(
            f"{source} is not a repository of one commit: {found}; the answer could be in there. "
            "Lay the task out again, or set SSE_ALLOW_HISTORY=1 to allow it"
        )


def _more_than_one_commit(source: str, repository: _Repository) -> str | None:
    """What the repository holds beyond one commit, in words."""
    own = os.path.join(source, ".git")
    if not os.path.lexists(own):
        return None
    if not os.path.isdir(own) or os.path.islink(own):
        return "its .git is a link or a file that points elsewhere"
    for name, meaning in _SUSPICIOUS.items():
        if _holds_anything(os.path.join(repository.git_dir, name)):
            return f"it has {meaning} (.git/{name})"
    commit = repository.head()
    if not commit:
        return "HEAD is not a commit"
    return _foreign_objects(repository, commit) or _foreign_reflog(repository.git_dir, commit)


_SUSPICIOUS = {
    "objects/info/alternates": "alternates",
    "objects/info/http-alternates": "alternates",
    "modules": "repositories of submodules",
    "worktrees": "other work trees",
    "rr-cache": "recorded resolutions of conflicts",
    "refs/stash": "a stash",
    "logs/refs/stash": "a stash",
}


def _holds_anything(path: str) -> bool:
    """Whether a file has contents or a directory has entries; the agent has not run yet, root may look."""
    if os.path.isdir(path):
        return bool(os.listdir(path))
    return os.path.lexists(path) and os.lstat(path).st_size > 0


def _foreign_objects(repository: _Repository, commit: str) -> str | None:
    # Only this commit: a shallow clone names parents it does not have.
    wanted = repository.git("rev-list", "--objects", "--no-walk", "--no-object-names", commit)
    present = repository.git("cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectname)")
    for result in (wanted, present):
        if result.code != 0:
            return f"its objects cannot be listed: {_reason(result)}"
    foreign = sorted(set(present.stdout.split()) - set(wanted.stdout.split()))
    if foreign:
        shown = " ".join(oid.decode() for oid in foreign[:_SHOWN])
        return (
            f"{len(foreign)} objects are not part of commit {commit}: {shown}{' ...' if len(foreign) > _SHOWN else ''}"
        )
    packs = os.path.join(repository.objects, "pack")
    partial = [name for name in (os.listdir(packs) if os.path.isdir(packs) else ()) if name.startswith("tmp_")]
    return f"it has unfinished packs ({partial[0]})" if partial else None


def _foreign_reflog(git_dir: str, commit: str) -> str | None:
    """A reflog may tell that the one commit was made, and nothing else."""
    allowed = {commit.encode(), b"0" * 40}
    for folder, _folders, names in os.walk(os.path.join(git_dir, "logs")):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                if any(not set(line.split(b" ")[:2]) <= allowed for line in file):
                    return f"its reflog names other commits ({os.path.relpath(path, git_dir)})"
    return None


@contextlib.contextmanager
def _repository(source: str, agent: Account) -> Iterator[_Repository]:
    """The agent's repository, seen from an empty one of ours that he can read and cannot change."""
    own = tempfile.mkdtemp(prefix="history-")
    try:
        os.mkdir(os.path.join(own, "refs"))
        for name, text in (("HEAD", b"ref: refs/heads/none\n"), ("config", _CONFIG)):
            with open(os.path.join(own, name), "wb") as file:
                file.write(text)
        os.chmod(own, 0o755)  # noqa: S103  # holds nothing but constants; another user's git reads it
        reader = ReaderProcess(os.fsencode(source), agent)
        try:
            yield _Repository(source, agent, own, reader)
        finally:
            reader.close()
    finally:
        shutil.rmtree(own, ignore_errors=True)


class _Repository:
    def __init__(self, source: str, agent: Account, own: str, reader: ReaderProcess) -> None:
        self._agent = agent
        self._own = own
        self._reader = reader
        self.git_dir = os.path.join(source, ".git")
        # A ``.git`` file points to the repository; a linked work tree's repository points on to the common one.
        if pointer := self._pointer(self.git_dir, b"gitdir: "):
            self.git_dir = os.path.join(source, pointer)
        common = self._pointer(os.path.join(self.git_dir, "commondir"), b"") or ""
        self._common = os.path.join(self.git_dir, common)
        self.objects = os.path.join(self._common, "objects")

    def head(self) -> str:
        """The id of the commit that HEAD means; empty when it means none."""
        text = self._file(self.git_dir, b"HEAD")
        for _ in range(5):
            if _OID.fullmatch(text):
                return text.decode()
            found = _REF.fullmatch(text)
            if found is None:
                return ""
            ref = found.group(1)
            text = self._file(self.git_dir, ref) or self._file(self._common, ref) or self._packed(ref)
        return ""

    def git(self, *arguments: str, limit_bytes: int = _LIST_BYTES) -> CommandResult:
        """Run git on the agent's objects, with his rights, within limits of time, output and memory."""
        return run_command(
            limited_git(arguments, _MEMORY_KIB),
            account=reader_account(self._agent),
            cwd="/",
            env={**GIT_ENVIRONMENT, "GIT_DIR": self._own, "GIT_OBJECT_DIRECTORY": self.objects},
            limit_bytes=limit_bytes,
            timeout_s=_TIMEOUT_S,
        )

    def _pointer(self, path: str, prefix: bytes) -> str | None:
        text = self._file(path, b"")
        return os.fsdecode(text[len(prefix) :]) if text.startswith(prefix) and len(text) > len(prefix) else None

    def _packed(self, ref: bytes) -> bytes:
        for line in self._file(self._common, b"packed-refs").split(b"\n"):
            oid, _space, name = line.partition(b" ")
            if name == ref:
                return oid
        return b""

    def _file(self, folder: str, name: bytes) -> bytes:
        path = os.path.join(os.fsencode(folder), name) if name else os.fsencode(folder)
        return (self._reader.repository_file(path) or b"").strip()


def _log_text(repository: _Repository, initial: str) -> bytes:
    head = repository.head()
    if not head:
        return b"[the history could not be read: HEAD is not a commit]\n"
    if head == initial:
        return b""
    known = bool(initial) and repository.git("cat-file", "-e", f"{initial}^{{commit}}").code == 0
    commits = [head, f"^{initial}"] if known else [head]
    result = repository.git("log", *_LOG_OPTIONS, *commits, "--", limit_bytes=_LOG_BYTES)
    entries = [entry.rstrip(b"\n") + b"\n" for entry in result.stdout.split(b"\0") if entry.strip()]
    if result.code != 0:
        entries.append(b"[the history could not be read in full: %s]\n" % _reason(result).encode("utf-8", "replace"))
    return b"---\n".join(entries)


def _reason(result: CommandResult) -> str:
    if result.ending is Ending.TIMED_OUT:
        return f"git took longer than {_TIMEOUT_S:g} s"
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[0][:300] if lines else f"git ended with code {result.code}"


__all__ = ["Initial", "ReaderError", "SourceHistoryError", "check_single_commit", "read_initial", "read_log"]
