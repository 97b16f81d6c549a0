"""Which names the tree's own ``.gitignore`` files ignore, as they are now.

Runs as: root, git in a private folder that holds copies of the ``.gitignore`` files and nothing else.
Distrusts: the rules' text and the names, which are the agent's: git only matches the one against the other.
Promises: no other source of rules is consulted; a nested repository's files follow the same rules as all others.
Checked by: tests/system/test_capture_cases.py.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping

from grading import paths
from grading.objects import GIT_ENVIRONMENT, GitError, git_path
from shell.accounts import current_account
from shell.command import run_command
from shell.turns import Turns

_TIMEOUT_S = 300.0
_OUTPUT_BYTES = 1 << 29
_REMEMBERED = 500_000
_AT_ONCE = 20_000


class IgnoreRules:
    """Answers for names, remembers answers until the rules change."""

    def __init__(self, folder: str, git_dir: str) -> None:
        self._folder = folder
        self._environment = {**GIT_ENVIRONMENT, "GIT_DIR": git_dir, "GIT_WORK_TREE": folder}
        # check-ignore refuses to run with it; see _plain for what takes its place.
        del self._environment["GIT_LITERAL_PATHSPECS"]
        self._answers: dict[bytes, bool] = {}
        self._none = True
        self._files: dict[bytes, bytes] = {}
        self._empty()

    def replace(self, files: Mapping[bytes, bytes]) -> None:
        """Use these ``.gitignore`` files (path and text) from now on."""
        self._answers.clear()
        self._none = not any(files.values())
        try:
            self._write(files)
        except OSError:
            # A directory of one time is a file of another: begin with an empty folder.
            self._empty()
            self._write(files)

    def _empty(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.makedirs(self._folder, mode=0o700)
        self._files.clear()

    def _write(self, files: Mapping[bytes, bytes]) -> None:
        turns = Turns()
        for path in [path for path, text in self._files.items() if files.get(path) != text]:
            # With its directories: git would take one that is left for the kind of the name that is asked about.
            paths.remove_file(self._folder, path)
            del self._files[path]
            turns.take()
        for path, text in files.items():
            if path not in self._files:
                with open(paths.create_file(self._folder, path, 0o600), "wb") as file:
                    file.write(text)
                self._files[path] = text
                turns.take()

    def ignored(self, names: Collection[bytes]) -> set[bytes]:
        """Those of ``names``, all of them of files or links, that are ignored."""
        if self._none or not names:
            return set()
        unknown = [path for path in names if path not in self._answers]
        if unknown:
            if len(self._answers) + len(unknown) > _REMEMBERED:
                self._answers.clear()
                unknown = list(names)
            above = {folder for path in self._files for folder in folders_of(path)}
            self._learn([path for path in unknown if path not in above])
            if above.intersection(unknown):
                self._learn_as_files([path for path in unknown if path in above])
        return {path for path in names if self._answers[path]}

    def _learn(self, names: list[bytes]) -> None:
        for start in range(0, len(names), _AT_ONCE):
            piece = names[start : start + _AT_ONCE]
            found = self._ask(piece)
            self._answers.update((path, path in found) for path in piece)

    def _learn_as_files(self, names: list[bytes]) -> None:
        """Learn about names that are directories in the folder, because there are rules below them by now.

        Rules below a file do not concern it; without them it is no directory for git.
        """
        files = dict(self._files)
        asked = set(names)
        below = {path for path in files if not asked.isdisjoint(folders_of(path))}
        self._write({path: text for path, text in files.items() if path not in below})
        self._learn(names)
        self._write(files)

    def _ask(self, names: list[bytes]) -> set[bytes]:
        # A memory file, not a pipe: git answers while it still reads, and nobody would be there to write.
        questions = os.memfd_create("paths")
        try:
            with open(questions, "wb", closefd=False) as file:
                for path in names:
                    file.write(_plain(path) + b"\0")
            os.lseek(questions, 0, os.SEEK_SET)
            result = run_command(
                [git_path(), "check-ignore", "--no-index", "-z", "--stdin"],
                account=current_account(),
                cwd=self._folder,
                env=self._environment,
                limit_bytes=_OUTPUT_BYTES,
                timeout_s=_TIMEOUT_S,
                stdin=questions,
            )
        finally:
            os.close(questions)
        if result.code not in (0, 1):
            message = result.stderr.decode("utf-8", "replace").strip()[:1000]
            raise GitError(f"git check-ignore failed: {message}")
        return {path.removeprefix(b"./") for path in result.stdout.split(b"\0") if path}


def folders_of(path: bytes) -> Iterator[bytes]:
    """Every directory above a path, from the top."""
    end = path.find(b"/")
    while end != -1:
        yield path[:end]
        end = path.find(b"/", end + 1)


def _plain(path: bytes) -> bytes:
    """The name as git takes it: a colon in front would begin pathspec magic."""
    return b"./" + path if path.startswith(b":") else path
