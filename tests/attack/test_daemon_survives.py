"""Promise: no way to use up, stop, confuse or out-name the daemon; it goes on answering, and grades the same."""

from __future__ import annotations

import contextlib
import time

import httpx
import pytest

from tests.attack.target import HOOK, Target

pytestmark = pytest.mark.users

AGENTS = {
    "kill everything": "kill -9 -1",
    "terminate everything": "kill -TERM -1; kill -HUP -1; kill -STOP -1",
    "kill by name": "pkill -9 -f daemon; pkill -9 -f ssebench; killall -9 python3 python; pkill -9 -f grading",
    "kill by a word of the request": "pkill -9 -f zebra-of-the-request",
    "kill own shell": "kill -9 $PPID; kill -9 $$",
    "stop own shell": "kill -STOP $$",
    "exit": "exit 3",
    "exec": "exec true",
    "end of file": "exec <&- >&- 2>&-",
    "processes": "for i in $(seq 300); do sleep 5 & done",
    "descriptors": "python3 -c \"l = []\nwhile 1:\n try: l.append(open('/dev/null'))\n except OSError: break\"",
    "memory": "(ulimit -v 1000000; python3 -c \"b = []\nwhile 1: b.append(bytearray(1 << 26))\")",
    "disk": "ulimit -f 400000; head -c 400000000 /dev/zero > big; rm -f big",
    "many files": "mkdir m; cd m; for i in $(seq 3000); do : > f$i; done; cd ..; rm -rf m",
    "output": "head -c 300000000 /dev/zero",
    "output on both": "head -c 100000000 /dev/zero | tee /dev/stderr",
    "long line": "printf '%*s' 30000000 x",
    "terminal": "stty raw -echo; printf '\\033c\\033]0;x\\007' > /dev/tty; cat /dev/tty",
    "connections": "python3 -c \"import os, socket, time\nl = []\nfor i in range(900):\n"
    " s = socket.socket(socket.AF_UNIX)\n s.connect(os.environ['SSE_DAEMON_SOCKET']); l.append(s)\nprint(len(l))\"",
    "asks itself": "curl -s -m 2 --unix-socket $SSE_DAEMON_SOCKET -H 'Content-Type: application/json' -d"
    " '{\"command\": \"id\"}' 'http://d/tool/bash?action=execute'",
    "out-naming": "exec -a 'python -m daemon' sleep 0.1",
    "lease": "python3 -c \"import fcntl, time\nf = open('README')\n"
    "fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK)\"",
    "locks": "touch .git/index.lock .git/HEAD.lock .git/config.lock; flock -n README sleep 0.1; rm -f .git/*.lock",
}  # fmt: skip
RUNNERS = {
    "kill everything": "kill -9 -1",
    "kill by name": "pkill -9 -f daemon; killall -9 python3; pkill -9 tar; pkill -9 -u model",
    "stop": "kill -STOP $$",
    "processes": "for i in $(seq 300); do sleep 60 & done",
    "fork storm": "timeout -s KILL 2 python3 -c \"import os\nwhile 1:\n try: os.fork()\n except OSError: pass\"",
    "descriptors": "python3 -c \"l = []\nwhile 1:\n try: l.append(open('/dev/null'))\n except OSError: break\"",
    "memory": "ulimit -v 1000000; python3 -c \"b = []\nwhile 1: b.append(bytearray(1 << 26))\"",
    "output": "head -c 300000000 /dev/zero",
    "holds the pipe": "setsid sh -c 'trap \"\" TERM HUP; sleep 300' & disown",
    "closes the pipe": "exec >&- 2>&-; sleep 0.2",
    "removes its workspace": "cd /; rm -rf $OLDPWD $HOME",
    "closes its workspace": "chmod 000 .. . $HOME",
    "moves its workspace": "mv ../toy ../gone; ln -s /etc ../toy",
    "deep tree": "python3 -c \"import os\nfor _ in range(2000): os.mkdir('d'); os.chdir('d')\"",
    "signals itself": "kill -SEGV $$",
    "priority": "renice 19 $$; ulimit -t 1; while :; do :; done",
}  # fmt: skip


def assert_usable(target: Target) -> None:
    """The shell and the checks work on."""
    assert '"stdout":"alive' in target.bash("echo alive")
    built = target.daemon.bencher("build", admin=target.level > 3)
    assert built.status_code == 200 and "built" in built.json()["stdout"], built.text


@pytest.mark.parametrize("kind", AGENTS)
def test_the_agent_cannot_bring_it_down(usual_target: Target, kind: str) -> None:
    target = usual_target
    target.bash(f"cd {target.source}; : zebra-of-the-request; {AGENTS[kind]}", timeout=15)
    target.bash(f"cd {target.source}")
    assert_usable(target)


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_build_cannot_bring_it_down(usual_target: Target, kind: str) -> None:
    target = usual_target
    started = time.monotonic()
    if kind == "stop":
        # Only a time limit ends this one: the client's going away must do it, too.
        (target.source / HOOK).write_text(RUNNERS[kind])
        with contextlib.suppress(httpx.HTTPError):
            target.daemon.admin.post("/tool/bencher?action=build", json={}, timeout=1.0)
        (target.source / HOOK).unlink()
    else:
        target.runner(RUNNERS[kind])
    assert time.monotonic() - started < 60
    assert_usable(target)


def test_a_full_disk_in_the_agents_places_does_not_stop_answers(usual_target: Target) -> None:
    target = usual_target
    target.agent("head -c 200000000 /dev/zero > /dev/shm/ssebench-fill; ls -l /dev/shm/ssebench-fill")
    assert_usable(target)
    target.agent("rm -f /dev/shm/ssebench-fill")


STOPPER = """
import os, signal, time
end = time.monotonic() + 4
while time.monotonic() < end:
    try: os.kill(-1, signal.SIGSTOP)
    except OSError: pass
"""


def test_stopping_every_process_before_it_starts_holds_up_nobody_for_long(usual_target: Target) -> None:
    target = usual_target
    (target.root / "stopper.py").write_text(STOPPER)
    target.bash(f"(setsid python3 -I -S {target.root}/stopper.py >/dev/null 2>&1 &); kill -9 $$", timeout=5)
    for request in ({"command": "echo hi", "timeout": 1}, {"command": "true", "timeout": 1}):
        # The shell may not come up while this goes on; that must be said, and in time.
        answer = target.daemon.agent.post("/tool/bash?action=execute", json=request, timeout=40.0)
        assert answer.status_code in (200, 500)
    target.note(target.daemon.bencher("build"))
    time.sleep(4)
    target.bash("true", timeout=5)
    assert_usable(target)
