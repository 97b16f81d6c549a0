"""A BashSession in the test's own process, as the agent of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shell.accounts import Account
from shell.command import CommandResult
from shell.environment import shell_environment
from shell.session import BashSession
from shell.stop import StopSignal

_BASE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_RC = str(Path(__file__).resolve().parents[2] / "conf" / "shell.rc")


@contextmanager
def bash_session(
    agent: Account, *, source: str = "/", limit_bytes: int = 1 << 24, timeout_s: float = 60.0
) -> Iterator[BashSession]:
    """A session that is closed afterwards."""
    environment = shell_environment(agent, _BASE, archive="/tmp/archive", difficulty=2)
    session = BashSession(agent, source, environment, limit_bytes=limit_bytes, timeout_s=timeout_s, rc_path=_RC)
    try:
        yield session
    finally:
        session.close()


def run(session: BashSession, command: str, timeout_s: float | None = None) -> CommandResult:
    """Run a command that nobody stops."""
    return session.execute(command, timeout_s=timeout_s, stop=StopSignal())


@contextmanager
def startup_file(agent: Account, text: str) -> Iterator[None]:
    """Replace the agent's ~/.bashrc for a while."""
    path = Path(agent.home) / ".bashrc"
    before = path.read_bytes() if path.exists() else None
    path.write_text(text)
    os.chown(path, agent.uid, agent.gid)
    try:
        yield
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
