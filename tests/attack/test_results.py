"""Promise: results, logs and state are root's; what is planted in their place stops the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shell.accounts import Account
from tests.attack.target import Target
from tests.support.live import REPOSITORY, daemon_environment, scratch
from tests.support.toy_task import lay_out
from tests.support.users import TestUsers

pytestmark = pytest.mark.users


def test_results_logs_and_state_are_closed_before_and_after_grading(fresh_target: Target) -> None:
    target = fresh_target
    target.runner("echo something")
    for _ in range(2):
        for path in ("var/results", "var/results/logs", "var/results.state"):
            look = f"ls {target.root}/{path}; cat {target.root}/{path}/*; echo x > {target.root}/{path}/result.json"
            done = target.as_agent(look)
            assert done.code != 0 and done.stdout == b"", done
            assert "denied" in target.runner(look) or target.level > 3 or _ended(target)
        target.grade()


def _ended(target: Target) -> bool:
    return target.daemon.agent.post("/tool/bash?action=x", json={"command": "id"}).status_code == 403


def test_a_result_cannot_be_planted_through_the_dialog_or_the_tree(fresh_target: Target) -> None:
    target = fresh_target
    target.agent(
        'echo \'{"patch_result": {"status": "passed"}}\' > result.json; mkdir -p logs; cp result.json $SSE_ARCHIVE/;'
        "cp result.json $SSE_ARCHIVE/dialog.jsonl"
    )
    target.grade()
    assert '"available":false' in target.get("/result").replace(" ", "")


def plant(root: Path, users: TestUsers, name: str, kind: str) -> None:
    """Let the agent put something where the daemon will want a directory or a socket of root's."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        (root / "elsewhere").mkdir(exist_ok=True)
        _give(root / "elsewhere", users.agent)
        path.symlink_to(root / "elsewhere")
    elif kind == "agent's directory":
        path.mkdir()
        _give(path, users.agent)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.write_text("x")
    _give(path, users.agent)


def _give(path: Path, account: Account) -> None:
    os.chown(path, account.uid, account.gid, follow_symlinks=False)


@pytest.mark.parametrize("kind", ["link", "agent's directory", "fifo", "file"])
@pytest.mark.parametrize("place", ["admin", "runner", "var/results", "var/results.state", "sse.sock"])
def test_what_is_planted_in_a_place_of_roots_stops_the_start(test_users: TestUsers, place: str, kind: str) -> None:
    with scratch() as root:
        task = lay_out(root, test_users.agent)
        plant(root, test_users, place, kind)
        before = (root / place).lstat()
        env = daemon_environment(root, task)
        done = subprocess.run(
            [sys.executable, "-m", "daemon"], cwd=REPOSITORY, env=env, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 2, done
        assert b"Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) <= 3, done.stderr
        after = (root / place).lstat()
        assert (before.st_ino, before.st_mode, before.st_uid) == (after.st_ino, after.st_mode, after.st_uid)
        if kind == "link":
            assert list((root / "elsewhere").iterdir()) == []
