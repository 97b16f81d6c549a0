"""config.yaml to a ``Task``, with every problem listed.

Paths in a config are those of the image: relative to the task's directory there, /ssebench. The daemon reads that
directory; ``folder.py`` reads the same config from a dataset's source folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from marshmallow import ValidationError

from tasks.paths import PathError, find_regular, read_regular
from tasks.problems import InvalidTaskError, Problem
from tasks.schemas import ConfigSchema
from tasks.yamlfile import MAX_BYTES, YamlError, load_yaml

__all__ = [
    "CONFIG_FILE",
    "Files",
    "InvalidTaskError",
    "Problem",
    "Scripts",
    "Task",
    "TaskDescription",
    "load_task",
    "named_files",
    "parse_config",
]

CONFIG_FILE = "config.yaml"


@dataclass(frozen=True, slots=True)
class TaskDescription:
    """What the agent is told. ``crash_report`` are report files, the others texts."""

    issue: str | None
    crash_report: tuple[str, ...]
    bug_description: str | None


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts of the checks, relative to the task's directory; None where a task has none."""

    build: str | None
    run: str | None
    test: str | None


@dataclass(frozen=True, slots=True)
class Files:
    """What only the grader uses, relative to the task's directory."""

    patch: str | None
    poc: tuple[str, ...]
    future_test: str | None
    security_test: str | None
    intent_test: str | None


@dataclass(frozen=True, slots=True)
class Task:
    """One validated task."""

    id: str
    project: str
    repository: str
    language: str
    source: str
    description: TaskDescription
    scripts: Scripts
    files: Files
    sanitizer: str | None
    type: str | None
    binary: str | None
    trigger_commit: str | None
    patch_commit: str | None
    reference: tuple[str, ...]
    originality: str | None


def load_task(bench_path: str) -> Task:
    """The task whose files lie in ``bench_path``, laid out as in the image; InvalidTaskError lists all problems."""
    try:
        data = read_regular(bench_path, CONFIG_FILE, limit_bytes=MAX_BYTES)
    except PathError as problem:
        raise InvalidTaskError([Problem(CONFIG_FILE, "", f"{bench_path}/{CONFIG_FILE} {problem}")]) from None
    task = parse_config(data)
    problems = list(_missing_files(task, bench_path))
    if problems:
        raise InvalidTaskError(problems)
    return task


def parse_config(data: bytes, file: str = CONFIG_FILE) -> Task:
    """The task that the bytes of a config describe, its files unseen; ``file`` names it in problems."""
    try:
        loaded = ConfigSchema().load(load_yaml(data))
    except YamlError as error:
        raise InvalidTaskError([Problem(file, "", str(error))]) from None
    except ValidationError as error:
        raise InvalidTaskError([Problem(file, key, text) for key, text in flat_errors(error.messages)]) from None
    return _task(loaded)


def named_files(task: Task) -> Iterator[tuple[str, str]]:
    """(key, path) of every file that the config names, in the order of the keys."""
    scripts, files = task.scripts, task.files
    for index, report in enumerate(task.description.crash_report):
        yield f"task_description.crash_report[{index}]", report
    single = {
        "scripts.build": scripts.build,
        "scripts.run": scripts.run,
        "scripts.test": scripts.test,
        "files.patch": files.patch,
        "files.future_test": files.future_test,
        "files.security_test": files.security_test,
        "files.intent_test": files.intent_test,
    }
    yield from ((key, path) for key, path in single.items() if path is not None)
    for index, poc in enumerate(files.poc):
        yield f"files.poc[{index}]", poc


def flat_errors(messages: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(key, message) pairs of marshmallow's nested messages: ``files.poc[1]`` for the second proof of concept."""
    if isinstance(messages, dict):
        for name, inner in messages.items():
            yield from flat_errors(inner, _joined(key, name))
    elif isinstance(messages, list):
        for inner in messages:
            yield from flat_errors(inner, key)
    else:
        yield key, str(messages)


def _joined(key: str, name: Any) -> str:
    if isinstance(name, int):
        return f"{key}[{name}]"
    if name == "_schema":  # marshmallow's name for "the mapping as a whole"
        return key
    return f"{key}.{name}" if key else str(name)


def _missing_files(task: Task, bench_path: str) -> Iterator[Problem]:
    for key, path in named_files(task):
        try:
            find_regular(bench_path, path)
        except PathError as problem:
            yield Problem(CONFIG_FILE, key, f"{path} {problem}; expected a regular file inside {bench_path}")


def _task(loaded: dict[str, Any]) -> Task:
    description, files = loaded.pop("task_description"), loaded.pop("files")
    return Task(
        description=TaskDescription(**{**description, "crash_report": tuple(description["crash_report"] or ())}),
        scripts=Scripts(**loaded.pop("scripts")),
        files=Files(**{**files, "poc": tuple(files["poc"] or ())}),
        reference=tuple(loaded.pop("reference") or ()),
        **loaded,
    )
