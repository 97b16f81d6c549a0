"""The evaluator writes a result whatever happens, and never a pass that was not one."""

from __future__ import annotations

import json
import os
import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from grading import evaluator
from grading.evaluator import Limits, evaluate, grade_within, write_result
from sse.error import SDKError
from sse.grading import PatchResult


def run(tmp_path: Path, **environment: str) -> dict[str, Any]:
    code = evaluate({"SSE_RESULTS": str(tmp_path / "results"), **environment})
    assert code == 0
    content: dict[str, Any] = json.loads((tmp_path / "results" / "result.json").read_bytes())
    return content


def grade_as(monkeypatch: pytest.MonkeyPatch, outcome: PatchResult | BaseException) -> None:
    def grade() -> PatchResult:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(grade_within, "__defaults__", (grade,))


def test_a_grade_is_written_with_the_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grade_as(monkeypatch, PatchResult(True, 2, 2, True, True))
    content = run(tmp_path, AGENT_DURATION="77", SSE_METRIC_AGENT_TIMEOUT="")
    assert content == {
        "patch_result": {
            "status": "passed",
            "build_success": True,
            "pov_passed": 2,
            "pov_total": 2,
            "func_test_success": True,
            "intent_test_success": True,
            "error_msg": None,
            "error_log": None,
        },
        "runtime_result": {"agent_duration": 77, "agent_timeout": True, "evaluator_timeout": False},
    }


@pytest.mark.parametrize(
    "error, message",
    [
        (SDKError("the daemon is gone"), "Exception: the daemon is gone"),
        (RuntimeError(), "Exception: RuntimeError"),
        (SystemExit(3), "Exception: 3"),
        (MemoryError("much"), "Exception: much"),
    ],
)
def test_any_failure_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, message: str
) -> None:
    grade_as(monkeypatch, error)
    patch = run(tmp_path)["patch_result"]
    assert (patch["status"], patch["error_msg"], patch["build_success"]) == ("error", message, None)


def test_a_task_without_checks_is_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = PatchResult()
    nothing.mark_failure("No check ran")
    grade_as(monkeypatch, nothing)
    assert run(tmp_path)["patch_result"]["status"] == "error"


def test_the_time_limit_holds_for_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(grade_within, "__defaults__", (lambda: never.wait(60) and PatchResult(True),))
    content = run(tmp_path, TIMEOUT="1")
    never.set()
    assert content["patch_result"]["error_msg"] == "Timeout (1s)"
    assert content["patch_result"]["status"] == "error"
    assert content["runtime_result"]["evaluator_timeout"] is True


@pytest.mark.parametrize("name", ["TIMEOUT", "AGENT_DURATION"])
@pytest.mark.parametrize("value", ["\u0663", "0_0", "-1", "1.5", "x", " 1", "9999999999"])
def test_a_number_that_is_none_is_a_result_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    grade_as(monkeypatch, PatchResult(True))
    patch = run(tmp_path, **{name: value})["patch_result"]
    assert patch["status"] == "error" and patch["error_msg"].startswith(f"Exception: {name}: expected a whole number")


def test_the_duration_is_told_whatever_the_time_limit_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grade_as(monkeypatch, PatchResult(True))
    content = run(tmp_path, TIMEOUT="x", AGENT_DURATION="77")
    assert content["patch_result"]["status"] == "error"
    assert content["runtime_result"]["agent_duration"] == 77


def test_no_daemon_is_a_result(tmp_path: Path) -> None:
    content = run(tmp_path)
    assert content["patch_result"]["status"] == "error"
    assert content["patch_result"]["error_msg"].startswith("Exception: no daemon known")


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff",
        b"[" * 100_000,
        b'{"a": NaN}',
        b'{"a": 1e999}',
    ],
    ids=lambda data: data[:10],
)
def test_a_file_that_is_no_result_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    grade_as(monkeypatch, PatchResult(True))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "result.json").write_bytes(before)
    assert sorted(run(tmp_path)) == ["patch_result", "runtime_result"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_is_replaced_unopened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    grade_as(monkeypatch, PatchResult(True))
    (tmp_path / "results").mkdir()
    (tmp_path / "other").write_text('{"secret": 1}')
    if kind == "link":
        (tmp_path / "results" / "result.json").symlink_to("../other")
    else:
        os.mkfifo(tmp_path / "results" / "result.json")
    assert sorted(run(tmp_path)) == ["patch_result", "runtime_result"]
    assert (tmp_path / "results" / "result.json").lstat().st_mode & 0o170777 == 0o100600
    assert (tmp_path / "other").read_text() == '{"secret": 1}'


def test_what_ends_the_grade_is_its_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(grade_within, "__defaults__", (lambda: never.wait(60) and PatchResult(True),))
    outcomes: evaluator.Outcomes = queue.SimpleQueue()
    outcomes.put(RuntimeError("ended"))
    assert evaluate({"SSE_RESULTS": str(tmp_path)}, outcomes) == 0
    never.set()
    assert json.loads((tmp_path / "result.json").read_bytes())["patch_result"]["error_msg"] == "Exception: ended"


def test_fields_of_other_programs_stay(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text('{"cost": {"usd": 1.5}, "patch_result": {"old": 1}}')
    write_result(str(path), PatchResult(True), Limits(0, 0, False), False)
    content = json.loads(path.read_bytes())
    assert content["cost"] == {"usd": 1.5} and "old" not in content["patch_result"]
    assert os.listdir(tmp_path) == ["result.json"] and path.stat().st_mode & 0o777 == 0o600


def test_a_result_that_cannot_be_written_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grade_as(monkeypatch, PatchResult(True))
    (tmp_path / "results").write_text("a file, not a directory")
    assert evaluate({"SSE_RESULTS": str(tmp_path / "results")}) == 1
    assert capsys.readouterr().err.startswith("ssebench-evaluate: cannot write ")


def test_a_log_with_anything_in_it_is_json(tmp_path: Path) -> None:
    result = PatchResult(False)
    result.mark_failure("Build failed", "\ud800\0\u2028\x1b")
    write_result(str(tmp_path / "result.json"), result, Limits(0, 0, False), False)
    assert json.loads((tmp_path / "result.json").read_bytes())["patch_result"]["error_log"] == "\ud800\0\u2028\x1b"


def test_the_program_is_the_one_that_setup_names() -> None:
    setup = (Path(__file__).resolve().parents[3] / "setup.py").read_text("utf-8")
    assert f'"ssebench-evaluate = {evaluator.main.__module__}:{evaluator.main.__name__}"' in setup
