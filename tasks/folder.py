"""A task's and a dataset's source folders: what is in them, and every problem of them.

Layout: ``<dataset>/<task id>/Dockerfile`` and ``<dataset>/<task id>/sse/...``. The Dockerfile copies the files of
``sse/`` to /ssebench in the image, where the paths of the config are valid.

Distrusts: the folder, which may come from anyone; links are refused, nothing of it is run.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from marshmallow import ValidationError

from tasks.config import InvalidTaskError, Problem, Task, flat_errors, named_files, parse_config
from tasks.dockerfile import Dockerfile, parse_dockerfile, placed
from tasks.fields import shown
from tasks.paths import PathError, read_regular
from tasks.schemas import ARCHITECTURES, ID_EXPECTED, ID_PATTERN, DatasetSchema
from tasks.yamlfile import MAX_BYTES, YamlError, load_yaml

DATASET_FILE = "dataset.yaml"
LOCK_FILE = "images.lock.json"
MANIFEST_FILE = "manifest.json"
BENCH = "/ssebench"
CONFIG = "sse/config.yaml"

_REGISTRY = "SSEBENCH_REGISTRY"
_BASE = re.compile(
    r"\$\{SSEBENCH_REGISTRY\}/(?P<base>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})|@sha256:[0-9a-f]{64}))\Z"
)


@dataclass(slots=True)
class TaskFolder:
    """One task folder as found. ``task`` is None when its config is not valid; ``problems`` are below the folder.

    ``in_image`` tells for each path in the image which of ``files`` it is; None when the Dockerfile cannot be read.
    """

    path: str
    name: str
    files: list[str] = field(default_factory=list)
    in_image: dict[str, str] | None = None
    base: str | None = None
    arch: list[str] = field(default_factory=list)
    task: Task | None = None
    problems: list[Problem] = field(default_factory=list)

    def source_of(self, config_path: str) -> str | None:
        """The file of this folder that is ``config_path`` in the image's task directory."""
        return (self.in_image or {}).get(posixpath.normpath(f"{BENCH}/{config_path}"))

    def read(self, config_path: str) -> bytes:
        """The bytes of a file that the config names; InvalidTaskError when there is none."""
        source = self.source_of(config_path)
        try:
            return read_regular(self.path, source if source is not None else config_path)
        except PathError as problem:
            raise InvalidTaskError([Problem(f"{self.name}/{config_path}", "", str(problem))]) from None


@dataclass(slots=True)
class DatasetFolder:
    """A dataset folder as found; ``problems`` are its own, each task has its own too."""

    path: str
    name: str
    version: str | None
    arch: list[str]
    tasks: list[TaskFolder]
    problems: list[Problem]

    def all_problems(self) -> list[Problem]:
        """Every problem of the dataset and of its tasks, files named from the dataset's folder."""
        return self.problems + [problem.below(task.name) for task in self.tasks for problem in task.problems]


def read_dataset(path: str) -> DatasetFolder:
    """Read and check a dataset's folder; OSError when ``path`` is no directory."""
    entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    problems: list[Problem] = []
    settings = _read_settings(path, problems)
    tasks = []
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_symlink():
            problems.append(Problem(entry.name, "", "links are not accepted; expected a folder or a file"))
        elif entry.is_dir():
            tasks.append(read_task_folder(entry.path))
    if not tasks:
        problems.append(Problem("", "", "expected at least one task folder"))
    _check_unique(tasks)
    name = os.path.basename(os.path.abspath(path))
    if not _is_id(name):
        problems.append(
            Problem("", "", f"the folder's name is the dataset's: expected {ID_EXPECTED}, found {shown(name)}")
        )
    return DatasetFolder(path, name, settings.get("version"), settings.get("arch") or ["amd64"], tasks, problems)


def read_task_folder(path: str) -> TaskFolder:
    """Read and check one task's folder."""
    folder = TaskFolder(path, os.path.basename(os.path.abspath(path)))
    if not _is_id(folder.name):
        folder.problems.append(Problem("", "", f"the folder's name is the task's id: expected {ID_EXPECTED}"))
    folder.files = sorted(_walk(path, folder.problems))
    _read_dockerfile(folder)
    _read_config(folder)
    return folder


def _is_id(name: str) -> bool:
    return re.fullmatch(ID_PATTERN, name) is not None


def _read_settings(path: str, problems: list[Problem]) -> dict[str, Any]:
    try:
        data = load_yaml(read_regular(path, DATASET_FILE, limit_bytes=MAX_BYTES))
        loaded: dict[str, Any] = DatasetSchema().load(data)
        return loaded
    except (PathError, YamlError) as problem:
        problems.append(Problem(DATASET_FILE, "", str(problem)))
    except ValidationError as error:
        problems.extend(Problem(DATASET_FILE, key, text) for key, text in flat_errors(error.messages))
    return {}


def _check_unique(tasks: list[TaskFolder]) -> None:
    """Image names are lowercase, so two ids that differ only in case would be one image."""
    seen: dict[str, str] = {}
    for task in tasks:
        other = seen.setdefault(task.name.lower(), task.name)
        if other != task.name:
            task.problems.append(Problem("", "id", f"differs from {other} only in case; expected another id"))


def _walk(path: str, problems: list[Problem]) -> Iterator[str]:
    """Every regular file below, as a path with slashes; links, special files and what cannot be read are problems."""
    folders = [""]
    while folders:
        below = folders.pop()
        try:
            entries = sorted(os.scandir(os.path.join(path, below)), key=lambda entry: entry.name)
        except OSError as error:
            problems.append(Problem(_printable(below), "", f"cannot be read: {error.strerror}"))
            continue
        for entry in entries:
            name = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append(name)
            elif not entry.is_file(follow_symlinks=False):
                kind = "a link" if entry.is_symlink() else "no regular file"
                problems.append(Problem(_printable(name), "", f"is {kind}; expected only folders and regular files"))
            elif _printable(name) != name:
                problems.append(Problem(_printable(name), "", "expected a name in UTF-8 without control characters"))
            else:
                yield name


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name)


def _read_dockerfile(folder: TaskFolder) -> None:
    try:
        text = read_regular(folder.path, "Dockerfile", limit_bytes=MAX_BYTES).decode("utf-8-sig")
    except PathError as problem:
        folder.problems.append(Problem("Dockerfile", "", str(problem)))
        return
    except UnicodeDecodeError:
        folder.problems.append(Problem("Dockerfile", "", "expected UTF-8"))
        return
    dockerfile = parse_dockerfile(text)
    _check_bases(dockerfile, folder)
    _place_files(dockerfile, folder)


def _check_bases(dockerfile: Dockerfile, folder: TaskFolder) -> None:
    def problem(key: str, message: str) -> None:
        folder.problems.append(Problem("Dockerfile", key, message))

    if _REGISTRY not in dockerfile.early_args:
        problem(f"ARG {_REGISTRY}", "expected this line before the first FROM")
    if not dockerfile.bases:
        problem("FROM", f"expected FROM ${{{_REGISTRY}}}/<base>:<tag or digest>, found none")
        return
    stages: set[str] = {"scratch"}
    for base in dockerfile.bases[:-1]:
        if base.image.lower() not in stages and not re.search(r"@sha256:|:(?!latest\Z)[^/:]+\Z", base.image):
            problem("FROM", f"line {base.line}: expected a tag other than latest or a digest, found {base.image}")
        stages.add(base.stage or "")
    last = dockerfile.bases[-1]
    found = _BASE.match(last.image)
    if found is None or found.group("tag") == "latest":
        expected = f"${{{_REGISTRY}}}/<base>:<tag or digest>, the tag not latest"
        problem("FROM", f"line {last.line}: expected {expected}, found {last.image}")
        return
    folder.base = found.group("base")
    if last.platform is None:
        return
    arch = last.platform.removeprefix("linux/")
    if arch in ARCHITECTURES:
        folder.arch = [arch]
    elif "$" not in last.platform:  # a variable is the builder's to set
        expected = " or ".join(f"linux/{known}" for known in ARCHITECTURES)
        problem("FROM", f"line {last.line}: expected the platform {expected}, found {last.platform}")


def _place_files(dockerfile: Dockerfile, folder: TaskFolder) -> None:
    """Work out which file is where in the image; what belongs to the grader must be in /ssebench only."""
    folders = {parent for file in folder.files for parent in _folders_of(file)}
    in_image: dict[str, str] = {}
    for copy in dockerfile.copies:
        for source in copy.sources:
            put = placed(copy, source, folder.files, lambda path: path == "." or path in folders)
            if not put and "$" not in source and "://" not in source and not source.startswith("<<"):
                message = f"line {copy.line}: expected a file or folder of the task, found none named {source}"
                folder.problems.append(Problem("Dockerfile", "COPY", message))
            in_image.update(put)
    folder.in_image = in_image
    outside = sorted(f for place, f in in_image.items() if f.startswith("sse/") and not _is_bench(place))
    for file in outside:
        message = f"expected {file} to be copied to {BENCH} and nowhere else: it is not for the agent"
        folder.problems.append(Problem("Dockerfile", "COPY", message))


def _is_bench(place: str) -> bool:
    return place.startswith(f"{BENCH}/")


def _folders_of(file: str) -> Iterator[str]:
    while file := posixpath.dirname(file):
        yield file


def _read_config(folder: TaskFolder) -> None:
    try:
        data = read_regular(folder.path, CONFIG, limit_bytes=MAX_BYTES)
        task = parse_config(data, CONFIG)
    except PathError as problem:
        folder.problems.append(Problem(CONFIG, "", str(problem)))
        return
    except InvalidTaskError as error:
        folder.problems.extend(error.problems)
        return
    if task.id != folder.name:
        folder.problems.append(Problem(CONFIG, "id", f"expected the folder's name {folder.name}, found {task.id}"))
    folder.task = task
    if folder.in_image is None:
        return  # what the Dockerfile copies is not known; that it cannot be read is a problem already
    if folder.source_of("config.yaml") != CONFIG:
        folder.problems.append(Problem("Dockerfile", "COPY", f"expected {CONFIG} to be copied to {BENCH}/config.yaml"))
    for key, path in named_files(task):
        _check_named_file(folder, key, path)


def _check_named_file(folder: TaskFolder, key: str, path: str) -> None:
    source = folder.source_of(path)
    if source is None:
        expected = f"expected a COPY in the Dockerfile of a file inside sse/ to {BENCH}/{path}"
        folder.problems.append(Problem(CONFIG, key, f"{path} is not in the image; {expected}"))
    elif not source.startswith("sse/"):
        folder.problems.append(Problem(CONFIG, key, f"{path} is a copy of {source}; expected a file inside sse/"))
    elif key.startswith("scripts."):
        folder.problems.extend(_check_script(folder.path, source))


def _check_script(path: str, source: str) -> Iterator[Problem]:
    try:
        data = read_regular(path, source)
    except PathError as problem:
        yield Problem(source, "", str(problem))
        return
    if not data.startswith(b"#!/"):
        yield Problem(source, "line 1", "expected a shebang such as #!/bin/bash")
    if b"\r" in data:
        yield Problem(source, f"line {data[: data.index(13)].count(10) + 1}", "expected LF line ends, found CR")
    if not os.lstat(os.path.join(path, source)).st_mode & stat.S_IXUSR:
        yield Problem(source, "mode", "expected an execute bit; set it with chmod +x")
