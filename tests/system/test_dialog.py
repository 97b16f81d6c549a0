"""GET /agent/dialog against an agent that owns the file and the directory it is in."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from shell.accounts import find_account
from tests.support.live import LiveDaemon, live_daemon, scratch, uds_client
from tests.support.users import agent_name

pytestmark = pytest.mark.users

LEASE = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[LiveDaemon]:
    with scratch() as root, live_daemon(root) as daemon:
        assert daemon.agent.get("/diff").status_code == 200
        daemon.bash("true")
        for client in (daemon.http, daemon.admin):
            assert client.get("/version").status_code == 200
        yield daemon


@pytest.fixture
def path(daemon: LiveDaemon) -> Iterator[Path]:
    path = Path(daemon.env["SSE_ARCHIVE"]) / "dialog.jsonl"
    yield path
    daemon.bash(f"rm -rf {path} {path.parent}/*")


def write(daemon: LiveDaemon, path: Path, text: str, mode: str = ">") -> None:
    """Write as the agent."""
    assert daemon.bash(f"cat {mode} {path} <<'END_OF_DIALOG'\n{text}END_OF_DIALOG\n")["code"] == 0


def seqs(daemon: LiveDaemon, since: int | None = None) -> list[int]:
    answer = daemon.agent.get("/agent/dialog", params={} if since is None else {"since": since})
    assert answer.status_code == 200, answer.text
    return [entry["seq"] for entry in answer.json()["entries"]]


def refused(daemon: LiveDaemon) -> str:
    """The message of a refusal, which must come at once."""
    started = time.monotonic()
    answer = daemon.agent.get("/agent/dialog")
    assert answer.status_code == 500, answer.text
    assert time.monotonic() - started < 2
    assert list(answer.json()) == ["error"]
    return str(answer.json()["error"])


def test_entries_of_the_agents_arrive_as_they_are_written(daemon: LiveDaemon, path: Path) -> None:
    assert seqs(daemon) == []
    write(daemon, path, '{"seq": 1, "type": "init", "x": {"y": [1.5, null, "é"]}}\nno json\n')
    (entry,) = daemon.http.get("/agent/dialog").json()["entries"]
    assert entry == {"seq": 1, "type": "init", "x": {"y": [1.5, None, "é"]}}
    write(daemon, path, '{"seq": 2}\n{"seq": 3}\n', mode=">>")
    assert seqs(daemon, 1) == [2, 3]
    assert daemon.admin.get("/agent/dialog?since=2").json() == {"entries": [{"seq": 3}]}


@pytest.mark.parametrize(
    "plant",
    [
        "ln -s /etc/passwd {path}",
        "ln -s nowhere {path}",
        "ln -s {path} {path}",
        "mkdir {path}",
        "mkfifo {path}",
        "mkfifo {path}; sleep 30 > {path} &",
        "/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"{path}\")'",
        "echo '{{\"seq\":1}}' > {path}.real; ln -s {path}.real {path}",
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(daemon: LiveDaemon, path: Path, plant: str) -> None:
    assert daemon.bash(plant.format(path=path))["code"] == 0
    assert "dialog.jsonl" in refused(daemon)
    assert "root:" not in refused(daemon)
    daemon.bash("kill -9 $! 2>/dev/null; wait")


def test_a_file_of_somebody_elses_is_refused(daemon: LiveDaemon, path: Path) -> None:
    path.write_text('{"seq": 1, "secret": true}\n')
    assert "does not belong" in refused(daemon)
    path.unlink()
    secret = daemon.results / "secret.jsonl"
    secret.write_text('{"seq": 1, "secret": true}\n')
    os.link(secret, path)
    assert "secret" not in refused(daemon)
    secret.unlink()


def test_no_link_on_the_way_is_followed(daemon: LiveDaemon, path: Path) -> None:
    archive = path.parent
    moved = archive.with_name("archive.moved")
    agent = find_account(agent_name())
    archive.rename(moved)
    try:
        archive.symlink_to(moved)
        os.lchown(archive, agent.uid, agent.gid)
        (moved / "dialog.jsonl").write_text('{"seq": 1}\n')
        os.chown(moved / "dialog.jsonl", agent.uid, agent.gid)
        refused(daemon)
        archive.unlink()
        archive.write_text("a file")
        refused(daemon)
        archive.unlink()
        assert seqs(daemon) == []
    finally:
        moved.rename(archive)


def test_a_lease_of_the_agents_does_not_hold_the_daemon_up(daemon: LiveDaemon, path: Path) -> None:
    write(daemon, path, '{"seq": 1}\n')
    agent = find_account(agent_name())
    holder = subprocess.Popen(
        ["/usr/bin/python3", "-c", LEASE, str(path)], user=agent.uid, group=agent.gid, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"leased\n"
        assert "cannot be opened" in refused(daemon)
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()
    assert seqs(daemon) == [1]


def test_an_unreadable_file_of_the_agents_is_read_all_the_same(daemon: LiveDaemon, path: Path) -> None:
    write(daemon, path, '{"seq": 1}\n')
    daemon.bash(f"chmod 000 {path}")
    assert seqs(daemon) == [1]


def test_a_huge_sparse_file_is_read_within_bounds(daemon: LiveDaemon, path: Path) -> None:
    write(daemon, path, '{"seq": 1}\n')
    daemon.bash(f"truncate -s 100G {path}")
    started = time.monotonic()
    assert seqs(daemon) == [1]
    assert time.monotonic() - started < 60


def test_the_first_read_of_a_large_dialog_does_not_hold_others_up(daemon: LiveDaemon, path: Path) -> None:
    entry = json.dumps({"seq": 0, "type": "message", "text": "x" * 450})
    daemon.bash(f"yes '{entry}' | head -n 60000 > {path}")
    with uds_client(daemon.env["SSE_DAEMON_SOCKET"]) as client:
        reading = gevent.spawn(client.get, "/agent/dialog")
        answered = 0
        while not reading.ready():
            assert daemon.agent.get("/version").status_code == 200
            answered += 1
            gevent.sleep(0.001)
        assert len(reading.get().json()["entries"]) == 60000
    assert answered > 3
