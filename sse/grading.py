"""The grade: every check the task has, in order, over the admin socket."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sse.daemon import current
from sse.error import SDKError
from sse.helper import ScriptResult
from sse.metadata import Capabilities, parse_capabilities, parse_metadata
from sse.tools import bencher

MAX_LOG_CHARACTERS = 1_000_000


@dataclass
class PatchResult:
    """What the checks found; None for a check the task does not have or that never ran.

    ``pov_passed`` counts the proofs of concept that no longer trigger. ``error_msg`` and ``error_log`` are the first
    failure and its output; when nothing was graded, ``error_msg`` says why.
    """

    build_success: bool | None = None
    pov_passed: int | None = None
    pov_total: int | None = None
    func_test_success: bool | None = None
    intent_test_success: bool | None = None
    error_msg: str | None = None
    error_log: str | None = None

    def status(self) -> str:
        """``error`` when no check ran and the patch was not judged, ``failed`` when any failed, else ``passed``."""
        verdicts = self._verdicts()
        if not verdicts:
            return "error"
        return "passed" if all(verdicts) else "failed"

    def is_fully_successful(self) -> bool:
        """Whether at least one check ran and all that ran passed."""
        return self.status() == "passed"

    def mark_failure(self, message: str, log: str | None = None) -> None:
        """Keep ``message`` and its output when they are the first failure."""
        if self.error_msg is None:
            self.error_msg = message
            self.error_log = None if log is None else _bounded(log)

    def to_dict(self) -> dict[str, Any]:
        """The fields and the status, as result.json has them."""
        return {"status": self.status(), **asdict(self)}

    def _verdicts(self) -> list[bool]:
        poc = None if self.pov_total is None else self.pov_passed == self.pov_total
        found = (self.build_success, poc, self.func_test_success, self.intent_test_success)
        return [verdict for verdict in found if verdict is not None]


def grade() -> PatchResult:
    """Prepare the graded copy and run every check on it.

    A patch that does not apply or does not build ends the grade; otherwise every check runs and the first failure is
    kept. SDKError when the daemon fails: that is no verdict about the patch.
    """
    daemon = current()
    capabilities = parse_capabilities(daemon.capabilities())
    result = PatchResult()
    try:
        daemon.prepare_grading()
    except SDKError as error:
        if not error.message.startswith("git apply failed"):
            raise
        return _not_applied(capabilities, error.message)
    if capabilities.can_build and not _build(result):
        return result
    if capabilities.can_run_poc:
        _run_all_poc(result, [str(path) for path in parse_metadata(daemon.project()).poc])
    if capabilities.has_function_test:
        tested = bencher.function_test(grading=True)
        result.func_test_success = _passed(result, tested, "Function test failed")
    if capabilities.has_intent_test:
        tested = bencher.intent_test(grading=True)
        result.intent_test_success = _passed(result, tested, "Intent test failed")
    if result.status() == "error":
        result.mark_failure("No check ran")
    return result


def _not_applied(capabilities: Capabilities, log: str) -> PatchResult:
    result = PatchResult(
        build_success=False,
        func_test_success=False if capabilities.has_function_test else None,
        intent_test_success=False if capabilities.has_intent_test else None,
    )
    result.mark_failure("Patch apply failed", log)
    return result


def _build(result: PatchResult) -> bool:
    result.build_success = _passed(result, bencher.build(grading=True), "Build failed")
    return result.build_success


def _run_all_poc(result: PatchResult, paths: list[str]) -> None:
    passed = [_passed(result, bencher.run_poc(path), f"PoC failed: {path}") for path in paths]
    result.pov_total, result.pov_passed = len(passed), sum(passed)


def _passed(result: PatchResult, ran: ScriptResult, message: str) -> bool:
    if not ran.is_success():
        result.mark_failure(message, ran.output())
    return ran.is_success()


def _bounded(log: str) -> str:
    """The log, its middle left out when it is long: the grade is read by tools that show it whole."""
    if len(log) <= MAX_LOG_CHARACTERS:
        return log
    half = MAX_LOG_CHARACTERS // 2
    return f"{log[:half]}\n[{len(log) - 2 * half} characters left out]\n{log[-half:]}"
