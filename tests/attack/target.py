"""What the attacks aim at, and how to tell that they failed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from shell.command import CommandResult
from shell.processes import processes_of
from tests.support.checks import as_user
from tests.support.live import LiveDaemon, live_daemon, scratch
from tests.support.toy_task import TREE, lay_out
from tests.support.users import TestUsers

# New in each run: a copy of these very tests that somebody keeps in /tmp is no leak.
CANARY = f"canary-{secrets.token_hex(8)}"
# Code of the agent's that a build runs as the runner.
HOOK = "hook.sh"
BUILD = f"#!/bin/sh\nset -u\nmkdir -p out\ncp app.sh out/app\nif [ -f {HOOK} ]; then bash ./{HOOK}; fi\necho built\n"
# The harness is named by the run script only, so it is closed to builds and tests.
RUN = '#!/bin/sh\n# uses /ssebench/harness\nexec sh out/app "$1"\n'
# What an untouched tree gets: build, both proofs of concept, the tests, the hidden tests.
VULNERABLE_GRADE = (0, 1, 1, 0, 1)
ANSWER_SECONDS = 2.0


@dataclass
class Target:
    """A live daemon, everything it ever answered here, and the state of its files before the attacks."""

    daemon: LiveDaemon
    users: TestUsers
    level: int
    root: Path
    started: Path
    answers: list[str] = field(default_factory=list)
    hashes: dict[str, str] = field(default_factory=dict)
    graded: bool = False

    def __post_init__(self) -> None:
        self.hashes = self.hidden_hashes()

    @property
    def source(self) -> Path:
        """The tree that the agent edits."""
        return self.daemon.task.source

    @property
    def bench(self) -> Path:
        """The task's files."""
        return self.daemon.task.bench

    @property
    def hidden(self) -> list[Path]:
        """Every hidden file: of the task, and of the directories that are root's alone."""
        return [self.bench / name for name in self.daemon.task.canaries]

    def agent(self, script: str, **more: Any) -> str:
        """Run a script in the agent's shell, in a bash of its own; everything that came back."""
        # The shell itself stays in its place and state for the next attack.
        return self.bash(f"cd {self.source}; bash -c {shlex.quote(script)} </dev/null", **more)

    def bash(self, command: str, **more: Any) -> str:
        """Run a command in the agent's shell itself."""
        answer = self.daemon.agent.post("/tool/bash?action=execute", json={"command": command, **more})
        return self.note(answer)

    def runner(self, script: str) -> str:
        """Run a script as code of the project's in a build; everything that came back."""
        (self.source / HOOK).write_text(script)
        try:
            return self.note(self.daemon.bencher("build", admin=self.level > 3))
        finally:
            (self.source / HOOK).unlink(missing_ok=True)

    def get(self, path: str, *, admin: bool = False) -> str:
        """A GET on the agent's socket (or the admin socket); everything that came back."""
        client = self.daemon.admin if admin else self.daemon.agent
        return self.note(client.get(path))

    def note(self, answer: httpx.Response) -> str:
        """Keep an answer for the search for canaries."""
        text = f"{answer.status_code} {answer.headers} {answer.text}"
        self.answers.append(text)
        return text

    def as_agent(self, script: str, folder: str = "") -> CommandResult:
        """Run a script as the agent beside the daemon, as a program of the agent's own would."""
        result = as_user(self.users.agent, script, folder or str(self.source))
        self.answers.append((result.stdout + result.stderr).decode("utf-8", "replace"))
        return result

    def agents_processes(self) -> list[int]:
        """The agent's processes, without the daemon's readers of the tree: these have its uid, but not its group."""
        found = []
        for pid in processes_of(self.users.agent):
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
                gid = next(int(line.split()[1]) for line in lines if line.startswith("Gid:"))
                if gid == self.users.agent.gid:
                    found.append(pid)
        return found

    def reset_tree(self) -> None:
        """Put the agent's tree back to what it was."""
        subprocess.run(["rm", "-rf", str(self.source)], check=True)
        shutil.copytree(self.root / "first-tree", self.source, symlinks=True)
        subprocess.run(["chown", "-R", f"{self.users.agent.uid}:{self.users.agent.gid}", str(self.source)], check=True)

    def prepare(self) -> None:
        """End the phase and apply the agent's patch to the clone."""
        self.graded = True
        prepared = self.daemon.admin.post("/prepare_grading", timeout=120.0)
        assert prepared.status_code == 200, prepared.text

    def grade(self) -> tuple[int, ...]:
        """What the grader sees: codes of build, proofs of concept, tests, hidden tests."""
        self.prepare()
        codes = [self.daemon.bencher("build", admin=True, grading=True).json()["code"]]
        for poc in ("pocs/one.txt", "pocs/two.txt"):
            codes.append(self.daemon.bencher("run_poc", admin=True, poc=str(self.bench / poc)).json()["code"])
        for check in ("function_test", "intent_test"):
            codes.append(self.daemon.bencher(check, admin=True, grading=True).json()["code"])
        return tuple(codes)

    def assert_grade_unchanged(self) -> None:
        """The grade is that of the untouched tree."""
        assert self.grade() == VULNERABLE_GRADE

    def assert_intact(self) -> None:
        """Nothing hidden in an answer, nothing hidden changed, the daemon answers in time."""
        leaked = [text[:2000] for text in self.answers if CANARY in text]
        assert not leaked, leaked
        now = self.hidden_hashes()
        clone = str(self.daemon.task.clone)
        assert now == {
            path: found for path, found in self.hashes.items() if not (self.graded and path.startswith(clone))
        }
        started = time.monotonic()
        assert self.daemon.agent.get("/version").status_code == 200
        assert time.monotonic() - started < ANSWER_SECONDS
        assert self.daemon.process.poll() is None

    def files_with_canary(self) -> list[str]:
        """Files that the agent can read, written since the start, in which a canary stands."""
        places = [str(self.root), self.users.agent.home, "/tmp", "/var/tmp", "/dev/shm"]
        script = (
            f"find {' '.join(places)} -type f -newer {self.started} -readable -size -20000k -print0 2>/dev/null"
            f" | xargs -0 -r grep -l {CANARY} -- 2>/dev/null"
        )
        return as_user(self.users.agent, script).stdout.decode().splitlines()

    def assert_nothing_leaked(self) -> None:
        """No canary in any file that the agent can read."""
        assert self.files_with_canary() == []

    def hidden_hashes(self) -> dict[str, str]:
        """A digest of each file of the task and, until grading writes there, of the clone, with mode and owner."""
        found = {}
        for top in [self.bench] if self.graded else [self.bench, self.daemon.task.clone]:
            for path in sorted(top.rglob("*")):
                status = path.lstat()
                if "harness" not in path.parts:
                    found[str(path)] = f"{status.st_mode:o} {status.st_uid} {status.st_gid} {_digest(path)}"
        return found


def _digest(path: Path) -> str:
    if path.is_symlink():
        return os.readlink(path)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


@contextmanager
def attacked_daemon(
    users: TestUsers, level: int, *, before: Callable[[Path], None] = lambda root: None, **settings: str
) -> Iterator[Target]:
    """A daemon at a difficulty level on a toy task whose build runs code of the agent's.

    ``before`` is called with the directory of it all before the daemon starts.
    """
    with scratch() as root:
        task = lay_out(root, users.agent, canary=CANARY, tree=TREE | {"data/input.txt": "1\n"})
        (task.bench / "scripts/build.sh").write_text(BUILD)
        (task.bench / "scripts/run.sh").write_text(f"{RUN}# {task.canaries['scripts/run.sh']}\n")
        (task.bench / "harness").mkdir()
        (task.bench / "harness/secret.txt").write_text(f"{CANARY}-harness\n")
        task.canaries["harness/secret.txt"] = f"{CANARY}-harness"
        started = root / "started"
        started.touch()
        first = root / "first-tree"
        shutil.copytree(task.source, first, symlinks=True)
        before(root)
        with live_daemon(root, task=task, SSE_DIFFICULTY=str(level), **settings) as daemon:
            # The shell and the connections start now, so that no attack is taken for what left them behind.
            daemon.bash("true")
            for client in daemon.clients:
                client.get("/version")
            yield Target(daemon, users, level, root, started)
            daemon.stop()
            assert processes_of(users.runner) == []
