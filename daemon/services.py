"""Everything a request may need, built once at start and handed to the app. There is no other state."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources

from daemon import schemas
from daemon.access import Access
from daemon.actions import ActionQueue
from daemon.answers import encode
from daemon.budget import Budget
from daemon.directories import (
    archive_directory,
    check_ancestors,
    check_apart,
    close_clone,
    private_directory,
    results_directory,
)
from daemon.errors import StartError
from daemon.settings import Settings
from daemon.tools import Tools
from grading.bencher import Bencher
from grading.capture import Capture
from grading.dialog import DialogFile
from grading.history import check_single_commit
from grading.phase import AgentPhase
from grading.state import open_state, resumes
from grading.submission import Submission
from shell.accounts import Account, current_account, is_isolated, unprivileged_pair
from shell.environment import shell_environment
from shell.session import BashSession
from tasks.config import Task, load_task
from tasks.metadata import capabilities, metadata

# Answers that wait for their clients, in numbers of SSE_OUTPUT_LIMIT; one answer holds up to two.
_UNREAD_LIMITS = 8


@dataclass(slots=True)
class Services:
    """What the routes work with."""

    settings: Settings
    task: Task
    access: Access
    phase: AgentPhase
    actions: ActionQueue
    shell: BashSession
    bencher: Bencher
    capture: Capture
    submission: Submission
    dialog: DialogFile
    tools: Tools
    unread: Budget
    metadata: bytes
    capabilities: bytes

    def end_agent_phase(self) -> None:
        """End the agent phase for good. Never waits for the turn: it is what ends the one that has it."""
        self.actions.end_agent_actions()
        self.phase.end()

    def close(self) -> None:
        """Stop what runs; the listeners are closed already."""
        self.shell.close()
        self.bencher.close()
        self.capture.close()


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found to be in order before anything was started. ``lock`` keeps other daemons off the results."""

    agent: Account
    runner: Account
    task: Task
    lock: int


def check(settings: Settings) -> Checked:
    """Check what can be checked without touching a run that another daemon may serve; SSEBenchError says why not."""
    agent, runner = accounts_for(settings)
    task = load_task(settings.bench_path)
    for path, variable in ((settings.bench_path, "SSE_BENCH_PATH"), (settings.repo_path, "SSE_REPO_PATH")):
        check_ancestors(path, variable)
    _check_places(settings, task)
    if is_isolated():
        private_directory(settings.runner_dir, "SSE_RUNNER_DIR", mode=0o710)
    return Checked(agent, runner, task, results_directory(settings.results))


def _check_places(settings: Settings, task: Task) -> None:
    places = {
        "SSE_REPO_PATH": settings.repo_path,
        "SSE_BENCH_PATH": settings.bench_path,
        "SSE_RESULTS": settings.results,
        "SSE_RUNNER_DIR": settings.runner_dir,
    }
    check_apart({"the task's source": task.source, **places})
    # The agent may keep its own notes in its own tree.
    check_apart({"SSE_ARCHIVE": settings.archive, **places})


def accounts_for(settings: Settings) -> tuple[Account, Account]:
    """The agent's and the runner's account; the calling user for both when that is not root."""
    if is_isolated():
        return unprivileged_pair(settings.agent_user, settings.runner_user)
    return current_account(), current_account()


def build_services(settings: Settings, checked: Checked, *, fresh: bool) -> Services:
    """Build and start everything; SSEBenchError says why that is impossible, and nothing is left running."""
    agent, runner, task = checked.agent, checked.runner, checked.task
    _check_source(settings, task, agent, fresh=fresh)
    close_clone(settings.repo_path)
    archive_directory(settings.archive, agent)
    state = open_state(settings.state_path, task_id=task.id, source=task.source, fresh=fresh)
    phase = AgentPhase(state, agent, [task.source, _without_links(agent.home), settings.archive])
    bencher = Bencher(
        task,
        settings.bench_path,
        settings.repo_path,
        settings.runner_dir,
        settings.results,
        agent,
        runner,
        dict(os.environ),
        limit_bytes=settings.output_limit,
        timeout_s=settings.script_timeout,
        phase=phase,
    )
    capture = Capture(task.source, settings.repo_path, state, agent)
    shell = _shell(settings, task, agent)
    services = Services(
        settings=settings,
        task=task,
        access=Access(settings.difficulty, phase),
        phase=phase,
        actions=ActionQueue(),
        shell=shell,
        bencher=bencher,
        capture=capture,
        submission=Submission(capture, state, settings.repo_path, settings.results, task.source, agent),
        dialog=DialogFile(settings.archive, agent),
        tools=Tools(bencher, shell),
        unread=Budget(_UNREAD_LIMITS * settings.output_limit),
        metadata=encode(schemas.Metadata().dump(metadata(task, settings.bench_path))),
        capabilities=encode(schemas.Capabilities().dump(capabilities(task))),
    )
    try:
        bencher.start()
        capture.start()
    except BaseException:
        services.close()
        raise
    return services


def _check_source(settings: Settings, task: Task, agent: Account, *, fresh: bool) -> None:
    """Refuse a source tree that is missing, or whose repository could hold the answer."""
    # In a run that goes on, whatever the agent did to the tree and its history is his work.
    if not fresh and resumes(settings.state_path, task_id=task.id, source=task.source):
        return
    if not os.path.isdir(task.source):
        raise StartError(f"the task's source {task.source} is not a directory")
    real = os.path.realpath(task.source)
    if real != os.path.normpath(task.source):
        # It is closed and kept by this name, along which no link is followed.
        raise StartError(f"the task's source {task.source} is reached through a link; name {real} instead")
    if not settings.allow_history:
        check_single_commit(task.source, agent)


def _without_links(home: str) -> str:
    """A home as it is reached without links, of which root's directories above it may have some."""
    return os.path.join(os.path.realpath(os.path.dirname(home)), os.path.basename(home))


def _shell(settings: Settings, task: Task, agent: Account) -> BashSession:
    environment = shell_environment(
        agent,
        os.environ,
        daemon_socket=settings.daemon_socket,
        archive=settings.archive,
        difficulty=settings.difficulty,
    )
    return BashSession(
        agent,
        task.source,
        environment,
        limit_bytes=settings.output_limit,
        timeout_s=settings.bash_timeout,
        rc_path=str(resources.files("conf").joinpath("shell.rc")),
    )
