"""The program ``ssebench-evaluate``: grades over the admin socket and writes ``$SSE_RESULTS/result.json``.

Runs as: root, beside the daemon, after the agent phase.
Distrusts: nothing that it reads; what scripts printed is only stored.
Promises: a result is written whatever happens (a failing daemon, the time limit, a signal), in one step, so that a
  reader sees the old file or the whole new one; fields of other programs in it stay; a grade that did not finish is
  never ``passed``.
Does not promise: to stop a script that runs when the time limit is hit; the daemon does, when its client goes away.
Checked by: tests/unit/grading/test_evaluator.py, tests/system/test_evaluator.py.

Settings, all from the environment: SSE_DAEMON_SOCKET (the admin socket), SSE_RESULTS, TIMEOUT (seconds for the whole
grade, 0 for no limit), AGENT_DURATION (seconds), SSE_METRIC_AGENT_TIMEOUT (set at all: the agent ran out of time).
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from grading.state import write_durably
from sse.grading import PatchResult, grade
from tasks.paths import PathError, read_regular

RESULT_FILE = "result.json"
DEFAULT_RESULTS = "/var/lib/ssebench/results"
DEFAULT_TIMEOUT_S = 1800
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_MAX_SECONDS = 1_000_000_000
_MAX_RESULT_BYTES = 64 * 1024 * 1024

# What ends the wait for a grade: the grade, why there is none, or a signal. A queue that a signal handler may fill.
Outcomes = queue.SimpleQueue[PatchResult | BaseException]


class _EndedError(Exception):
    """A signal asked this program to end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the environment says about time, in seconds; ``timeout_s`` 0 is no limit."""

    timeout_s: int
    agent_duration_s: int
    agent_timeout: bool


def main() -> int:
    """Grade and write the result; 0 when a result was written, whatever it says."""
    parser = argparse.ArgumentParser(prog="ssebench-evaluate", description=__doc__.split("\n", 1)[0])
    parser.parse_args()
    outcomes: Outcomes = queue.SimpleQueue()

    def end(number: int, _frame: FrameType | None) -> None:
        # Nothing is raised: at any other moment than during the wait it would keep the result from being written.
        outcomes.put(_EndedError(f"the evaluator was ended by {signal.Signals(number).name}"))

    for number in _ENDING_SIGNALS:
        signal.signal(number, end)
    return evaluate(os.environ, outcomes)


def evaluate(environment: Mapping[str, str], outcomes: Outcomes | None = None) -> int:
    """Grade with the settings in ``environment`` and write the result; 0 when it was written, else 1.

    What is put into ``outcomes`` first is the grade; an exception there ends it.
    """
    path = os.path.join(environment.get("SSE_RESULTS") or DEFAULT_RESULTS, RESULT_FILE)
    limits = Limits(0, 0, "SSE_METRIC_AGENT_TIMEOUT" in environment)
    timed_out = False
    try:
        # The duration first: it is told also when the time limit is none.
        limits = replace(limits, agent_duration_s=_seconds(environment, "AGENT_DURATION", 0))
        limits = replace(limits, timeout_s=_seconds(environment, "TIMEOUT", DEFAULT_TIMEOUT_S))
        result, timed_out = grade_within(limits.timeout_s, outcomes or queue.SimpleQueue())
    except BaseException as error:
        result = _not_graded(f"Exception: {str(error) or type(error).__name__}")
    try:
        write_result(path, result, limits, timed_out)
    except (OSError, ValueError) as error:
        print(f"ssebench-evaluate: cannot write {path}: {error}", file=sys.stderr)
        return 1
    print(f"ssebench-evaluate: {result.status()}{f', {result.error_msg}' if result.error_msg else ''}, see {path}")
    return 0


def grade_within(
    timeout_s: int, outcomes: Outcomes, run: Callable[[], PatchResult] = grade
) -> tuple[PatchResult, bool]:
    """The first outcome, and whether it ran into the time limit; then it says nothing about the patch."""

    def work() -> None:
        try:
            outcomes.put(run())
        except BaseException as error:
            outcomes.put(error)

    # A thread that is left behind: it ends with the program, and its closed connection makes the daemon stop the check.
    threading.Thread(target=work, daemon=True).start()
    try:
        outcome = outcomes.get(timeout=timeout_s or None)
    except queue.Empty:
        return _not_graded(f"Timeout ({timeout_s}s)"), True
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome, False


def write_result(path: str, result: PatchResult, limits: Limits, timed_out: bool) -> None:
    """Put the grade into ``path``, beside what other programs wrote there."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    grade_fields = {
        "patch_result": result.to_dict(),
        "runtime_result": {
            "agent_duration": limits.agent_duration_s,
            "agent_timeout": limits.agent_timeout,
            "evaluator_timeout": timed_out,
        },
    }
    try:
        data = _spelled({**_foreign(path), **grade_fields})
    except (ValueError, RecursionError):  # what others wrote holds NaN, or is nested as deep as only a parser goes
        data = _spelled(grade_fields)
    write_durably(path, data)


def _spelled(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2, allow_nan=False).encode("ascii") + b"\n"


def _foreign(path: str) -> dict[str, Any]:
    """The object that is in the file already; empty when there is none or it is not JSON."""
    try:
        content = json.loads(read_regular(os.path.dirname(path), RESULT_FILE, limit_bytes=_MAX_RESULT_BYTES))
    except (PathError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _seconds(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name)
    if value is None or value == "":
        return default
    if re.fullmatch("[0-9]{1,10}", value) is None or int(value) > _MAX_SECONDS:
        raise ValueError(f"{name}: expected a whole number of seconds up to {_MAX_SECONDS}, found {value!r}")
    return int(value)


def _not_graded(message: str) -> PatchResult:
    result = PatchResult()
    result.mark_failure(message)
    return result


if __name__ == "__main__":
    sys.exit(main())
