"""The task's files as the checks use them: closed by default, opened or staged for the one check that needs them.

Runs as: root, in the task's directory, which root alone can write; support directories are filled with the runner's
  rights.
Distrusts: what scripts of the runner's did to support directories.
Promises: everything in the task's directory is root's and closed to others; the runner may read and execute the build
  and test scripts in place, and use what these name while a check runs that needs it; support directories are put back
  to their first state by ``restore``; proofs of concept, hidden tests and the run script are only ever seen as staged
  copies.
Does not promise: to find a support directory whose name a script computes.
Checked by: tests/system/test_taskfiles.py, tests/attack/test_task_files.py.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from grading.workspace import WorkspaceError, give, stage_file
from shell.accounts import Account, current_account, is_isolated
from shell.cleaning import empty_directory
from shell.copying import TreeReader, copy_tree
from tasks.config import CONFIG_FILE, Task, named_files

# The path that scripts are written for, wherever the task's files really lie.
_IMAGE_PATH = "/ssebench"
_COPY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Support:
    """Something beside the named files that scripts use: relative path, and the kinds of script that name it."""

    path: str
    is_directory: bool
    named_by: frozenset[str]


class TaskFiles:
    """The task's directory. ``first_state`` is a root-only directory for copies of the support directories."""

    def __init__(self, task: Task, bench_path: str, runner: Account, first_state: str) -> None:
        self._task = task
        self._bench = os.path.abspath(bench_path)
        self._runner = runner
        self._first_state = first_state
        self._scripts = {"build": task.scripts.build, "run": task.scripts.run, "test": task.scripts.test}
        self._support = tuple(self._find_support())

    def secure(self, *, resumed: bool) -> None:
        """Close the directory, and remember the support directories unless an earlier start of this run did."""
        if not (resumed and os.path.isdir(self._first_state)):
            self._remember()
        if is_isolated():
            self._close_everything()
            self._open_scripts()

    def restore(self) -> None:
        """Put every support directory back to its first state; closed, as outside of a check."""
        first = TreeReader(current_account())
        for item in self._directories():
            path = os.path.join(self._bench, item.path)
            _empty(path, self._runner)
            give(path, 0o770, self._runner)
            source = os.path.join(self._first_state, item.path)
            copy_tree(source, first, path, self._runner, timeout_s=_COPY_SECONDS)
            _close(path)

    @contextmanager
    def opened(self, *kinds: str) -> Iterator[None]:
        """Within: the runner may use the support directories that scripts of these kinds name."""
        wanted = [item for item in self._directories() if item.named_by & set(kinds)]
        try:
            for item in wanted:
                give(os.path.join(self._bench, item.path), 0o770, self._runner)
            yield
        finally:
            for item in wanted:
                _close(os.path.join(self._bench, item.path))

    def script(self, kind: str) -> str:
        """The path of the build or test script in place; KeyError when the task has none."""
        path = self._scripts[kind]
        if path is None:
            raise KeyError(kind)
        return os.path.join(self._bench, path)

    def find_poc(self, poc: str) -> str | None:
        """The relative path of a proof of concept given as in the metadata or relative; None when it is none."""
        for path in self._task.files.poc:
            if poc in (path, os.path.join(self._bench, path)):
                return path
        return None

    def stage_run(self, stage: str, poc: str) -> tuple[str, str]:
        """Lay out the run script and the proof of concept with its whole directory in ``stage``; their paths there.

        The layout is the task's own, and what the run script may use in place is linked, so that paths relative to
        the script lead where they lead in the task's directory.
        """
        assert self._task.scripts.run is not None
        folder = os.path.dirname(poc)
        if folder:
            self._stage_folder(stage, folder)
        else:
            # Its directory would be the task's own, with everything in it.
            self._stage_one(stage, poc)
        run = self._stage_one(stage, self._task.scripts.run)
        for item in self._support:
            if "run" in item.named_by and not item.is_directory:
                self._stage_one(stage, item.path)
        in_place = [path for path in (self._task.scripts.build, self._task.scripts.test) if path]
        in_place += [item.path for item in self._directories()]
        for path in in_place:
            self._link_in_place(stage, path)
        return run, os.path.join(stage, poc)

    def stage_hidden_tests(self, stage: str) -> str:
        """Lay the hidden tests' patch in ``stage``; its path there."""
        assert self._task.files.future_test is not None
        return self._stage_one(stage, self._task.files.future_test)

    def _stage_one(self, stage: str, path: str) -> str:
        target = os.path.join(stage, path)
        self._make_folders(stage, os.path.dirname(path))
        stage_file(os.path.join(self._bench, path), target, self._runner)
        return target

    def _stage_folder(self, stage: str, folder: str) -> None:
        """Copy a directory of the task's; a link in it arrives as a link."""
        self._make_folders(stage, folder)
        for parent, folders, files in os.walk(os.path.join(self._bench, folder)):
            relative = os.path.relpath(parent, self._bench)
            for name in folders:
                self._make_folders(stage, os.path.join(relative, name))
            for name in files:
                source = os.path.join(parent, name)
                target = os.path.join(stage, relative, name)
                if os.path.islink(source):
                    os.symlink(os.readlink(source), target)
                elif os.path.isfile(source) and self._may_stage(os.path.join(relative, name)):
                    stage_file(source, target, self._runner)

    def _may_stage(self, path: str) -> bool:
        """Whether a file beside a proof of concept may go with it: what the config hides as something else may not."""
        return path not in self._named() or path in self._task.files.poc

    def _make_folders(self, stage: str, folder: str) -> None:
        path = stage
        for part in filter(None, os.path.normpath(folder).split(os.sep)):
            path = os.path.join(path, part)
            if part != "." and not os.path.isdir(path):
                os.mkdir(path, 0o700)
                give(path, 0o750, self._runner)

    def _link_in_place(self, stage: str, path: str) -> None:
        target = os.path.join(stage, path)
        self._make_folders(stage, os.path.dirname(path))
        if not os.path.lexists(target):
            os.symlink(os.path.join(self._bench, path), target)

    def _named(self) -> set[str]:
        return {os.path.normpath(path) for _, path in named_files(self._task)} | {CONFIG_FILE}

    def _directories(self) -> list[Support]:
        return [item for item in self._support if item.is_directory]

    def _find_support(self) -> Iterator[Support]:
        """Top directories without named files, and unnamed files beside the scripts, that a script mentions."""
        named = self._named()
        texts = {kind: self._read(path) for kind, path in self._scripts.items() if path is not None}
        folders = {os.path.dirname(path) for path in self._scripts.values() if path is not None}
        candidates = [
            (entry, True) for entry in _entries(self._bench) if os.path.isdir(os.path.join(self._bench, entry))
        ]
        for folder in folders:
            files = (os.path.join(folder, entry) for entry in _entries(os.path.join(self._bench, folder)))
            candidates += [(path, False) for path in files if os.path.isfile(os.path.join(self._bench, path))]
        for path, is_directory in candidates:
            holds_named = any(other == path or other.startswith(path + "/") for other in named)
            if holds_named or os.path.islink(os.path.join(self._bench, path)):
                continue
            pattern = self._mention(path, is_directory)
            kinds = frozenset(kind for kind, text in texts.items() if re.search(pattern, text))
            if kinds:
                yield Support(path, is_directory, kinds)

    def _mention(self, path: str, is_directory: bool) -> bytes:
        """A pattern for how a script names a thing: from the task's directory, or from the script's own."""
        end = rb"(?![\w.-])"
        if is_directory:
            roots = b"|".join(re.escape(os.fsencode(root)) for root in (_IMAGE_PATH, self._bench, ".."))
            return rb"(?:" + roots + rb")/" + re.escape(os.fsencode(path)) + end
        return rb"/" + re.escape(os.fsencode(os.path.basename(path))) + end

    def _read(self, path: str) -> bytes:
        with open(os.path.join(self._bench, path), "rb") as file:
            return file.read()

    def _remember(self) -> None:
        partial = f"{self._first_state}.partial"
        for path in (partial, self._first_state):
            shutil.rmtree(path, ignore_errors=True)
        os.makedirs(partial, mode=0o700)
        for item in self._directories():
            source = os.path.join(self._bench, item.path)
            try:
                shutil.copytree(source, os.path.join(partial, item.path), symlinks=True)
            except (OSError, shutil.Error) as error:
                raise WorkspaceError(f"support directory {source} could not be copied: {error}") from error
        os.rename(partial, self._first_state)

    def _close_everything(self) -> None:
        for parent, folders, files in os.walk(self._bench):
            if os.path.relpath(parent, self._bench).split(os.sep)[0] in {item.path for item in self._directories()}:
                # The runner owns what is inside; the directory itself is closed, and restored at once.
                folders.clear()
                continue
            for name in files:
                _close(os.path.join(parent, name))
            _close(parent)
        for item in self._directories():
            _close(os.path.join(self._bench, item.path))

    def _open_scripts(self) -> None:
        readable = [path for kind, path in self._scripts.items() if path is not None and kind != "run"]
        readable += [item.path for item in self._support if not item.is_directory and item.named_by - {"run"}]
        for path in readable:
            full = os.path.join(self._bench, path)
            executable = path in self._scripts.values() or os.stat(full).st_mode & 0o100
            give(full, 0o750 if executable else 0o640, self._runner)
            self._open_way_to(os.path.dirname(path))
        self._open_way_to("")

    def _open_way_to(self, folder: str) -> None:
        """Let the runner pass through the directories above a file; it cannot list them."""
        while True:
            give(os.path.join(self._bench, folder), 0o710, self._runner)
            if not folder:
                return
            folder = os.path.dirname(folder)


def script_argv(path: str, arguments: Sequence[str] = ()) -> list[str]:
    """How to execute a script: directly, or by the shell when its first line names no interpreter."""
    with open(path, "rb") as file:
        direct = file.read(4).startswith((b"#!", b"\x7fELF"))
    return [path, *arguments] if direct else ["/bin/sh", path, *arguments]


def _entries(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _empty(path: str, runner: Account) -> None:
    """Remove what is in a support directory. In place: an image's directory cannot be renamed on every file system."""
    _close(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not empty_directory(fd, runner):
            raise WorkspaceError(f"support directory {path} could not be emptied")
    finally:
        os.close(fd)


def _close(path: str) -> None:
    """Make a path root's and closed to everybody else. A link keeps its mode: it has none."""
    if not is_isolated():
        return
    if os.path.islink(path):
        os.lchown(path, 0, 0)
        return
    os.chown(path, 0, 0)
    os.chmod(path, 0o700 if os.path.isdir(path) or os.stat(path).st_mode & 0o100 else 0o600)
