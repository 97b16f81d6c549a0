"""The agent's shell keeps every promise of the conformance cases, also with a ~/.bashrc that works against it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shell.accounts import find_account
from shell.processes import end_processes
from tests.conformance.cases import Case, load_cases
from tests.support.live import LiveDaemon, live_daemon, scratch
from tests.support.shells import startup_file
from tests.support.users import TestUsers, agent_name

pytestmark = pytest.mark.users

CASES = load_cases()
# Bash runs without the file when that ends it, so the last one says nothing about the settings before its exit.
STARTUP_FILES = {
    "plain": "",
    "rc-sets": "set -u\nalias cd='cd -P'\nPROMPT_COMMAND='echo prompt'\n",
    "rc-exits": "set -u\nalias cd='echo never'\nPROMPT_COMMAND='echo prompt; sleep 9'\nexit 0\n",
}


@pytest.fixture(scope="module", params=STARTUP_FILES)
def daemon(request: pytest.FixtureRequest, test_users: TestUsers) -> Iterator[LiveDaemon]:
    """A daemon whose agent has this ~/.bashrc."""
    with scratch() as root, startup_file(test_users.agent, STARTUP_FILES[request.param]), live_daemon(root) as live:
        assert live.agent.get("/files").status_code == 200  # from now on no process of the daemon's own comes and goes
        live.bash("true")
        end_processes(test_users.agent)
        yield live


@pytest.fixture
def shell(daemon: LiveDaemon) -> Iterator[LiveDaemon]:
    """The daemon with a fresh shell and no other process of the agent."""
    daemon.bash("true")  # the answer that says that the last case's shell is gone
    yield daemon
    end_processes(find_account(agent_name()))


def test_there_are_enough_cases_and_no_name_twice() -> None:
    names = [(case.file, case.name) for case in CASES]
    assert len(names) >= 120
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case.file}: {case.name}") for case in CASES])
def test_case(shell: LiveDaemon, case: Case) -> None:
    for number, step in enumerate(case.steps, 1):
        time.sleep(step.pause_s)
        started = time.monotonic()
        more = {} if step.timeout_s is None else {"timeout": step.timeout_s}
        answer = shell.bash(step.run, **more)
        complaints = step.complaints(answer, time.monotonic() - started)
        assert not complaints, f"step {number}: {step.run[:200]!r}\n" + "\n".join(complaints)
    # Whatever the case did, the shell works: an external program and its code.
    last = shell.bash("/bin/sh -c 'echo out; exit 3'")
    assert last["code"] == 3 and "out\n" in last["stdout"], last


def test_nothing_is_left_in_the_file_system(test_users: TestUsers) -> None:
    with scratch() as root, live_daemon(root) as live:
        stdout = Path(live.bash("readlink /proc/self/fd/1; jobs")["stdout"].strip())
        assert stdout.is_fifo()
    assert not stdout.parent.exists()
