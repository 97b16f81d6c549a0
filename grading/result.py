"""result.json as the API shows it: exactly its own fields, or "not available".

Runs as: root. Distrusts: little, the directory is root's; but a half-written, foreign or huge file breaks nothing.
Promises: what comes back has the specified fields with the specified types and nothing else; a link, a FIFO or any
  other thing that is no regular file is never opened.
Checked by: tests/unit/grading/test_result.py.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from grading.strict_json import StrictJSONError, parse_json
from shell.turns import give_turn

MAX_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
_NOT_AVAILABLE: dict[str, Any] = {"available": False}

_BOOLEANS = ("build_success", "func_test_success", "intent_test_success")
_COUNTS = ("pov_passed", "pov_total")
_TEXTS = ("error_msg", "error_log")
_STATUSES = ("passed", "failed", "error")


class _OtherShapeError(Exception):
    """The file holds JSON that is no grade."""


def read_result(results_path: str) -> dict[str, Any]:
    """The body of GET /result."""
    data = _read(os.path.join(results_path, "result.json"))
    if data is None:
        return _NOT_AVAILABLE
    try:
        return _shown(parse_json(data))
    except (StrictJSONError, _OtherShapeError):
        return _NOT_AVAILABLE


def _read(path: str) -> bytes | None:
    """The bytes of a regular file; None when there is none, or it is larger than any grade."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= MAX_BYTES:
            return None
        parts = []
        while part := os.read(fd, _PIECE_BYTES):
            parts.append(part)
            give_turn()
    except OSError:
        return None
    finally:
        os.close(fd)
    data = b"".join(parts)
    return data if len(data) <= MAX_BYTES else None


def _shown(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _OtherShapeError
    shown: dict[str, Any] = {"available": True}
    patch, runtime = value.get("patch_result"), value.get("runtime_result")
    if patch is None and runtime is None:
        raise _OtherShapeError
    if patch is not None:
        shown["patch_result"] = _patch_result(patch)
    if runtime is not None:
        shown["runtime_result"] = _runtime_result(runtime)
    return shown


def _patch_result(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _OtherShapeError
    shown: dict[str, Any] = {}
    if "status" in value:
        # Results of older evaluators lack it; null is not among its values.
        if value["status"] not in _STATUSES:
            raise _OtherShapeError
        shown["status"] = value["status"]
    for names, kind in ((_BOOLEANS, bool), (_COUNTS, int), (_TEXTS, str)):
        for name in names:
            if name in value:
                shown[name] = _checked(value[name], kind, nullable=True)
    return shown


def _runtime_result(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _OtherShapeError
    return {
        "agent_duration": _checked(value.get("agent_duration"), int),
        "agent_timeout": _checked(value.get("agent_timeout"), bool),
        "evaluator_timeout": _checked(value.get("evaluator_timeout"), bool),
    }


def _checked(value: Any, kind: type, *, nullable: bool = False) -> Any:
    # type(), not isinstance: true is an int to Python.
    if type(value) is kind or (nullable and value is None):
        return value
    raise _OtherShapeError
