"""Sessions and workspaces: fresh, closed to others, gone at once when discarded."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from grading.workspace import RunnerDirectory, RunnerSession, WorkspaceError
from tests.support.checks import as_user
from tests.support.live import scratch
from tests.support.users import TestUsers

pytestmark = pytest.mark.users


@pytest.fixture
def directory(test_users: TestUsers) -> Iterator[RunnerDirectory]:
    with scratch() as root:
        directory = RunnerDirectory(str(root / "runner"), test_users.runner)
        directory.prepare()
        yield directory


def mode(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def entries(directory: RunnerDirectory) -> list[str]:
    return [name for name in os.listdir(directory.path) if name != "trash"]


def test_the_directory_is_roots_and_only_to_be_passed_by_the_runner(
    directory: RunnerDirectory, test_users: TestUsers
) -> None:
    found = os.lstat(directory.path)
    assert (found.st_uid, found.st_gid, mode(directory.path)) == (0, test_users.runner.gid, 0o710)
    assert as_user(test_users.runner, f"ls {directory.path}").code != 0
    assert as_user(test_users.agent, f"cd {directory.path}").code != 0


@pytest.mark.parametrize("kind", ["link", "file", "another's"])
def test_a_directory_that_is_not_roots_is_refused(test_users: TestUsers, kind: str) -> None:
    with scratch() as root:
        path = root / "runner"
        if kind == "link":
            path.symlink_to("/tmp")
        elif kind == "file":
            path.write_text("x")
        else:
            path.mkdir()
            os.chown(path, test_users.agent.uid, test_users.agent.gid)
        with pytest.raises(WorkspaceError, match="runner directory"):
            RunnerDirectory(str(path), test_users.runner).prepare()


def test_nobody_but_the_runner_enters_a_workspace(directory: RunnerDirectory, test_users: TestUsers) -> None:
    workspace = RunnerSession(directory, "toy").new_workspace()
    assert as_user(test_users.runner, f"cd {workspace.tree} && echo x > file").code == 0
    assert as_user(test_users.agent, f"ls {workspace.tree}").code != 0
    assert os.path.basename(workspace.tree) == "toy" and mode(workspace.path) == 0o700


def test_names_differ_and_cannot_be_guessed(directory: RunnerDirectory) -> None:
    session = RunnerSession(directory, "toy")
    names = {os.path.basename(session.new_workspace().path) for _ in range(20)}
    assert len(names) == 20 and all(len(name) == 32 for name in names)


def test_a_stage_is_read_only_for_the_runner(directory: RunnerDirectory, test_users: TestUsers) -> None:
    stage = RunnerSession(directory, "toy").new_stage()
    Path(stage, "file").write_text("x")
    assert as_user(test_users.runner, f"cat {stage}/file").stdout == b"x"
    assert as_user(test_users.runner, f"echo > {stage}/new").code != 0
    assert as_user(test_users.agent, f"cat {stage}/file").code != 0


def test_home_and_caches_are_the_sessions(directory: RunnerDirectory, test_users: TestUsers) -> None:
    session = RunnerSession(directory, "toy")
    image = {"PATH": "/bin", "LANG": "C", "SSE_DIFFICULTY": "0", "TIMEOUT": "1", "HOME": "/root", "GOPATH": "/go"}
    env = session.environment(image)
    assert env["PATH"] == "/bin" and env["GOPATH"] == "/go" and env["USER"] == test_users.runner.name
    assert not any(name.startswith("SSE_") for name in env) and "TIMEOUT" not in env
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "GOCACHE", "CCACHE_DIR"):
        assert env[name].startswith(session.path + "/")
        assert as_user(test_users.runner, f"touch {env[name]}/x").code == 0
        assert mode(env[name]) == 0o700


@pytest.mark.parametrize(
    "script",
    [
        "mkdir a; chmod 0 a",
        "mkdir -p a/b; touch a/b/c; chmod 555 a/b a; chmod 0 .",
        "ln -s / root; ln -s /etc etc; mkfifo p",
        'python3 -c \'import os; [(os.mkdir("d" * 200), os.chdir("d" * 200)) for _ in range(300)]\'',
    ],
    ids=["closed", "read-only", "special", "deep"],
)
def test_whatever_is_in_it_a_discarded_workspace_is_gone(
    directory: RunnerDirectory, test_users: TestUsers, script: str
) -> None:
    session = RunnerSession(directory, "toy")
    workspace = session.new_workspace()
    as_user(test_users.runner, script, workspace.tree)
    session.discard(workspace.path)
    assert not os.path.exists(workspace.path)
    assert os.listdir(os.path.join(directory.path, "trash")) == []
    assert os.path.exists("/etc/passwd")


def test_a_closed_session_leaves_nothing(directory: RunnerDirectory, test_users: TestUsers) -> None:
    session = RunnerSession(directory, "toy")
    workspace = session.new_workspace()
    session.new_stage()
    as_user(test_users.runner, f"touch {session.home}/x {workspace.tree}/y")
    session.close()
    assert entries(directory) == [] and os.listdir(os.path.join(directory.path, "trash")) == []


def test_left_overs_of_an_earlier_start_are_cleared(directory: RunnerDirectory, test_users: TestUsers) -> None:
    session = RunnerSession(directory, "toy")
    as_user(test_users.runner, "mkdir -p a/b; touch a/b/c", session.new_workspace().tree)
    half = Path(directory.path, "trash", "half-removed")
    half.mkdir()
    os.chown(half, test_users.runner.uid, test_users.runner.gid)
    again = RunnerDirectory(directory.path, test_users.runner)
    again.prepare()
    again.clear()
    assert entries(directory) == [] and os.listdir(os.path.join(directory.path, "trash")) == []
