"""A live daemon: a process of its own, real sockets, a task below a directory of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from shell.accounts import find_account, is_isolated
from shell.processes import end_processes
from tests.support.toy_task import ToyTask, lay_out
from tests.support.users import agent_name, runner_name, why_unavailable

REPOSITORY = Path(__file__).resolve().parents[2]
_START_SECONDS = 20.0
_STOP_SECONDS = 15.0


def uds_client(path: str | Path, timeout_s: float = 120.0) -> httpx.Client:
    """A client that keeps its connection to a Unix socket alive."""
    return httpx.Client(
        transport=httpx.HTTPTransport(uds=str(path)), base_url="http://daemon", timeout=timeout_s, trust_env=False
    )


@dataclass
class LiveDaemon:
    """A started daemon; ``agent``, ``http`` and ``admin`` are clients of its three listeners."""

    task: ToyTask
    env: dict[str, str]
    process: subprocess.Popen[bytes]
    log_path: Path
    clients: list[httpx.Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agent = self._client(uds_client(self.env["SSE_DAEMON_SOCKET"]))
        self.admin = self._client(uds_client(self.env["SSE_ADMIN_SOCKET"]))
        self.http = self._client(
            httpx.Client(base_url=f"http://127.0.0.1:{self.http_port}", timeout=120.0, trust_env=False)
        )

    def _client(self, client: httpx.Client) -> httpx.Client:
        self.clients.append(client)
        return client

    @property
    def http_port(self) -> int:
        """The TCP port, read from the daemon's own announcement."""
        found = re.search(r"listening http \S*:(\d+)", self.log())
        assert found is not None, self.log()
        return int(found.group(1))

    @property
    def results(self) -> Path:
        """The results directory."""
        return Path(self.env["SSE_RESULTS"])

    def log(self) -> str:
        """Everything that the daemon printed."""
        return self.log_path.read_text("utf-8", "replace")

    def bash(self, command: str, **more: Any) -> dict[str, Any]:
        """Run a command in the agent's shell; the answer's body, which must be a 200."""
        answer = self.agent.post("/tool/bash?action=execute", json={"command": command, **more})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def bencher(self, action: str, *, admin: bool = False, **argument: Any) -> httpx.Response:
        """Run a bencher action on the agent's socket or the admin socket."""
        client = self.admin if admin else self.agent
        return client.post(f"/tool/bencher?action={action}", json=argument, timeout=600.0)

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """End the daemon and wait; its exit code."""
        for client in self.clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the daemon did not stop in {_STOP_SECONDS} s:\n{self.log()}") from None


def scratch_parent() -> Path:
    """Where test directories go: below /var/lib for root, so that clean-ups of shared places leave them alone."""
    return Path("/var/lib") if is_isolated() else Path(tempfile.gettempdir())


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory open to all users, removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="ssebench-test-", dir=scratch_parent()))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def daemon_environment(root: Path, task: ToyTask, **more: str) -> dict[str, str]:
    """The settings of a daemon whose every path is below ``root``."""
    archive = root / "archive"
    if not archive.exists():
        archive.mkdir(mode=0o755)
        if why_unavailable() is None:
            account = find_account(agent_name())
            os.chown(archive, account.uid, account.gid)
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "LANG": "C.UTF-8",
        "HOME": os.environ.get("HOME", "/"),
        "SSE_DAEMON_SOCKET": str(root / "sse.sock"),
        "SSE_ADMIN_SOCKET": str(root / "admin" / "admin.sock"),
        "SSE_HTTP_HOST": "127.0.0.1",
        "SSE_HTTP_PORT": "0",
        "SSE_BENCH_PATH": str(task.bench),
        "SSE_REPO_PATH": str(task.clone),
        "SSE_RESULTS": str(root / "var" / "results"),
        "SSE_ARCHIVE": str(archive),
        "SSE_DIFFICULTY": "0",
        "SSE_AGENT_USER": agent_name(),
        "SSE_RUNNER_USER": runner_name(),
        "SSE_RUNNER_DIR": str(root / "runner"),
    }
    env.update(more)
    return env


def start_process(env: dict[str, str], log_path: Path, *arguments: str, wait: bool = True) -> subprocess.Popen[bytes]:
    """Start ``python -m daemon``; with ``wait`` it has announced every listener on return."""
    with open(log_path, "ab") as log:
        offset = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "daemon", *arguments],
            cwd=REPOSITORY,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    if wait:
        expected = 1 + ("SSE_DAEMON_SOCKET" in env) + ("SSE_ADMIN_SOCKET" in env)
        deadline = time.monotonic() + _START_SECONDS
        while log_path.read_bytes()[offset:].count(b"listening ") < expected:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise AssertionError("the daemon did not start:\n" + log_path.read_text("utf-8", "replace"))
            time.sleep(0.01)
    return process


@contextmanager
def live_daemon(
    root: Path, *arguments: str, task: ToyTask | None = None, canary: str = "", **settings: str
) -> Iterator[LiveDaemon]:
    """Lay out the toy task below ``root`` (unless ``task`` is given), serve it, and stop afterwards."""
    if task is None:
        agent = find_account(agent_name()) if why_unavailable() is None else None
        task = lay_out(root, agent, canary=canary)
    env = daemon_environment(root, task, **settings)
    log_path = root / "daemon.log"
    daemon = LiveDaemon(task, env, start_process(env, log_path, *arguments), log_path)
    try:
        yield daemon
    finally:
        daemon.stop()
        if why_unavailable() is None:
            for name in (agent_name(), runner_name()):
                end_processes(find_account(name))
