"""Which names the tree's own ``.gitignore`` files ignore, as they are now.

Runs as: root, git in a private folder that holds copies of the ``.gitignore`` files and nothing else.
Distrusts: the rules' text and the names, which are the agent's: git only matches the one against the other.
Promises: no other source of rules is consulted; a nested repository's files follow the same rules as all others.
Checked by: tests/system/test_capture_cases.py.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping

from grading import paths
from grading.objects import GIT_ENVIRONMENT, GitError, git_path
from shell.accounts import current_account
from shell.command import run_command

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
        self.replace({})

    def replace(self, files: Mapping[bytes, bytes]) -> None:
        """Use these ``.gitignore`` files (path and text) from now on."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os.makedirs(self._folder, mode=0o700)
        self._answers.clear()
        self._none = not any(files.values())
        for path, text in files.items():
            with open(paths.create_file(self._folder, path, 0o600), "wb") as file:
                file.write(text)

    def ignored(self, names: Collection[bytes]) -> set[bytes]:
        """Those of ``names`` that are ignored. No name may be an ancestor of a ``.gitignore``."""
        if self._none or not names:
            return set()
        unknown = [path for path in names if path not in self._answers]
        if unknown:
            if len(self._answers) + len(unknown) > _REMEMBERED:
                self._answers.clear()
                unknown = list(names)
            for start in range(0, len(unknown), _AT_ONCE):
                piece = unknown[start : start + _AT_ONCE]
                found = self._ask(piece)
                self._answers.update((path, path in found) for path in piece)
        return {path for path in names if self._answers[path]}

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


def _plain(path: bytes) -> bytes:
    """The name as git takes it: a colon in front would begin pathspec magic."""
    return b"./" + path if path.startswith(b":") else path
