"""The checks: build, run_poc, function_test, intent_test, each in a private copy, as the runner.

Runs as: root; scripts run as the runner, copies are read with the agent's rights and written with the runner's.
Distrusts: the source tree, the scripts' processes and everything they leave behind.
Promises: see "The checks" in the documentation: fresh copies, hidden material only for the check that needs it, every
  process of the runner's gone before output is collected, nothing of it left for the next check but the build folder
  and the session's caches.
Does not promise: that scripts of the task are themselves sound.
Checked by: tests/system/test_bencher.py, tests/attack/.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import gevent

from grading.checklog import CheckLogs
from grading.objects import git_path
from grading.phase import AgentPhase
from grading.taskfiles import TaskFiles, script_argv
from grading.workspace import RunnerDirectory, RunnerSession, Workspace
from shell.accounts import Account, current_account
from shell.command import CommandResult, Ending, run_command
from shell.copying import CopyStoppedError, TreeReader, copy_tree
from shell.errors import InvalidArgumentError, SSEBenchError
from shell.processes import end_processes
from shell.stop import StopSignal
from tasks.config import Task

_COPY_SECONDS = 600.0
_APPLY_SECONDS = 120.0
_STOPPED_CODE = 137
# Nobody's configuration, and no repository: in one, git apply would skip what it thinks lies outside and say nothing.
_APPLY_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C",
    "HOME": "/nonexistent",
    "GIT_DIR": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
}


class BencherError(SSEBenchError):
    """A check could not be run: the task lacks the script, or the hidden tests do not apply."""


class Bencher:
    """Runs the checks of one task. Never called concurrently: the daemon runs one action at a time."""

    def __init__(
        self,
        task: Task,
        bench_path: str,
        repo_path: str,
        runner_dir: str,
        results_path: str,
        agent: Account,
        runner: Account,
        environment: Mapping[str, str],
        *,
        limit_bytes: int,
        timeout_s: float,
        phase: AgentPhase,
    ) -> None:
        """``environment`` is the image's; ``limit_bytes`` bounds each stream; ``timeout_s`` 0 means no limit."""
        self._task = task
        self._repo_path = repo_path
        self._agent = agent
        self._runner = runner
        self._image_environment = dict(environment)
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s
        self._phase = phase
        self._directory = RunnerDirectory(runner_dir, runner)
        self._files = TaskFiles(task, bench_path, runner, phase.support_path)
        self._logs = CheckLogs(os.path.join(results_path, "logs"))
        self._session: RunnerSession | None = None
        self._build: Workspace | None = None

    def start(self) -> None:
        """Close the task's files, remove what an earlier start left, begin the first session. Before listening."""
        self._phase.places.keep(self._directory.path)
        self._directory.prepare()
        self._logs.prepare()
        end_processes(self._runner, by_gid=True)
        self._files.secure(resumed=self._phase.resumed)
        self._directory.clear()
        # Before anything is removed everywhere: an end that a crash cut short has to be made whole.
        self._phase.places.start_scan(self._runner)
        if self._phase.ended:
            self._phase.end()
        self.new_session()

    def new_session(self) -> None:
        """Begin anew: the runner's processes, caches, workspaces and the last build are gone afterwards.

        After the end of the phase also all that the agent left. CleaningError when something of either may be left:
        then there is no session, and nothing is graded.
        """
        end_processes(self._runner, by_gid=True)
        self._end_session()
        # Once no code of the agent's runs any more: neither its own processes nor a check's.
        self._phase.clean()
        self._phase.places.purge(self._runner, everywhere=self._phase.ended)
        self._files.restore()
        self._session = RunnerSession(self._directory, os.path.basename(os.path.normpath(self._task.source)))

    def close(self) -> None:
        """End every process of the runner's and remove the session."""
        self._phase.places.close()
        end_processes(self._runner, by_gid=True)
        self._end_session()

    def build(self, *, grading: bool, stop: StopSignal) -> CommandResult:
        """Build a fresh copy; it stays for ``run_poc`` until the next build or session."""
        argv = script_argv(self._script("build"))
        self._forget_build()
        workspace = self._new_workspace()

        def run() -> CommandResult:
            # From here on there is something to run proofs of concept in, whether the build succeeds or not.
            self._build = workspace
            return self._run("build", argv, workspace.tree, ("build",), stop)

        try:
            return self._copied(workspace, grading, stop, run)
        finally:
            if self._build is None:
                self._current_session().discard(workspace.path)

    def run_poc(self, poc: str, *, stop: StopSignal) -> CommandResult:
        """Run one proof of concept in the folder of the last build; code -1 when there is none."""
        if self._task.scripts.run is None:
            raise BencherError("the task has no run script")
        path = self._files.find_poc(poc)
        if path is None:
            raise InvalidArgumentError("poc: not a proof of concept of the task; use a path of poc in the metadata")
        if self._build is None:
            return CommandResult(-1, b"", b"nothing has been built yet: run build first\n")
        with self._stage() as stage:
            script, staged = gevent.get_hub().threadpool.apply(self._files.stage_run, (stage, path))
            argv = script_argv(script, [staged])
            return self._run("run_poc", argv, self._build.tree, ("build", "run"), stop)

    def function_test(self, *, grading: bool, stop: StopSignal) -> CommandResult:
        """Run the test script in a fresh copy."""
        return self._test("function_test", grading, stop, lambda workspace: None)

    def intent_test(self, *, grading: bool, stop: StopSignal) -> CommandResult:
        """Run the test script in a fresh copy with the hidden tests; BencherError when these do not apply."""
        self._script("test")
        if self._task.files.future_test is None:
            raise BencherError("the task has no hidden tests")
        return self._test("intent_test", grading, stop, self._apply_hidden_tests)

    def _test(self, check: str, grading: bool, stop: StopSignal, prepare: Callable[[Workspace], None]) -> CommandResult:
        argv = script_argv(self._script("test"))
        workspace = self._new_workspace()
        try:

            def run() -> CommandResult:
                prepare(workspace)
                return self._run(check, argv, workspace.tree, ("build", "test"), stop)

            return self._copied(workspace, grading, stop, run)
        finally:
            self._current_session().discard(workspace.path)

    def _copied(
        self, workspace: Workspace, grading: bool, stop: StopSignal, run: Callable[[], CommandResult]
    ) -> CommandResult:
        """Fill the workspace, then ``run``; what the copy left out is noted on the result's stderr."""
        source = self._repo_path if grading else self._task.source
        # The clean clone is root's alone, so root may read it; the agent's tree is read with the agent's rights.
        reader = TreeReader(current_account()) if grading else TreeReader.confined(self._agent)
        try:
            notes = copy_tree(source, reader, workspace.tree, self._runner, timeout_s=_COPY_SECONDS, stop=stop)
        except CopyStoppedError as stopped:
            return CommandResult(_STOPPED_CODE, b"", f"{stopped}\n".encode(), ending=Ending.STOPPED)
        return _with_notes(run(), notes)

    def _run(
        self, check: str, argv: Sequence[str], folder: str, kinds: Sequence[str], stop: StopSignal
    ) -> CommandResult:
        """Run one script as the runner, free of everything it leaves outside its session, and logged."""
        try:
            with self._files.opened(*kinds):
                result = run_command(
                    argv,
                    account=self._runner,
                    cwd=folder,
                    env=self._current_session().environment(self._image_environment),
                    limit_bytes=self._limit_bytes,
                    timeout_s=self._timeout_s,
                    stop=stop,
                    sweep=self._end_runner,
                )
        finally:
            self._end_runner()
            self._phase.places.try_purge(self._runner)
        result = _with_notes(result, self._why_ended(result, stop))
        self._logs.write(check, argv, result, keep=self._phase.ended)
        return result

    def _why_ended(self, result: CommandResult, stop: StopSignal) -> list[str]:
        if result.ending is Ending.TIMED_OUT:
            return [f"the script ran longer than {self._timeout_s:g} s (SSE_SCRIPT_TIMEOUT) and was ended"]
        if result.ending is Ending.STOPPED:
            return [f"the script was stopped because {stop.reason}"]
        return []

    def _apply_hidden_tests(self, workspace: Workspace) -> None:
        with self._stage() as stage:
            patch = self._files.stage_hidden_tests(stage)
            argv = [git_path(), "-c", "core.protectNTFS=false", "apply", "-p1", "--whitespace=nowarn", patch]
            result = run_command(
                argv,
                account=self._runner,
                cwd=workspace.tree,
                env=_APPLY_ENV,
                limit_bytes=1 << 16,
                timeout_s=_APPLY_SECONDS,
            )
        if result.code != 0:
            message = result.stderr.decode("utf-8", "replace").replace(patch, "the hidden tests").strip()
            raise BencherError(f"git apply failed: {message or f'git ended with {result.code}'}")

    @contextmanager
    def _stage(self) -> Iterator[str]:
        session = self._current_session()
        stage = session.new_stage()
        try:
            yield stage
        finally:
            session.discard(stage)

    def _script(self, kind: str) -> str:
        try:
            return self._files.script(kind)
        except KeyError:
            raise BencherError(f"the task has no {kind} script") from None

    def _new_workspace(self) -> Workspace:
        return self._current_session().new_workspace()

    def _current_session(self) -> RunnerSession:
        if self._session is None:
            raise BencherError("no runner session: the bencher was not started, was closed, or could not clean up")
        return self._session

    def _forget_build(self) -> None:
        if self._build is not None:
            build, self._build = self._build, None
            self._current_session().discard(build.path)

    def _end_session(self) -> None:
        session, self._session, self._build = self._session, None, None
        if session is not None:
            session.close()

    def _end_runner(self) -> None:
        end_processes(self._runner, by_gid=True)


def _with_notes(result: CommandResult, notes: Sequence[str]) -> CommandResult:
    """The result with lines of the daemon's own at the end of stderr."""
    if not notes:
        return result
    lines = "".join(f"ssebench: {note}\n" for note in notes).encode()
    gap = b"" if not result.stderr or result.stderr.endswith(b"\n") else b"\n"
    return replace(result, stderr=result.stderr + gap + lines)
