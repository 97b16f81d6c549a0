"""Services without processes: what the app is tested with over WebTest."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from daemon.access import Access, Kind
from daemon.actions import ActionQueue
from daemon.answers import encode
from daemon.app import create_app
from daemon.budget import Budget
from daemon.http_handler import LISTENER_KEY
from daemon.services import Services
from daemon.settings import read_settings
from daemon.tools import Tools
from grading.dialog import DialogFile
from shell.accounts import current_account
from shell.command import CommandResult
from shell.errors import InvalidArgumentError, SSEBenchError
from shell.stop import StopSignal
from tasks.config import load_task
from tasks.metadata import capabilities, metadata
from tests.support.toy_task import lay_out

with warnings.catch_warnings():
    # WebOb, below WebTest, imports a module that Python 3.13 drops (and that legacy-cgi then replaces).
    warnings.simplefilter("ignore", DeprecationWarning)
    from webtest import TestApp


@dataclass
class FakePhase:
    """An agent phase that ends by assignment."""

    ended: bool = False

    def end(self) -> None:
        self.ended = True


@dataclass
class FakeShell:
    """Echoes commands."""

    seen: list[tuple[str, float | None]] = field(default_factory=list)

    def execute(self, command: str, *, timeout_s: float | None, stop: StopSignal) -> CommandResult:
        self.seen.append((command, timeout_s))
        return CommandResult(0, command.encode(), b"")


@dataclass
class FakeBencher:
    """Notes what it is asked for."""

    seen: list[Any] = field(default_factory=list)

    def new_session(self) -> None:
        self.seen.append("new_session")

    def build(self, *, grading: bool, stop: StopSignal) -> CommandResult:
        self.seen.append(("build", grading))
        return CommandResult(0, b"built \xff\n", b"")

    def function_test(self, *, grading: bool, stop: StopSignal) -> CommandResult:
        self.seen.append(("function_test", grading))
        return CommandResult(1, b"", b"failed\n")

    def intent_test(self, *, grading: bool, stop: StopSignal) -> CommandResult:
        self.seen.append(("intent_test", grading))
        raise SSEBenchError("git apply failed: no")

    def run_poc(self, poc: str, *, stop: StopSignal) -> CommandResult:
        self.seen.append(("run_poc", poc))
        if "two" in poc:
            raise InvalidArgumentError(f"poc: {poc} is none of the task's")
        return CommandResult(-1, b"", b"nothing is built\n")


@dataclass
class FakeCapture:
    """No changes, one changed file."""

    def diff(self) -> bytes:
        return b"diff \xff\n"

    def files(self) -> list[Any]:
        return []


@dataclass
class FakeSubmission:
    """Prepares nothing."""

    prepared: int = 0

    def prepare(self) -> None:
        self.prepared += 1

    def final_diff(self) -> bytes:
        return b""


def fake_services(root: Path, *, difficulty: int = 0) -> Services:
    """Services over fakes, on a toy task below ``root``."""
    toy = lay_out(root, None)
    (root / "archive").mkdir()
    (root / "results").mkdir()
    settings = read_settings(
        {
            "SSE_BENCH_PATH": str(toy.bench),
            "SSE_ARCHIVE": str(root / "archive"),
            "SSE_RESULTS": str(root / "results"),
            "SSE_DIFFICULTY": str(difficulty),
        }
    )
    task = load_task(settings.bench_path)
    phase, shell, bencher = cast(Any, FakePhase()), cast(Any, FakeShell()), cast(Any, FakeBencher())
    return Services(
        settings=settings,
        task=task,
        access=Access(settings.difficulty, phase),
        phase=phase,
        actions=ActionQueue(),
        shell=shell,
        bencher=bencher,
        capture=cast(Any, FakeCapture()),
        submission=cast(Any, FakeSubmission()),
        dialog=DialogFile(settings.archive, current_account()),
        tools=Tools(bencher, shell),
        unread=Budget(1_000_000),
        metadata=encode(metadata(task, settings.bench_path)),
        capabilities=encode(capabilities(task)),
    )


def client(services: Services, kind: Kind) -> TestApp:
    """A WebTest client of one kind of listener."""
    return TestApp(create_app(services), extra_environ={LISTENER_KEY: kind})
