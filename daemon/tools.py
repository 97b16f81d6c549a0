"""The tools of POST /tool/{name}: which exist, what each action takes and runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from marshmallow import Schema

from daemon import schemas
from daemon.access import Access, Kind
from grading.bencher import Bencher
from shell.command import CommandResult
from shell.errors import SSEBenchError
from shell.session import BashSession
from shell.stop import StopSignal

Run = Callable[[Mapping[str, Any], StopSignal], CommandResult]


class UnknownToolError(SSEBenchError):
    """No such tool."""


class UnknownActionError(SSEBenchError):
    """The tool has no such action."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action: the schema of its argument, and what runs it. ``gate`` is its name in the difficulty table."""

    schema: Schema
    run: Run
    gate: str | None = None


class Tools:
    """Looks actions up. Schemas are built once: building one costs more than a whole request."""

    def __init__(self, bencher: Bencher, shell: BashSession) -> None:
        grading, poc = schemas.GradingArgument(), schemas.PocArgument()
        self._bencher = {
            "build": Action(grading, lambda a, stop: bencher.build(grading=a["grading"], stop=stop), "build"),
            "run_poc": Action(poc, lambda a, stop: bencher.run_poc(a["poc"], stop=stop), "run_poc"),
            "function_test": Action(
                grading, lambda a, stop: bencher.function_test(grading=a["grading"], stop=stop), "function_test"
            ),
            "intent_test": Action(
                grading, lambda a, stop: bencher.intent_test(grading=a["grading"], stop=stop), "intent_test"
            ),
        }
        self._bash = Action(
            schemas.BashArgument(), lambda a, stop: shell.execute(a["command"], timeout_s=a.get("timeout"), stop=stop)
        )

    def find(self, tool: str, action: str) -> Action:
        """The action of a tool. bash has one, whatever it is called."""
        if tool == "bash":
            return self._bash
        if tool != "bencher":
            raise UnknownToolError(f"unknown tool: {tool}")
        found = self._bencher.get(action)
        if found is None:
            raise UnknownActionError(f"invalid action: {action}")
        return found


def check_gate(access: Access, action: Action, kind: Kind) -> None:
    """RefusedError when the difficulty level withholds ``action``."""
    if action.gate is not None:
        access.check_action(action.gate, kind)
