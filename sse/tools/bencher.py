"""The daemon's checks. Each runs in a private copy of the source tree, or with ``grading`` of the graded copy.

``grading`` works on the admin socket only. SDKError when the task has no such check or the difficulty level withholds
it; a check that ran and failed is a result whose code is not 0.
"""

from __future__ import annotations

import os

from sse.daemon import current
from sse.error import SDKError
from sse.helper import ScriptResult, script_result


def build(*, grading: bool = False) -> ScriptResult:
    """Build the project and keep the build for ``run_poc``."""
    return _run("build", {"grading": grading})


def run_poc(poc: str | os.PathLike[str], *, grading: bool = False) -> ScriptResult:
    """Run one proof of concept against the last build; code 0 means that it no longer triggers, -1 no build.

    ``grading`` changes nothing: the last build decides what it runs on.
    """
    return _run("run_poc", {"poc": os.fspath(poc)})


def function_test(*, grading: bool = False) -> ScriptResult:
    """Run the project's tests."""
    return _run("function_test", {"grading": grading})


def intent_test(*, grading: bool = False) -> ScriptResult:
    """Apply the hidden tests and run the project's tests; code 1 when they do not apply to the agent's changes."""
    try:
        return _run("intent_test", {"grading": grading})
    except SDKError as error:
        if error.message.startswith("git apply failed"):
            return ScriptResult(1, "", error.message)
        raise


def _run(action: str, argument: dict[str, object]) -> ScriptResult:
    return script_result(current().tool("bencher", action, argument))
