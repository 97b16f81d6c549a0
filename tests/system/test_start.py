"""The daemon starts whole or not at all, says why in one line, and stops cleanly."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from shell.accounts import find_account
from shell.processes import processes_of
from tests.support.live import REPOSITORY, daemon_environment, live_daemon, scratch, start_process, uds_client
from tests.support.pythons import build_wheel, install
from tests.support.toy_task import ToyTask, lay_out
from tests.support.users import agent_name

pytestmark = pytest.mark.users


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch() as path:
        yield path


@pytest.fixture
def task(root: Path) -> ToyTask:
    return lay_out(root, find_account(agent_name()))


def refusal(env: dict[str, str], *arguments: str) -> list[str]:
    """Start a daemon that must refuse; the lines it says on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "daemon", *arguments],
        cwd=REPOSITORY,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert all(line.startswith("ssebench-daemon: ") for line in lines), done.stderr
    nothing_started(env)
    return lines


def nothing_started(env: dict[str, str]) -> None:
    for variable in ("SSE_DAEMON_SOCKET", "SSE_ADMIN_SOCKET"):
        path = env.get(variable)
        assert path is None or not os.path.exists(path) or not _answers(path)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def test_three_sockets_answer_and_are_announced(root: Path) -> None:
    with live_daemon(root) as daemon:
        for client in (daemon.agent, daemon.http, daemon.admin):
            assert client.get("/version").json() == {"version": "0.1.0"}
        announced = [line for line in daemon.log().splitlines() if line.startswith("listening ")]
        assert announced == [
            f"listening agent {daemon.env['SSE_DAEMON_SOCKET']}",
            f"listening http 127.0.0.1:{daemon.http_port}",
            f"listening admin {daemon.env['SSE_ADMIN_SOCKET']}",
        ]


def test_without_socket_paths_it_serves_http_alone(root: Path, task: ToyTask) -> None:
    env = daemon_environment(root, task)
    del env["SSE_DAEMON_SOCKET"], env["SSE_ADMIN_SOCKET"]
    process = start_process(env, root / "log")
    try:
        assert (root / "log").read_text().count("listening ") == 1
    finally:
        process.terminate()
        assert process.wait(15) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0_and_removes_the_sockets(root: Path, number: int) -> None:
    with live_daemon(root) as daemon:
        assert daemon.agent.get("/version").status_code == 200
        started = time.monotonic()
        assert daemon.stop(number) == 0
        assert time.monotonic() - started < 10
        assert not os.path.exists(daemon.env["SSE_DAEMON_SOCKET"])
        assert not os.path.exists(daemon.env["SSE_ADMIN_SOCKET"])
        assert "Traceback" not in daemon.log()


def test_sigterm_stops_a_running_command_and_the_shell(root: Path) -> None:
    with live_daemon(root) as daemon:
        running = gevent.spawn(
            daemon.agent.post, "/tool/bash?action=execute", json={"command": "sleep 1000 & sleep 1000"}
        )
        gevent.sleep(0.5)
        process = daemon.process
        started = time.monotonic()
        process.terminate()
        assert process.wait(15) == 0
        assert time.monotonic() - started < 10
        assert processes_of(find_account(agent_name())) == []
        running.kill()


def test_every_invalid_setting_is_one_line(root: Path, task: ToyTask) -> None:
    env = daemon_environment(root, task, SSE_DIFFICULTY="hard", SSE_HTTP_PORT="70000", SSE_BASH_TIMEOUT="0_0")
    lines = refusal(env)
    assert [line.split()[1].partition("=")[0] for line in lines] == [
        "SSE_HTTP_PORT",
        "SSE_DIFFICULTY",
        "SSE_BASH_TIMEOUT",
    ]


@pytest.mark.parametrize("variable", ["SSE_AGENT_USER", "SSE_RUNNER_USER"])
@pytest.mark.parametrize(("name", "said"), [("nobody-of-that-name", "does not exist"), ("root", "root")])
def test_a_user_that_is_missing_or_root_stops_the_start(
    root: Path, task: ToyTask, variable: str, name: str, said: str
) -> None:
    (line,) = refusal(daemon_environment(root, task, **{variable: name}))
    assert said in line
    assert name in line


def test_one_user_for_both_stops_the_start(root: Path, task: ToyTask) -> None:
    (line,) = refusal(daemon_environment(root, task, SSE_RUNNER_USER=agent_name()))
    assert "same user" in line


def test_a_missing_task_stops_the_start(root: Path, task: ToyTask) -> None:
    (line,) = refusal(daemon_environment(root, task, SSE_BENCH_PATH=str(root / "nothing")))
    assert "nothing" in line


def test_an_invalid_task_stops_the_start_with_every_problem(root: Path, task: ToyTask) -> None:
    config = task.bench / "config.yaml"
    config.write_text(config.read_text().replace("language: shell", "language: 7\nunknown: 1"))
    lines = refusal(daemon_environment(root, task))
    assert any("language" in line for line in lines)
    assert any("unknown" in line for line in lines)


def test_a_missing_source_tree_stops_the_start(root: Path, task: ToyTask) -> None:
    task.source.rename(root / "elsewhere")
    (line,) = refusal(daemon_environment(root, task))
    assert str(task.source) in line


def test_history_in_the_source_stops_the_start_unless_it_is_allowed(root: Path, task: ToyTask) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "safe.directory=*"]
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "more"], cwd=task.source, check=True)
    env = daemon_environment(root, task)
    lines = refusal(env)
    assert "SSE_ALLOW_HISTORY" in " ".join(lines)
    process = start_process(env | {"SSE_ALLOW_HISTORY": "1"}, root / "log")
    process.terminate()
    assert process.wait(15) == 0


def test_a_taken_port_stops_the_start(root: Path, task: ToyTask) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (line,) = refusal(daemon_environment(root, task, SSE_HTTP_PORT=str(port)))
    assert f"SSE_HTTP_PORT={port} is taken" in line


@pytest.mark.parametrize("change", ["nothing", "sockets", "results"])
def test_a_second_daemon_is_refused_and_the_run_of_the_first_goes_on(root: Path, change: str) -> None:
    with live_daemon(root) as daemon:
        daemon.bash("kept=yes; sleep 1000 &")
        assert daemon.bencher("build").json()["code"] == 0
        env = dict(daemon.env)
        if change == "sockets":
            env |= {"SSE_DAEMON_SOCKET": str(root / "b.sock"), "SSE_ADMIN_SOCKET": str(root / "b" / "b.sock")}
        elif change == "results":
            env["SSE_RESULTS"] = str(root / "other")
        done = subprocess.run(
            [sys.executable, "-m", "daemon", "--fresh"],
            cwd=REPOSITORY,
            env=env,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 2
        assert "in use by a running daemon" in done.stderr
        assert daemon.bash('echo "$kept"; jobs -r | wc -l')["stdout"] == "yes\n1\n"
        assert daemon.bencher("run_poc", poc="pocs/one.txt").json()["code"] == 1
        assert daemon.agent.get("/version").status_code == 200
        assert daemon.admin.get("/version").status_code == 200


@pytest.mark.parametrize("kind", ["file", "link", "directory", "loop"])
def test_results_that_cannot_be_written_stop_the_start(root: Path, task: ToyTask, kind: str) -> None:
    results = root / "results"
    if kind == "file":
        results.write_text("")
    elif kind == "link":
        results.symlink_to("/tmp")
    elif kind == "loop":
        results.symlink_to(results)
    else:
        agent = find_account(agent_name())
        results.mkdir()
        os.chown(results, agent.uid, agent.gid)
    (line,) = refusal(daemon_environment(root, task, SSE_RESULTS=str(results)))
    assert "SSE_RESULTS" in line
    assert stat.S_IMODE(os.stat("/tmp").st_mode) == 0o1777


@pytest.mark.parametrize("variable", ["SSE_RESULTS", "SSE_RUNNER_DIR", "SSE_ADMIN_SOCKET", "SSE_DAEMON_SOCKET"])
def test_a_path_below_a_directory_that_others_can_change_stops_the_start(
    root: Path, task: ToyTask, variable: str
) -> None:
    agent = find_account(agent_name())
    below = root / "agents"
    below.mkdir()
    os.chown(below, agent.uid, agent.gid)
    (line,) = refusal(daemon_environment(root, task, **{variable: str(below / "x" / "y")}))
    assert variable in line
    assert list(below.iterdir()) == []


def test_a_private_directory_of_another_user_stops_the_start(root: Path, task: ToyTask) -> None:
    agent = find_account(agent_name())
    for variable, path in (("SSE_RUNNER_DIR", root / "r"), ("SSE_ADMIN_SOCKET", root / "a")):
        path.mkdir()
        os.chown(path, agent.uid, agent.gid)
        value = path / "admin.sock" if variable == "SSE_ADMIN_SOCKET" else path
        (line,) = refusal(daemon_environment(root, task, **{variable: str(value)}))
        assert variable in line


def test_the_phase_stays_ended_over_a_restart_until_a_fresh_start(root: Path) -> None:
    with live_daemon(root) as daemon:
        assert daemon.admin.post("/admin/agent_exited").json() == {"success": True}
        task = daemon.task
    with live_daemon(root, task=task) as daemon:
        assert daemon.agent.post("/tool/bash?action=execute", json={"command": "true"}).status_code == 403
    with live_daemon(root, "--fresh", task=task) as daemon:
        assert daemon.agent.post("/tool/bash?action=execute", json={"command": "true"}).status_code == 200


def test_a_killed_daemon_leaves_sockets_that_the_next_start_replaces(root: Path) -> None:
    with live_daemon(root) as daemon:
        assert daemon.stop(signal.SIGKILL) == -signal.SIGKILL
        assert os.path.exists(daemon.env["SSE_DAEMON_SOCKET"])
        task = daemon.task
    with live_daemon(root, task=task) as daemon:
        assert daemon.agent.get("/version").status_code == 200


def test_a_clone_that_others_could_change_is_closed_to_them(root: Path, task: ToyTask) -> None:
    agent = find_account(agent_name())
    subprocess.run(["chown", "-R", f"{agent.uid}:{agent.gid}", str(task.clone)], check=True)
    task.clone.chmod(0o777)
    with live_daemon(root, task=task) as daemon:
        assert daemon.bash(f"echo evil >> {task.clone}/app.sh; chmod 777 {task.clone}")["code"] == 1
        assert daemon.admin.post("/prepare_grading").status_code == 200
    found = task.clone.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o700)
    assert "evil" not in (task.clone / "app.sh").read_text()


def test_a_source_that_is_reached_through_a_link_is_refused(root: Path, task: ToyTask) -> None:
    real = task.source.rename(root / "elsewhere")
    task.source.symlink_to(real)
    (line,) = refusal(daemon_environment(root, task))
    assert f"{task.source} is reached through a link; name {real} instead" in line


@pytest.mark.parametrize("kind", ["a file", "a link", "a dangling link"])
def test_a_clone_that_is_no_directory_is_refused(root: Path, task: ToyTask, kind: str) -> None:
    real = task.clone.rename(root / "elsewhere")
    if kind == "a file":
        task.clone.write_text("")
    else:
        task.clone.symlink_to(real if kind == "a link" else root / "nowhere")
    (line,) = refusal(daemon_environment(root, task))
    assert f"SSE_REPO_PATH: {task.clone} is not a directory" in line


@pytest.mark.parametrize(
    ("variable", "place"),
    [
        ("SSE_REPO_PATH", "{task.source}"),
        ("SSE_REPO_PATH", "{task.source}/inner"),
        ("SSE_REPO_PATH", "{task.source.parent}"),
        ("SSE_REPO_PATH", "{task.bench}"),
        ("SSE_RESULTS", "{task.bench}/results"),
        ("SSE_RESULTS", "{task.clone}"),
        ("SSE_RUNNER_DIR", "{task.source}"),
        ("SSE_ARCHIVE", "{task.bench}"),
    ],
)
def test_places_that_are_one_or_lie_in_each_other_are_refused(
    root: Path, task: ToyTask, variable: str, place: str
) -> None:
    path = place.format(task=task)
    # What is the agent's has to be refused before anything in it is made or closed.
    env = daemon_environment(root, task) | {variable: path}
    before = sorted(os.listdir(root))
    (line,) = refusal(env)
    assert variable in line
    assert sorted(os.listdir(root)) == before


def test_the_archive_may_lie_in_the_agents_tree(root: Path, task: ToyTask) -> None:
    with live_daemon(root, task=task, SSE_ARCHIVE=str(task.source / ".notes")) as daemon:
        assert daemon.agent.get("/version").status_code == 200


def test_an_ordinary_user_gets_one_warning_and_everything_served_by_what_pip_installs(
    root: Path, tmp_path: Path
) -> None:
    agent = find_account(agent_name())
    below = root / "own"
    below.mkdir()
    task = lay_out(below, None)
    subprocess.run(["chown", "-R", f"{agent.uid}:{agent.gid}", str(below)], check=True)
    # The checkout and its environment may be closed to others; who has no root there installs his own.
    program = install(sys.executable, build_wheel(tmp_path), root, "[daemon]").with_name("ssebench-daemon")
    env = daemon_environment(below, task) | {"HOME": agent.home}
    log = below / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen([program], cwd=below, env=env, stderr=output, user=agent.uid, group=agent.gid)
    try:
        deadline = time.monotonic() + 20
        while log.read_text().count("listening ") < 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert log.read_text().count("warning") == 1, log.read_text()
        with uds_client(env["SSE_DAEMON_SOCKET"]) as client:
            assert client.get("/capabilities").status_code == 200
            answer = client.post("/tool/bash?action=execute", json={"command": "id -u"})
            assert answer.json()["stdout"] == f"{agent.uid}\n"
    finally:
        process.terminate()
        process.wait(15)
