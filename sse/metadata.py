"""The public view of a task, as the daemon serves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sse.error import SDKError


@dataclass(frozen=True)
class TaskDescription:
    """What the agent is told. ``crash_report`` holds the reports' texts in the order of the task config."""

    issue: str | None
    crash_report: list[str] | None
    bug_description: str | None


@dataclass(frozen=True)
class Metadata:
    """A task without its reference material. ``poc`` are paths that only the daemon can read."""

    id: str
    project: str
    language: str
    source: Path
    task_description: TaskDescription
    poc: list[Path]
    build_script: str | None = None
    test_script: str | None = None


@dataclass(frozen=True)
class Capabilities:
    """Which checks the task has; the difficulty level may still withhold one from the agent."""

    can_build: bool
    can_run_poc: bool
    poc_count: int
    has_function_test: bool
    has_intent_test: bool


def parse_metadata(data: Mapping[str, Any]) -> Metadata:
    """The metadata in the body of ``GET /project``; SDKError names the field that is not as expected.

    Fields that this version does not know are left aside.
    """
    description = _field(data, "task_description", Mapping)
    return Metadata(
        id=_field(data, "id", str),
        project=_field(data, "project", str),
        language=_field(data, "language", str),
        source=Path(_field(data, "source", str)),
        task_description=TaskDescription(
            issue=_optional(description, "issue", str),
            crash_report=_texts(description, "crash_report"),
            bug_description=_optional(description, "bug_description", str),
        ),
        poc=[Path(path) for path in _texts(data, "poc") or ()],
        build_script=_optional(data, "build_script", str),
        test_script=_optional(data, "test_script", str),
    )


def parse_capabilities(data: Mapping[str, Any]) -> Capabilities:
    """The capabilities in the body of ``GET /capabilities``; SDKError names the field that is not as expected."""
    return Capabilities(
        can_build=_field(data, "can_build", bool),
        can_run_poc=_field(data, "can_run_poc", bool),
        poc_count=_field(data, "poc_count", int),
        has_function_test=_field(data, "has_function_test", bool),
        has_intent_test=_field(data, "has_intent_test", bool),
    )


def _field(data: Mapping[str, Any], name: str, kind: type) -> Any:
    value = data.get(name)
    if not isinstance(value, kind):
        raise SDKError(f"expected {name} as {kind.__name__} in the daemon's answer, found {type(value).__name__}")
    return value


def _optional(data: Mapping[str, Any], name: str, kind: type) -> Any:
    return None if data.get(name) is None else _field(data, name, kind)


def _texts(data: Mapping[str, Any], name: str) -> list[str] | None:
    values = _optional(data, name, list)
    if values is not None and not all(isinstance(value, str) for value in values):
        raise SDKError(f"expected only texts in {name} of the daemon's answer")
    return values  # type: ignore[no-any-return]
