"""The stage of the demo: a bundled task laid out below one directory, and the daemon that serves it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from shell.accounts import Account, current_account, find_account, is_isolated

REPOSITORY = Path(__file__).resolve().parents[1]
DATASET = REPOSITORY / "datasets" / "demo"
DEFAULT_TASK = "recdump-CWE-121"
_START_SECONDS = 20.0
_STOP_SECONDS = 15.0
# All that a stage ever holds. A directory with anything else in it is somebody's own and never emptied.
_STAGE_NAMES = frozenset(
    ["admin", "archive", "daemon.log", "opt", "runner", "src", "sse.sock", "ssebench", "ssebench-repo", "var"]
)


class StageError(Exception):
    """The demo cannot go on; the message says why and what to do."""


@dataclass(frozen=True)
class Stage:
    """A laid-out task and the settings of the daemon that will serve it. Every path is below ``root``."""

    task: str
    root: Path
    agent: Account
    runner: Account

    @property
    def results(self) -> Path:
        """Where the daemon and the evaluator write: final.patch, commits.log, result.json, logs."""
        return self.root / "var" / "results"

    @property
    def log_path(self) -> Path:
        """What the daemon prints."""
        return self.root / "daemon.log"

    @property
    def agent_socket(self) -> Path:
        """The agent-facing Unix socket."""
        return self.root / "sse.sock"

    @property
    def admin_socket(self) -> Path:
        """The admin Unix socket."""
        return self.root / "admin" / "admin.sock"

    def environment(self) -> dict[str, str]:
        """The settings of the daemon and the evaluator."""
        settings = {
            "SSE_DAEMON_SOCKET": self.agent_socket,
            "SSE_ADMIN_SOCKET": self.admin_socket,
            "SSE_HTTP_HOST": "127.0.0.1",
            "SSE_HTTP_PORT": os.environ.get("SSE_HTTP_PORT", "0"),
            "SSE_BENCH_PATH": self.root / "ssebench",
            "SSE_REPO_PATH": self.root / "ssebench-repo",
            "SSE_RESULTS": self.results,
            "SSE_ARCHIVE": self.root / "archive",
            "SSE_DIFFICULTY": os.environ.get("SSE_DIFFICULTY", "0"),
            "SSE_AGENT_USER": self.agent.name,
            "SSE_RUNNER_USER": self.runner.name,
            "SSE_RUNNER_DIR": self.root / "runner",
        }
        outside = {name: value for name, value in os.environ.items() if not name.startswith("SSE_")}
        return outside | {name: str(value) for name, value in settings.items()}


def task_names() -> list[str]:
    """The bundled tasks."""
    return sorted(path.name for path in DATASET.iterdir() if (path / "prepare.sh").is_file())


def set_stage(task: str, parent: Path | None = None) -> Stage:
    """Lay ``task`` out afresh below ``parent`` and return its stage; StageError when that is impossible."""
    if task not in task_names():
        raise StageError(f"no bundled task {task}; there are {', '.join(task_names())}")
    parent = (parent or _default_parent()).resolve()
    agent, runner = _accounts()
    stage = Stage(task, parent / task, agent, runner)
    _clear(stage.root)
    _install_packages(task)
    environment = os.environ | {
        "ROOT": str(stage.root),
        "SSE_AGENT_USER": agent.name,
        "TASK_CACHE": str(parent / "cache"),
    }
    done = subprocess.run([DATASET / task / "prepare.sh"], env=environment, check=False)
    if done.returncode != 0:
        raise StageError(f"{task}: prepare.sh ended with {done.returncode}; its messages are above")
    archive = stage.root / "archive"
    archive.mkdir(mode=0o755)
    os.chown(archive, agent.uid, agent.gid)
    return stage


def _clear(root: Path) -> None:
    """Make ``root`` an empty directory that the demo's users can enter; StageError when it cannot be one."""
    if re.fullmatch(r"(/[A-Za-z0-9._+-]+)+", str(root)) is None:
        raise StageError(f"scripts will name {root}: choose a --dir of letters, digits, '.', '_', '+' and '-'")
    try:
        foreign = set(os.listdir(root)) - _STAGE_NAMES if root.exists() else set()
        if foreign:
            raise StageError(f"{root} holds {min(foreign)}, which is no demo's; remove it or choose another --dir")
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True, mode=0o755)
        closed = [path for path in root.parents if path.stat().st_mode & 0o001 == 0] if is_isolated() else []
    except OSError as error:
        raise StageError(f"cannot lay the task out in {root}: {error.strerror}") from error
    if closed:
        raise StageError(f"the demo's users cannot enter {closed[-1]}; choose another --dir")


def _accounts() -> tuple[Account, Account]:
    """The agent's and the runner's account, by the daemon's own settings."""
    if not is_isolated():
        return current_account(), current_account()
    names = os.environ.get("SSE_AGENT_USER", "model"), os.environ.get("SSE_RUNNER_USER", "runner")
    return find_account(names[0]), find_account(names[1])


def _default_parent() -> Path:
    if is_isolated():
        return Path("/var/lib/ssebench-demo")
    return Path.home() / ".cache" / "ssebench-demo"


def missing_packages(task: str) -> list[str]:
    """The Debian packages that ``task`` needs and the machine lacks; a line of its list is a package and its sign."""
    lines = (DATASET / task / "packages").read_text("utf-8").splitlines()
    return [package for package, sign in map(str.split, lines) if not _is_there(sign)]


def _install_packages(task: str) -> None:
    missing = missing_packages(task)
    if not missing:
        return
    if not is_isolated():
        raise StageError(f"missing Debian packages: {' '.join(missing)}; install them as root")
    print(f"installing {' '.join(missing)}", flush=True)
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    try:
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise StageError(f"apt-get could not install {' '.join(missing)}: {error}") from error


def _is_there(sign: str) -> bool:
    """Whether the command, or the file with an absolute path, exists that shows that a package is installed."""
    return os.path.exists(sign) if sign.startswith("/") else shutil.which(sign) is not None


class Daemon:
    """The daemon's process on a stage, from its first listener to its end."""

    def __init__(self, stage: Stage) -> None:
        """Start it and wait until every listener is announced; StageError when it ends instead."""
        self._stage = stage
        with open(stage.log_path, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "daemon", "--fresh"],
                cwd=REPOSITORY,
                env=stage.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_SECONDS
        while len(self.listeners()) < 3:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise StageError("the daemon did not start:\n" + stage.log_path.read_text("utf-8", "replace"))
            time.sleep(0.01)

    def listeners(self) -> list[str]:
        """The announced listeners, such as ``http 127.0.0.1:4263``."""
        lines = self._stage.log_path.read_text("utf-8", "replace").splitlines()
        return [line.split("listening ", 1)[1] for line in lines if "listening " in line]

    def wait(self) -> None:
        """Wait until the daemon ends or the user interrupts."""
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end and wait."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
