"""The verdict: what counts as passed, failed and not graded."""

from __future__ import annotations

import pytest

from sse.grading import MAX_LOG_CHARACTERS, PatchResult


@pytest.mark.parametrize(
    "result, status",
    [
        (PatchResult(), "error"),
        (PatchResult(error_msg="Timeout (5s)"), "error"),
        (PatchResult(build_success=True), "passed"),
        (PatchResult(True, 2, 2, True, True), "passed"),
        (PatchResult(True, 1, 2, True, True), "failed"),
        (PatchResult(True, 0, 0, None, None), "passed"),
        (PatchResult(True, 2, 2, False, True), "failed"),
        (PatchResult(True, 2, 2, True, False), "failed"),
        (PatchResult(False), "failed"),
        (PatchResult(None, None, None, False, None), "failed"),
    ],
)
def test_the_status_follows_from_the_checks(result: PatchResult, status: str) -> None:
    assert result.status() == status
    assert result.is_fully_successful() == (status == "passed")
    assert result.to_dict()["status"] == status


def test_the_first_failure_is_kept() -> None:
    result = PatchResult()
    result.mark_failure("first", "a")
    result.mark_failure("second", "b")
    assert (result.error_msg, result.error_log) == ("first", "a")


def test_a_long_log_keeps_both_ends() -> None:
    result = PatchResult()
    result.mark_failure("long", "a" * MAX_LOG_CHARACTERS + "z" * 10)
    log = result.error_log or ""
    assert log.startswith("aaa") and log.endswith("zzz") and "\n[10 characters left out]\n" in log
