"""A bencher and an agent phase on a toy task, in the test's own process: no HTTP between the test and them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grading.bencher import Bencher
from grading.phase import AgentPhase
from grading.state import open_state
from shell.accounts import Account
from shell.command import CommandResult, run_command
from shell.processes import end_processes
from shell.stop import StopSignal
from tasks.config import load_task
from tests.support.live import scratch
from tests.support.toy_task import ToyTask, lay_out
from tests.support.users import TestUsers


@dataclass
class Checks:
    """A started bencher with everything around it; the checks run without a stop signal of their own."""

    root: Path
    toy: ToyTask
    users: TestUsers
    phase: AgentPhase
    bencher: Bencher

    def build(self, *, grading: bool = False, stop: StopSignal | None = None) -> CommandResult:
        return self.bencher.build(grading=grading, stop=stop or StopSignal())

    def run_poc(self, poc: str = "pocs/one.txt", *, stop: StopSignal | None = None) -> CommandResult:
        return self.bencher.run_poc(poc, stop=stop or StopSignal())

    def function_test(self, *, grading: bool = False, stop: StopSignal | None = None) -> CommandResult:
        return self.bencher.function_test(grading=grading, stop=stop or StopSignal())

    def intent_test(self, *, grading: bool = False, stop: StopSignal | None = None) -> CommandResult:
        return self.bencher.intent_test(grading=grading, stop=stop or StopSignal())

    def as_agent(self, script: str) -> CommandResult:
        """Run a shell script as the agent in the source tree."""
        return as_user(self.users.agent, script, str(self.toy.source))

    def as_runner(self, script: str) -> CommandResult:
        """Run a shell script as the runner in /."""
        return as_user(self.users.runner, script)

    def sessions(self) -> list[Path]:
        """The session directories of the runner, the trash aside."""
        return [path for path in (self.root / "runner").iterdir() if path.name != "trash"]


def as_user(account: Account, script: str, folder: str = "/") -> CommandResult:
    """Run a bash script as ``account`` with an ordinary environment."""
    return run_command(
        ["/bin/bash", "-c", script],
        account=account,
        cwd=folder,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": account.home, "LC_ALL": "C.UTF-8"},
        limit_bytes=1 << 20,
        timeout_s=60,
    )


def make_checks(
    root: Path,
    toy: ToyTask,
    users: TestUsers,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    fresh: bool = False,
) -> Checks:
    """Build and start everything on a task that is laid out."""
    task = load_task(str(toy.bench))
    archive = root / "archive"
    archive.mkdir(exist_ok=True)
    os.chown(archive, users.agent.uid, users.agent.gid)
    state = open_state(str(root / "state"), task_id=task.id, source=task.source, fresh=fresh)
    phase = AgentPhase(state, users.agent, [task.source, str(archive)])
    bencher = Bencher(
        task,
        str(toy.bench),
        str(toy.clone),
        str(root / "runner"),
        str(root / "results"),
        users.agent,
        users.runner,
        os.environ if environment is None else environment,
        limit_bytes=1 << 20,
        timeout_s=timeout_s,
        phase=phase,
    )
    bencher.start()
    return Checks(root, toy, users, phase, bencher)


@contextmanager
def running_checks(
    users: TestUsers,
    *,
    tree: dict[str, str] | None = None,
    scripts: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    canary: str = "",
) -> Iterator[Checks]:
    """A toy task and its checks below a directory of their own; ``scripts`` replace files of the task's directory."""
    with scratch() as root:
        toy = lay_out(root, users.agent, canary=canary, tree=tree)
        for name, text in (scripts or {}).items():
            path = toy.bench / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            path.chmod(0o755)
        checks = make_checks(root, toy, users, environment=environment, timeout_s=timeout_s)
        try:
            yield checks
        finally:
            end_processes(users.agent)
            checks.bencher.close()
