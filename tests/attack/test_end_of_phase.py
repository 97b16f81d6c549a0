"""Promise: the phase ends for good, at once, for everybody, whatever the agent's processes do."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from shell.processes import processes_of
from tests.attack.target import HOOK, Target, attacked_daemon
from tests.support.hostile import FORK_STORM
from tests.support.live import LiveDaemon, live_daemon, uds_client
from tests.support.users import TestUsers
from tests.support.waiting import wait_for

pytestmark = pytest.mark.users

RESISTANCE = {
    "fork storm": f"(setsid python3 -I -S -c '{FORK_STORM}' >/dev/null 2>&1 &)",
    "ignored signals": "(setsid bash -c 'trap \"\" TERM HUP INT QUIT; while :; do sleep 1; done' >/dev/null 2>&1 &)",
    "stopped": "(setsid bash -c 'sleep 300 & kill -STOP $!; kill -STOP $$' >/dev/null 2>&1 &)",
    "daemon's name": "(setsid bash -c 'exec -a \"python -m daemon\" sleep 300' >/dev/null 2>&1 &)",
    "respawning": "(setsid bash -c 'while :; do setsid sleep 300 & sleep 0.01; done' >/dev/null 2>&1 &)",
    "crontab": "echo '* * * * * sleep 300' | crontab - ; echo 'sleep 300' | at now + 1 minute; sleep 300 &",
    "many": "for i in $(seq 500); do (setsid sleep 300 >/dev/null 2>&1 &); done",
}


def names_of(pids: list[int]) -> list[str]:
    """The names of the programs of those of the processes that are still there."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


@pytest.mark.parametrize("kind", RESISTANCE)
def test_nothing_of_the_agents_survives(fresh_target: Target, kind: str) -> None:
    target = fresh_target
    target.bash(RESISTANCE[kind], timeout=20)
    time.sleep(0.3)
    started = time.monotonic()
    answer = target.daemon.admin.post("/admin/agent_exited", timeout=30.0)
    assert answer.status_code == 200, answer.text
    assert time.monotonic() - started < 8
    assert target.agents_processes() == []


def test_every_tool_is_refused_on_every_agents_listener(fresh_target: Target) -> None:
    daemon = fresh_target.daemon
    assert daemon.admin.post("/admin/agent_exited").status_code == 200
    for client in (daemon.agent, daemon.http):
        for path in ("bash?action=execute", "bencher?action=build", "bencher?action=nothing", "nothing?action=x"):
            answer = client.post(f"/tool/{path}", json={"command": "id"})
            assert answer.status_code == 403, answer.text
    assert daemon.admin.post("/admin/agent_exited").status_code == 200


def test_a_running_command_ends_and_what_waits_is_refused(fresh_target: Target) -> None:
    daemon = fresh_target.daemon
    answers: list[httpx.Response] = []

    def ask(command: str) -> None:
        with uds_client(daemon.env["SSE_DAEMON_SOCKET"]) as client:
            answers.append(client.post("/tool/bash?action=execute", json={"command": command}))

    threads = [threading.Thread(target=ask, args=(command,)) for command in ("sleep 300", "echo one", "echo two")]
    threads[0].start()
    wait_for(lambda: "sleep" in names_of(fresh_target.agents_processes()))
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.4)  # for them to come in; one that is later is refused all the same
    started = time.monotonic()
    assert daemon.admin.post("/admin/agent_exited", timeout=30.0).status_code == 200
    for thread in threads:
        thread.join(15)
    assert time.monotonic() - started < 10
    assert len(answers) == 3 and sum(answer.status_code == 403 for answer in answers) >= 2
    assert all(answer.json()["stdout"] == "" for answer in answers if answer.status_code == 200)


def test_a_running_build_of_the_agents_is_stopped(fresh_target: Target) -> None:
    target = fresh_target
    (target.source / HOOK).write_text("setsid sleep 300 & sleep 300\n")
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(target.daemon.bencher("build")))
    thread.start()
    wait_for(lambda: names_of(processes_of(target.users.runner)).count("sleep") == 2)
    started = time.monotonic()
    assert target.daemon.admin.post("/admin/agent_exited", timeout=30.0).status_code == 200
    thread.join(20)
    assert time.monotonic() - started < 15 and answers
    assert processes_of(target.users.runner) == []


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_new_start_does_not_open_it_again(test_users: TestUsers, end: signal.Signals) -> None:
    with attacked_daemon(test_users, 2) as target:
        assert target.daemon.admin.post("/admin/agent_exited").status_code == 200
        target.daemon.stop(end)
        with live_daemon(target.root, task=target.daemon.task, SSE_DIFFICULTY="2") as again:
            assert again.agent.post("/tool/bash?action=execute", json={"command": "id"}).status_code == 403
            assert again.admin.post("/prepare_grading", timeout=60.0).status_code == 200


def test_a_killed_daemons_left_overs_are_gone_after_the_next_start(test_users: TestUsers) -> None:
    with attacked_daemon(test_users, 2) as target:
        hook = target.source / HOOK
        hook.write_text("setsid sleep 300 >/dev/null 2>&1 & setsid sleep 300 & sleep 300\n")
        thread = threading.Thread(target=_build_ignoring_errors, args=(target.daemon,))
        thread.start()
        wait_for(lambda: names_of(processes_of(target.users.runner)).count("sleep") == 3)
        target.daemon.stop(signal.SIGKILL)
        thread.join(20)
        hook.unlink()
        with live_daemon(target.root, task=target.daemon.task, SSE_DIFFICULTY="2") as again:
            assert processes_of(target.users.runner) == []
            sessions = [path for path in (target.root / "runner").iterdir() if path.name != "trash"]
            assert [path.name for session in sessions for path in session.iterdir()] == ["home"]
            assert again.bencher("build").json()["code"] == 0


def _build_ignoring_errors(daemon: LiveDaemon) -> None:
    with uds_client(daemon.env["SSE_DAEMON_SOCKET"]) as client:
        try:
            client.post("/tool/bencher?action=build", json={})
        except httpx.HTTPError:
            return


def test_sigterm_in_the_middle_of_a_build_ends_everything_in_time(test_users: TestUsers) -> None:
    with attacked_daemon(test_users, 2) as target:
        (target.source / HOOK).write_text("trap '' TERM HUP; (setsid sleep 300 &) ; setsid sleep 300 & sleep 300\n")
        thread = threading.Thread(target=_build_ignoring_errors, args=(target.daemon,))
        thread.start()
        wait_for(lambda: names_of(processes_of(target.users.runner)).count("sleep") == 3)
        started = time.monotonic()
        assert target.daemon.stop(signal.SIGTERM) == 0
        assert time.monotonic() - started < 10
        thread.join(20)
        assert processes_of(target.users.runner) == []
        assert [path.name for path in (target.root / "runner").iterdir()] == ["trash"]
        assert list((target.root / "runner/trash").iterdir()) == []
