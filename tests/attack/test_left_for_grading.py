"""Promise: nothing that was left before the end of the phase reaches a graded run; a pass comes from the patch alone.

One daemon: first everything is left, by the agent and by builds of its code; then the phase ends and a graded build,
with code of the agent's in it, looks for all of it. Before that the same look sees what was left: it looks well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shell.processes import processes_of
from tests.attack.target import HOOK, Target, attacked_daemon
from tests.support.users import TestUsers

pytestmark = pytest.mark.users

TOOLS = r"""
import ctypes, os, socket, sys, time
libc, librt = ctypes.CDLL(None), ctypes.CDLL("librt.so.1")
who, what = sys.argv[1:3]
key = {"agent": 0x5e11, "runner": 0x5e12}[who]
port = {"agent": 45117, "runner": 45118}[who]
queue = f"/ssebench-{who}".encode()
abstract = f"\0ssebench-{who}"

def serve():
    tcp = socket.socket(); tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    tcp.bind(("127.0.0.1", port)); tcp.listen()
    unix = socket.socket(socket.AF_UNIX); unix.bind(abstract); unix.listen()
    if os.fork(): return
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3): os.dup2(null, number)
    time.sleep(600)

def reach(family, address):
    with socket.socket(family) as client: return client.connect_ex(address) == 0

def leave():
    libc.shmget(key, 4096, 0o1666); libc.semget(key, 1, 0o1666); libc.msgget(key, 0o1666)
    librt.mq_open(queue, os.O_CREAT | os.O_RDWR, 0o666, None)
    serve()

def look():
    found = {
        "System V shared memory": libc.shmget(key, 0, 0) >= 0,
        "System V semaphores": libc.semget(key, 0, 0) >= 0,
        "System V messages": libc.msgget(key, 0) >= 0,
        "POSIX message queue": librt.mq_open(queue, os.O_RDONLY) >= 0,
        "TCP port": reach(socket.AF_INET, ("127.0.0.1", port)),
        "abstract socket": reach(socket.AF_UNIX, abstract),
    }
    for name, seen in found.items():
        if seen: print(f"SEEN {who} {name}")

{"leave": leave, "look": look}[what]()
"""

AGENT_PLACES = {
    "file in /tmp": "/tmp/ssebench-agent",
    "file in /var/tmp": "/var/tmp/ssebench-agent",
    "file in /dev/shm": "/dev/shm/ssebench-agent",
    "deep in /tmp": "/tmp/ssebench-agent.d/a/b/c",
    "home": "{home}/ssebench-agent",
    "archive": "{root}/archive/ssebench-agent",
    "ignored file in the tree": "{source}/ssebench-agent.log",
    "object in .git": "{source}/.git/ssebench-agent",
    "file for the runner in home": "{home}/drop/ssebench-agent",
}
RUNNER_PLACES = {
    "file in /tmp": "/tmp/ssebench-runner",
    "file in /var/tmp": "/var/tmp/ssebench-runner",
    "file in /dev/shm": "/dev/shm/ssebench-runner",
    "deep in /tmp": "/tmp/ssebench-runner.d/a/b/c",
    "HOME": "$HOME/ssebench-runner",
    "TMPDIR": "$TMPDIR/ssebench-runner",
    "XDG_CACHE_HOME": "$XDG_CACHE_HOME/ssebench-runner",
    "GOCACHE": "$GOCACHE/ssebench-runner",
    "CCACHE_DIR": "$CCACHE_DIR/ssebench-runner",
    "build folder": "$PWD/../ssebench-runner",
    "drop of the agent's in home": "{home}/drop/ssebench-runner",
    "drop of the agent's in /tmp": "/tmp/ssebench-agent.d/ssebench-runner",
    "harness": "{bench}/harness/ssebench-runner",
    "directory of the runner's in the image": "{image}/own/ssebench-runner",
    "directory of the runner's group in the image": "{image}/group/ssebench-runner",
}
IPC = [
    "System V shared memory", "System V semaphores", "System V messages", "POSIX message queue", "TCP port",
    "abstract socket",
]  # fmt: skip
# What can be closed to a build before it leaves anything there.
CLOSED_PLACES = {"harness", *(kind for kind in RUNNER_PLACES if "image" in kind)}
KINDS = [f"agent {kind}" for kind in [*AGENT_PLACES, *IPC]] + [f"runner {kind}" for kind in [*RUNNER_PLACES, *IPC]]


@dataclass
class Outcome:
    """What the same look saw: by the agent before the end, by an ordinary build, and in the graded run."""

    by_agent: str
    by_build: str
    graded: str
    grade: tuple[int, ...]
    processes: list[int]


def fill(text: str, target: Target) -> str:
    return text.format(
        home=target.users.agent.home, root=target.root, source=target.source, bench=target.bench, image=image_of(target)
    )


def image_of(target: Target) -> Path:
    """Directories that the image gave the runner, beside all that the daemon knows."""
    return target.root / "image"


def give_to_runner(root: Path, users: TestUsers) -> None:
    for name, uid, mode in (("own", users.runner.uid, 0o755), ("group", 0, 0o775)):
        (root / "image" / name).mkdir(parents=True)
        os.chown(root / "image" / name, uid, users.runner.gid)
        (root / "image" / name).chmod(mode)


def look_script(target: Target) -> str:
    """A script that names everything it finds."""
    lines = [f"python3 -I -S {target.root}/tools.py {who} look" for who in ("agent", "runner")]
    for who, places in (("agent", AGENT_PLACES), ("runner", RUNNER_PLACES)):
        lines += [f'[ -e "{fill(path, target)}" ] && echo "SEEN {who} {kind}"' for kind, path in places.items()]
    # Also under the names of earlier sessions.
    lines.append(f'ls {target.root}/runner/*/home/ssebench-runner 2>/dev/null && echo "SEEN runner HOME"')
    return "\n".join([*lines, "true"])


@pytest.fixture(scope="module")
def outcome(test_users: TestUsers) -> Iterator[Outcome]:
    with attacked_daemon(test_users, 2, before=lambda root: give_to_runner(root, test_users)) as target:
        (target.root / "tools.py").write_text(TOOLS)
        leave = [
            f'mkdir -p "$(dirname "{fill(path, target)}")"; echo x > "{fill(path, target)}"'
            for path in AGENT_PLACES.values()
        ]
        target.agent(
            f"mkdir -p ~/drop; chmod 755 ~; chmod 777 ~/drop; {'; '.join(leave)}; chmod 777 /tmp/ssebench-agent.d;"
            f"python3 -I -S {target.root}/tools.py agent leave; (crontab -l; echo '* * * * * true') | crontab - ; true"
        )
        by_agent = target.agent(look_script(target))
        places = [fill(path, target) for path in RUNNER_PLACES.values()]
        put = "\n".join(f'mkdir -p "$(dirname "{path}")"; echo x > "{path}"' for path in places)
        by_build = target.runner(f"{put}\npython3 -I -S {target.root}/tools.py runner leave\n{look_script(target)}")
        # The code that looks is part of the patch.
        (target.source / HOOK).write_text(look_script(target))
        target.prepare()
        left = target.agents_processes() + processes_of(test_users.runner)
        graded = target.note(target.daemon.bencher("build", admin=True, grading=True))
        yield Outcome(by_agent, by_build, graded, target.grade(), left)
        target.as_agent("rm -rf ~/drop ~/ssebench-agent", "/")


def seen(text: str) -> set[str]:
    return set(re.findall(r"SEEN ([\w /$.,'-]+?)\\n", text))


def test_the_look_finds_what_is_there(outcome: Outcome) -> None:
    here = {f"agent {kind}" for kind in AGENT_PLACES} | {f"agent {kind}" for kind in IPC}
    assert here - seen(outcome.by_agent) <= {"agent POSIX message queue"}
    there = {f"runner {kind}" for kind in RUNNER_PLACES if kind not in CLOSED_PLACES} | {
        f"runner {kind}" for kind in IPC
    }
    assert there - seen(outcome.by_build) <= {"runner POSIX message queue"}


def test_the_harness_is_closed_to_a_build(outcome: Outcome) -> None:
    assert "runner harness" not in seen(outcome.by_build)


@pytest.mark.parametrize("kind", KINDS)
def test_a_graded_build_sees_nothing_of(outcome: Outcome, kind: str) -> None:
    assert outcome.graded.startswith("200")
    assert kind not in seen(outcome.graded)


def test_no_process_outlives_the_phase(outcome: Outcome) -> None:
    assert outcome.processes == []


def test_the_grade_is_that_of_the_patch(outcome: Outcome) -> None:
    assert outcome.grade == (0, 1, 1, 0, 1)
