"""``./run demo [--task NAME] [--agent scripted|none] [--keep]``: exits 0 only when the grade is ``passed``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import traceback
from pathlib import Path

from demo.agent import repair
from demo.report import print_grade, read_grade
from demo.stage import DATASET, DEFAULT_TASK, REPOSITORY, Daemon, Stage, StageError, set_stage, task_names
from shell.accounts import become
from shell.errors import SSEBenchError
from sse.daemon import Daemon as Client
from sse.error import SDKError


def main() -> int:
    """Play the main job on one task."""
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__)
    parser.add_argument("--task", default=DEFAULT_TASK, metavar="NAME", help=f"one of {', '.join(task_names())}")
    parser.add_argument(
        "--agent", choices=["scripted", "none"], default="scripted", help="none leaves the tree as it is"
    )
    parser.add_argument("--keep", action="store_true", help="go on serving after the grade")
    parser.add_argument("--dir", type=Path, default=None, help="where to lay the task out")
    options = parser.parse_args()
    try:
        stage = set_stage(options.task, options.dir)
        daemon = Daemon(stage)
    except (StageError, SSEBenchError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    try:
        return _play(stage, daemon, options.agent, options.keep)
    except (SDKError, StageError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        daemon.stop()


def _play(stage: Stage, daemon: Daemon, agent: str, keep: bool) -> int:
    for listener in daemon.listeners():
        _say(f"daemon listens on {listener}")
    if agent == "scripted":
        _run_agent(stage, (DATASET / stage.task / "sse" / "diffs" / "patch.diff").read_text("utf-8"))
    # What the container's entrypoint does once the agent's process has exited.
    Client(stage.admin_socket).post("/admin/agent_exited")
    _say("the agent phase has ended; grading")
    _evaluate(stage)
    grade = read_grade(stage.results)
    print_grade(stage.task, grade)
    print(f"result.json: {stage.results / 'result.json'}")
    print(f"final.patch: {stage.results / 'final.patch'}")
    if keep:
        _say(f"still serving; try: curl --unix-socket {stage.agent_socket} http://daemon/result   (Ctrl-C ends)")
        daemon.wait()
    return 0 if grade.get("status") == "passed" else 1


def _run_agent(stage: Stage, fix: str) -> None:
    """Run the scripted agent in a process of the agent's user, with nothing but the agent-facing socket."""
    # Loads what the SDK imports on first use: the agent's user may not be able to read this checkout.
    Client(stage.agent_socket).version()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            become(stage.agent)
            os.environ.update(SSE_DAEMON_SOCKET=str(stage.agent_socket), SSE_ARCHIVE=str(stage.root / "archive"))
            repair(fix, lambda what: _say(f"agent ({stage.agent.name}) {what}"))
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise StageError(f"the scripted agent failed; the daemon's log is {stage.log_path}")


def _evaluate(stage: Stage) -> None:
    environment = stage.environment() | {"SSE_DAEMON_SOCKET": str(stage.admin_socket)}
    done = subprocess.run(
        [sys.executable, "-m", "grading.evaluator"],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise StageError(f"the evaluator ended with {done.returncode}; the daemon's log is {stage.log_path}")


def _say(what: str) -> None:
    print(f"- {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
