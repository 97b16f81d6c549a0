"""Capture and apply over the daemon's own sockets, with the agent working in its shell."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import gevent
import pytest

from tests.benchmarks.table import percentile
from tests.support.live import LiveDaemon, live_daemon, scratch, uds_client
from tests.support.toy_task import BROKEN_LINE, FIXED_LINE

pytestmark = pytest.mark.users


@pytest.fixture
def daemon() -> Iterator[LiveDaemon]:
    with scratch() as root, live_daemon(root) as started:
        yield started


def test_a_whole_run(daemon: LiveDaemon) -> None:
    assert daemon.agent.get("/diff").json() == {"diff": ""}
    assert daemon.agent.get("/files").json() == {"files": []}
    assert daemon.agent.get("/final_diff").json() == {"diff": ""}
    daemon.bash(
        f"sed -i 's/{BROKEN_LINE.replace('*', '.')}/{FIXED_LINE}/' app.sh; printf 'caf\\xe9\\r\\n' > 'n w'; rm README"
    )
    daemon.bash(
        "git add -A; git -c user.name=a -c user.email=a@b commit -qm 'Refuse attacks' -m body; chmod 000 app.sh"
    )

    diff = daemon.agent.get("/diff").json()["diff"]
    files = daemon.http.get("/files").json()["files"]
    assert "+" + FIXED_LINE in diff
    assert files == [
        {"path": "README", "status": "deleted", "additions": 0, "deletions": 1},
        {"path": "app.sh", "status": "modified", "additions": 1, "deletions": 1},
        {"path": "n w", "status": "added", "additions": 1, "deletions": 0},
    ]
    assert daemon.admin.post("/admin/agent_exited").json() == {"success": True}
    assert daemon.admin.post("/prepare_grading").json() == {"success": True}

    assert daemon.agent.get("/final_diff").json()["diff"] == diff
    assert (daemon.task.clone / "n w").read_bytes() == b"caf\xe9\r\n"
    assert not (daemon.task.clone / "README").exists()
    log = (daemon.results / "commits.log").read_text().splitlines()
    assert log[1:] == ["Refuse attacks", "body"]
    assert daemon.admin.post("/prepare_grading", json={}).json() == {"success": True}
    assert daemon.agent.get("/final_diff").json()["diff"] == diff


def test_names_and_contents_that_are_no_text_are_answered_as_text(daemon: LiveDaemon) -> None:
    daemon.bash(r"""printf '\xff\xfe\n' > $'a\xffb'; printf 'x\n' > 'naïve "q"'; printf '\xc3' >> README""")
    answer = daemon.agent.get("/files")
    assert [file["path"] for file in answer.json()["files"]] == ["README", "a\ufffdb", 'naïve "q"']
    assert "+\ufffd\ufffd\n" in daemon.agent.get("/diff").json()["diff"]
    answer.content.decode("utf-8")


def test_a_source_directory_that_is_gone_is_a_500(daemon: LiveDaemon) -> None:
    daemon.bash(
        "chmod -R u+w . ; cd /; rm -rf -- " + str(daemon.task.source) + "/* " + str(daemon.task.source) + "/.g*"
    )
    assert daemon.agent.get("/diff").status_code == 200
    os.rename(daemon.task.source, daemon.task.source.with_name("elsewhere"))
    for path in ("/diff", "/files"):
        answer = daemon.agent.get(path)
        assert answer.status_code == 500
        assert set(answer.json()) == {"error"}


def test_polling_while_the_agent_works_is_never_an_error_and_the_daemon_stays_quick(daemon: LiveDaemon) -> None:
    stop = threading.Event()
    failures: list[str] = []
    delays: list[float] = []

    def poll(path: str) -> None:
        with uds_client(daemon.env["SSE_DAEMON_SOCKET"]) as client:
            while not stop.is_set():
                answer = client.get(path)
                if answer.status_code != 200:
                    failures.append(answer.text)

    def watch() -> None:
        with uds_client(daemon.env["SSE_DAEMON_SOCKET"]) as client:
            while not stop.is_set():
                started = time.monotonic()
                client.get("/version")
                delays.append(time.monotonic() - started)
                gevent.sleep(0.01)

    pollers = [gevent.spawn(poll, path) for path in ("/diff", "/files", "/diff")] + [gevent.spawn(watch)]
    daemon.bash(
        "for i in $(seq 60); do echo $i > f$i; mkdir -p d; echo $i > d/x; rm -r d; git add -A; sleep 0.02; done"
    )
    stop.set()
    gevent.joinall(pollers, raise_error=True)
    assert failures == []
    # Generous: other tests share the machine. The benchmark measures what is promised.
    assert percentile(delays, 50) < 1.0


def test_the_end_of_the_phase_meets_a_capture(daemon: LiveDaemon) -> None:
    def poll() -> list[int]:
        codes = []
        with uds_client(daemon.env["SSE_DAEMON_SOCKET"]) as client:
            for _ in range(30):
                codes.append(client.get("/diff").status_code)
        return codes

    polling = [gevent.spawn(poll) for _ in range(3)]
    gevent.sleep(0.05)
    assert daemon.admin.post("/admin/agent_exited").status_code == 200
    gevent.joinall(polling, raise_error=True)
    assert [code for greenlet in polling for code in greenlet.get() if code != 200] == []


def test_a_crash_of_the_daemon_takes_no_new_base(daemon: LiveDaemon) -> None:
    daemon.bash("echo changed > README; git -c user.name=a -c user.email=a@b commit -qam x; rm -rf .git/logs")
    expected = daemon.agent.get("/diff").json()
    assert "+changed" in expected["diff"]
    daemon.process.kill()
    daemon.process.wait()
    for name in ("SSE_DAEMON_SOCKET", "SSE_ADMIN_SOCKET"):
        assert os.path.lexists(daemon.env[name])
    with live_daemon(daemon.task.root, task=daemon.task) as again:
        assert again.agent.get("/diff").json() == expected
