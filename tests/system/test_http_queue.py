"""One action at a time over real sockets: order, clients that go away, the end of the phase, answers meanwhile."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import httpx
import pytest

from shell.accounts import find_account
from shell.processes import processes_of
from tests.support.live import LiveDaemon, live_daemon, scratch, uds_client
from tests.support.raw_http import RawClient, post
from tests.support.users import runner_name

pytestmark = pytest.mark.users

BASH = "/tool/bash?action=execute"


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch() as path:
        yield path


@pytest.fixture
def daemon(root: Path) -> Iterator[LiveDaemon]:
    with live_daemon(root) as daemon:
        daemon.bash("true")
        yield daemon


def ask(daemon: LiveDaemon, command: str) -> httpx.Response:
    """Run a command over a connection of its own."""
    with uds_client(daemon.env["SSE_DAEMON_SOCKET"]) as client:
        return client.post(BASH, json={"command": command})


def wait_until(daemon: LiveDaemon, path: Path) -> None:
    """Wait until a command has made a file."""
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline, daemon.log()
        gevent.sleep(0.01)


def archive(daemon: LiveDaemon, name: str) -> Path:
    return Path(daemon.env["SSE_ARCHIVE"]) / name


def test_ten_requests_at_once_run_one_after_the_other_in_order(daemon: LiveDaemon) -> None:
    gate = archive(daemon, "gate")
    first = gevent.spawn(ask, daemon, f"touch {gate}; sleep 0.5")
    wait_until(daemon, gate)
    others = []
    for number in range(10):
        others.append(
            gevent.spawn(ask, daemon, f"echo start {number} >> order; sleep 0.02; echo end {number} >> order")
        )
        gevent.sleep(0.03)
    gevent.joinall([first, *others], raise_error=True)
    wanted = "".join(f"start {number}\nend {number}\n" for number in range(10))
    assert daemon.bash("cat order")["stdout"] == wanted


def test_reading_never_waits_for_a_running_action(daemon: LiveDaemon) -> None:
    gate = archive(daemon, "gate")
    running = gevent.spawn(ask, daemon, f"touch {gate}; sleep 3")
    wait_until(daemon, gate)
    for path in ("/version", "/project", "/capabilities", "/result", "/final_diff", "/agent/dialog", "/diff", "/files"):
        assert daemon.agent.get(path).status_code == 200
    assert not running.ready()
    running.join()


@pytest.mark.parametrize("kind", ["agent", "http"])
def test_a_client_that_goes_away_stops_its_running_action(daemon: LiveDaemon, kind: str) -> None:
    gate = archive(daemon, "gate")
    address: str | int = daemon.env["SSE_DAEMON_SOCKET"] if kind == "agent" else daemon.http_port
    with RawClient(address) as client:
        client.send(post(BASH, f'{{"command":"touch {gate}; sleep 1000"}}'))
        wait_until(daemon, gate)
    assert daemon.bash("echo free")["stdout"].endswith("free\n")


def test_a_client_that_goes_away_while_it_waits_is_not_served(daemon: LiveDaemon) -> None:
    gate, sign = archive(daemon, "gate"), archive(daemon, "sign")
    running = gevent.spawn(ask, daemon, f"touch {gate}; sleep 1.5")
    wait_until(daemon, gate)
    with RawClient(daemon.env["SSE_DAEMON_SOCKET"]) as client:
        client.send(post(BASH, f'{{"command":"touch {sign}"}}'))
        gevent.sleep(0.2)
    running.join()
    assert daemon.bash("echo next")["stdout"] == "next\n"
    assert not sign.exists()


def test_a_unix_client_that_only_stops_sending_gets_its_answer(daemon: LiveDaemon) -> None:
    with RawClient(daemon.env["SSE_DAEMON_SOCKET"]) as client:
        client.send(post(BASH, '{"command":"sleep 0.7; echo patient"}'))
        client.socket.shutdown(socket.SHUT_WR)
        assert client.read().json()["stdout"] == "patient\n"


def test_a_client_that_goes_away_stops_its_build(root: Path) -> None:
    with live_daemon(root) as daemon:
        script = daemon.task.bench / "scripts" / "build.sh"
        script.write_text("#!/bin/sh\nsleep 1000\n")
        with RawClient(daemon.env["SSE_DAEMON_SOCKET"]) as client:
            client.send(post("/tool/bencher?action=build", "{}"))
            runner = find_account(runner_name())
            deadline = time.monotonic() + 10
            while not processes_of(runner) and time.monotonic() < deadline:
                gevent.sleep(0.02)
            assert processes_of(runner)
        assert daemon.bash("echo free")["stdout"] == "free\n"
        assert processes_of(runner) == []


def test_the_end_of_the_phase_ends_the_running_command_and_refuses_the_waiting_ones(daemon: LiveDaemon) -> None:
    gate = archive(daemon, "gate")
    running = gevent.spawn(ask, daemon, f"touch {gate}; sleep 1000")
    wait_until(daemon, gate)
    waiting = [gevent.spawn(ask, daemon, "true") for _ in range(5)]
    gevent.sleep(0.2)
    started = time.monotonic()
    assert daemon.admin.post("/admin/agent_exited").json() == {"success": True}
    assert time.monotonic() - started < 5
    gevent.joinall([running, *waiting], timeout=10, raise_error=True)
    assert [greenlet.get().status_code for greenlet in waiting] == [403] * 5
    assert running.get().status_code in (200, 403)
    assert daemon.agent.post(BASH, json={"command": "true"}).status_code == 403
    assert daemon.admin.post("/admin/agent_exited", content=b"anything").json() == {"success": True}


def test_the_end_of_the_phase_stops_a_build_the_agent_asked_for(root: Path) -> None:
    with live_daemon(root) as daemon:
        (daemon.task.bench / "scripts" / "build.sh").write_text("#!/bin/sh\nsleep 1000\n")
        running = gevent.spawn(daemon.bencher, "build")
        runner = find_account(runner_name())
        deadline = time.monotonic() + 10
        while not processes_of(runner) and time.monotonic() < deadline:
            gevent.sleep(0.02)
        assert daemon.admin.post("/admin/agent_exited").status_code == 200
        running.join(timeout=10)
        assert running.ready()
        assert processes_of(runner) == []


def test_grading_waits_for_its_turn_and_then_starts_anew(daemon: LiveDaemon) -> None:
    daemon.bash("echo changed >> README")
    assert daemon.admin.post("/prepare_grading").json() == {"success": True}
    assert daemon.bencher("build", admin=True, grading=True).json()["code"] == 0
    assert "changed" in daemon.agent.get("/final_diff").json()["diff"]
    assert daemon.admin.post("/prepare_grading", json={}).json() == {"success": True}
