"""result.json: exactly the specified fields, or not available."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from daemon import schemas
from grading import result as module
from grading.result import read_result

PATCH = {
    "status": "passed",
    "build_success": True,
    "pov_passed": 2,
    "pov_total": 2,
    "func_test_success": True,
    "intent_test_success": None,
    "error_msg": None,
    "error_log": None,
}
RUNTIME = {"agent_duration": 12, "agent_timeout": False, "evaluator_timeout": False}
GRADE = {"patch_result": PATCH, "runtime_result": RUNTIME}


def shown(folder: Path, value: Any) -> dict[str, Any]:
    """What is shown of a result.json that holds ``value``, or these bytes."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    (folder / "result.json").write_bytes(data)
    return read_result(str(folder))


def test_a_grade_is_shown_whole(tmp_path: Path) -> None:
    assert shown(tmp_path, GRADE) == {"available": True, **GRADE}


def test_without_a_file_or_a_directory_nothing_is_available(tmp_path: Path) -> None:
    assert read_result(str(tmp_path)) == {"available": False}
    assert read_result(str(tmp_path / "nothing")) == {"available": False}


UNUSABLE = [
    b"",
    b" ",
    b"{",
    json.dumps(GRADE).encode()[:-1],
    b"null",
    b"[]",
    b'"passed"',
    b"{}",
    b'{"other":1}',
    b"\xff" + json.dumps(GRADE).encode(),
    json.dumps(GRADE | {"x": float("nan")}).encode(),
    json.dumps(GRADE).encode() + b"x",
    b'{"patch_result":{},"patch_result":{}}',
    GRADE | {"patch_result": []},
    GRADE | {"patch_result": "passed"},
    GRADE | {"runtime_result": {}},
    GRADE | {"runtime_result": RUNTIME | {"agent_duration": 1.5}},
    GRADE | {"runtime_result": RUNTIME | {"agent_timeout": 0}},
    GRADE | {"patch_result": PATCH | {"status": "great"}},
    GRADE | {"patch_result": PATCH | {"status": None}},
    GRADE | {"patch_result": PATCH | {"status": []}},
    GRADE | {"patch_result": PATCH | {"build_success": "yes"}},
    GRADE | {"patch_result": PATCH | {"pov_passed": True}},
    GRADE | {"patch_result": PATCH | {"error_msg": 7}},
]


@pytest.mark.parametrize("value", UNUSABLE, ids=range(len(UNUSABLE)))
def test_what_cannot_be_understood_is_not_available(tmp_path: Path, value: Any) -> None:
    assert shown(tmp_path, value) == {"available": False}


def test_fields_of_other_programs_are_left_out(tmp_path: Path) -> None:
    value = {
        "patch_result": PATCH | {"score": 1},
        "runtime_result": RUNTIME | {"host": "x"},
        "available": False,
        "agent": {"name": "x"},
    }
    assert shown(tmp_path, value) == {"available": True, **GRADE}


@pytest.mark.parametrize("part", ["patch_result", "runtime_result"])
def test_half_a_grade_is_shown_as_far_as_it_goes(tmp_path: Path, part: str) -> None:
    assert shown(tmp_path, {part: GRADE[part]}) == {"available": True, part: GRADE[part]}
    other = "runtime_result" if part == "patch_result" else "patch_result"
    assert shown(tmp_path, {part: GRADE[part], other: None}) == {"available": True, part: GRADE[part]}


def test_results_of_older_evaluators_lack_fields(tmp_path: Path) -> None:
    assert shown(tmp_path, {"patch_result": {"build_success": True}}) == {
        "available": True,
        "patch_result": {"build_success": True},
    }


def test_a_long_log_is_shown_whole_and_one_beyond_reason_is_not_read(tmp_path: Path) -> None:
    value = {"patch_result": PATCH | {"error_log": "é\n" * 3_000_000}}
    assert shown(tmp_path, value)["patch_result"] == value["patch_result"]
    (tmp_path / "result.json").write_bytes(b" ")
    os.truncate(tmp_path / "result.json", module.MAX_BYTES + 1)
    assert read_result(str(tmp_path)) == {"available": False}


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_is_no_regular_file_is_never_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "result.json"
    if kind == "link":
        (tmp_path / "real").write_text(json.dumps(GRADE))
        path.symlink_to(tmp_path / "real")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert read_result(str(tmp_path)) == {"available": False}


def test_the_fields_are_those_of_the_api() -> None:
    names = {"status", *module._BOOLEANS, *module._COUNTS, *module._TEXTS}
    assert names == set(schemas.PatchResult().fields)
    assert set(RUNTIME) == set(schemas.RuntimeResult().fields)
