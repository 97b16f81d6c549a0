"""The views of a task that the daemon serves: metadata and capabilities for everyone, the patch for the grader."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tasks.config import Task
from tasks.paths import PathError, find_regular, read_regular
from tasks.problems import InvalidTaskError, Problem


def metadata(task: Task, bench_path: str) -> dict[str, Any]:
    """The body of ``GET /project``: the config without the grader's material, file contents instead of paths.

    Bytes that are not UTF-8 become U+FFFD. InvalidTaskError when a file cannot be read any more.
    """
    return metadata_from(task, bench_path, lambda path: _read(bench_path, path))


def metadata_from(task: Task, bench_path: str, read: Callable[[str], bytes]) -> dict[str, Any]:
    """The same where the files lie elsewhere: ``read`` gives the bytes for a path of the config."""

    def text(path: str | None) -> str | None:
        return None if path is None else read(path).decode("utf-8", errors="replace")

    description = task.description
    reports = [text(path) for path in description.crash_report]
    return {
        "id": task.id,
        "project": task.project,
        "language": task.language,
        "source": task.source,
        "task_description": {
            "issue": description.issue,
            "crash_report": reports or None,
            "bug_description": description.bug_description,
        },
        "poc": [os.path.join(bench_path, path) for path in task.files.poc],
        "build_script": text(task.scripts.build),
        "test_script": text(task.scripts.test),
    }


def capabilities(task: Task) -> dict[str, Any]:
    """The body of ``GET /capabilities``: which checks the scripts and files of the task make possible."""
    scripts, files = task.scripts, task.files
    return {
        "can_build": scripts.build is not None,
        "can_run_poc": scripts.run is not None and bool(files.poc),
        "poc_count": len(files.poc),
        "has_function_test": scripts.test is not None,
        "has_intent_test": scripts.test is not None and files.future_test is not None,
    }


def checks(task: Task) -> list[str]:
    """The names of the checks a task has, in the order the grader runs them."""
    has = capabilities(task)
    available = {
        "build": has["can_build"],
        "poc": has["can_run_poc"],
        "function_test": has["has_function_test"],
        "intent_test": has["has_intent_test"],
    }
    return [name for name, present in available.items() if present]


def reference_patch(task: Task, bench_path: str) -> bytes:
    """The upstream fix, byte for byte; empty when the task has none or it cannot be read."""
    if task.files.patch is None:
        return b""
    try:
        path = find_regular(bench_path, task.files.patch)
        return read_regular(bench_path, task.files.patch, limit_bytes=os.stat(path).st_size)
    except (PathError, OSError):
        return b""


def _read(bench_path: str, path: str) -> bytes:
    try:
        return read_regular(bench_path, path)
    except PathError as problem:
        raise InvalidTaskError([Problem(path, "", f"{bench_path}/{path} {problem}")]) from None
