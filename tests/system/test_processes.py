"""The end of every process of a user, whatever it does to stay, and of nobody else's."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gevent
import pytest

from shell import processes
from shell.accounts import Account, child_setup, current_account
from shell.command import run_command
from shell.errors import CommandError, ProcessesLeftError
from shell.processes import end_orphans, end_processes, processes_of
from tests.support.hostile import FORK_STORM
from tests.support.users import TestUsers
from tests.support.waiting import wait_for

pytestmark = pytest.mark.users


@contextmanager
def hostile(account: Account, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, preexec_fn=child_setup(account, "/"), stdin=subprocess.DEVNULL)
    try:
        gevent.sleep(0.15)
        yield process
    finally:
        process.kill()
        process.wait()


def ended(account: Account, *argv: str) -> float:
    """Start ``argv``, end everything of the account's, and return how long that took."""
    with hostile(account, *argv):
        started = time.monotonic()
        end_processes(account)
        took = time.monotonic() - started
        assert processes_of(account) == []
    return took


def test_a_plain_process_is_ended(test_users: TestUsers) -> None:
    assert ended(test_users.agent, "/bin/sleep", "60") < 5


@pytest.mark.parametrize(
    "script",
    [
        "trap '' TERM HUP INT QUIT; while :; do sleep 1; done",
        "setsid setsid sleep 60 & sleep 60",
        "sleep 60 & kill -STOP $!; kill -STOP $$",
        "exec -a sshd sleep 60",
        "exec -a '[kworker/0:1]' sleep 60",
        "(sleep 60 &) ; (sleep 60 &) ; cd /proc/self; sleep 60",
        "ulimit -c 0; for i in $(seq 200); do sleep 60 & done; wait",
    ],
    ids=["ignores signals", "own session", "stopped", "named sshd", "named like the kernel's", "orphans", "200"],
)
def test_what_it_does_to_stay_does_not_help(test_users: TestUsers, script: str) -> None:
    assert ended(test_users.agent, "/bin/bash", "-c", script) < 5


def test_a_fork_storm_is_ended_within_the_time(test_users: TestUsers) -> None:
    assert ended(test_users.agent, "/usr/bin/python3", "-I", "-S", "-c", FORK_STORM) < 5


def test_a_traced_process_and_its_tracer_are_ended(test_users: TestUsers) -> None:
    program = (
        "import ctypes, os, time\n"
        "libc = ctypes.CDLL(None)\n"
        "child = os.fork()\n"
        "if child == 0: time.sleep(60)\n"
        "libc.ptrace(16, child, 0, 0); os.waitpid(child, 0)\n"
        "time.sleep(60)\n"
    )
    assert ended(test_users.agent, "/usr/bin/python3", "-I", "-S", "-c", program) < 5


@pytest.mark.parametrize("slot", [0, 1, 2], ids=["real", "effective", "saved"])
def test_a_process_with_the_id_in_one_slot_only_is_ended(test_users: TestUsers, slot: int) -> None:
    ids = [test_users.runner.uid] * 3
    ids[slot] = test_users.agent.uid
    # No exec after the switch: it would make the saved id the effective one.
    program = f"import os, time\nos.setresuid({', '.join(map(str, ids))})\nprint(flush=True)\ntime.sleep(60)"
    process = subprocess.Popen(["/usr/bin/python3", "-I", "-S", "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert process.pid in processes_of(test_users.agent)
    end_processes(test_users.agent)
    assert process.wait() == -9
    process.stdout.close()


def test_with_the_group_also_a_process_of_the_group_only(test_users: TestUsers) -> None:
    process = subprocess.Popen(["/bin/sleep", "60"], preexec_fn=lambda: os.setresgid(*(test_users.runner.gid,) * 3))
    gevent.sleep(0.1)
    assert process.pid in processes_of(test_users.runner, by_gid=True)
    end_processes(test_users.runner, by_gid=True)
    assert process.wait() == -9


def test_nobody_elses_process_is_touched(test_users: TestUsers) -> None:
    with hostile(test_users.runner, "/bin/sleep", "60") as other:
        own = subprocess.Popen(["/bin/sleep", "60"])
        end_processes(test_users.agent)
        assert other.poll() is None and own.poll() is None
        own.kill()
        own.wait()
        end_processes(test_users.runner)


def test_root_is_never_asked_to_end_itself() -> None:
    end_processes(current_account())


def test_zombies_do_not_count(test_users: TestUsers) -> None:
    program = (
        "import os, time\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0)\n"
        "os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n"
        "print(flush=True)\n"
        "time.sleep(60)\n"
    )
    argv = ["/usr/bin/python3", "-I", "-S", "-c", program]
    with subprocess.Popen(argv, preexec_fn=child_setup(test_users.agent, "/"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes_of(test_users.agent) == [process.pid]
        end_processes(test_users.agent)


THREADS_WITHOUT_THE_FIRST = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_counts_until_its_last_thread_has_ended(test_users: TestUsers) -> None:
    argv = ["/usr/bin/python3", "-I", "-S", "-c", THREADS_WITHOUT_THE_FIRST]
    with subprocess.Popen(argv, preexec_fn=child_setup(test_users.agent, "/")) as process:
        wait_for(lambda: "\nState:\tZ" in Path(f"/proc/{process.pid}/status").read_text())
        assert processes_of(test_users.agent) == [process.pid]
        end_processes(test_users.agent)
        assert process.wait() == -9


def test_processes_that_resist_are_named(test_users: TestUsers, monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile(test_users.agent, "/bin/sleep", "60") as process:
        with monkeypatch.context() as patched:
            patched.setattr("shell.processes._kill_all_as", lambda account: None)
            patched.setattr("shell.processes._kill_if", lambda pid, wanted: None)
            with pytest.raises(ProcessesLeftError) as caught:
                end_processes(test_users.agent, within_s=0.1)
        assert caught.value.pids == [process.pid]
        end_processes(test_users.agent)


def test_when_no_process_can_be_made_they_are_ended_one_by_one(
    test_users: TestUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork: Callable[[], int] = processes._fork
    refused: list[list[int]] = []

    def no_room_while_they_are_there() -> int:
        if left := processes_of(test_users.agent):
            refused.append(left)
            raise BlockingIOError("fork: no more processes")
        return fork()

    monkeypatch.setattr("shell.processes._fork", no_room_while_they_are_there)
    assert ended(test_users.agent, "/bin/bash", "-c", "sleep 60 & sleep 60 & wait") < 5
    assert refused


def test_what_no_look_meets_is_ended_all_the_same(test_users: TestUsers, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fork storm can be between two process numbers at each look.
    monkeypatch.setattr("shell.processes._find", lambda account, by_gid: [])
    with hostile(test_users.agent, "/bin/sleep", "60") as process:
        end_processes(test_users.agent)
        assert process.wait(timeout=5) == -9


def test_that_nobody_was_seen_is_no_success_without_the_kill_that_reaches_all(
    test_users: TestUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room() -> int:
        raise BlockingIOError("fork: no more processes")

    monkeypatch.setattr("shell.processes._fork", no_room)
    with pytest.raises(ProcessesLeftError):
        end_processes(test_users.agent, within_s=0.1)


def test_a_reused_session_number_harms_nobody(test_users: TestUsers) -> None:
    # The session is another user's: what looks like left-overs must not be killed.
    become = child_setup(test_users.runner, "/")
    other = subprocess.Popen(["/bin/sleep", "60"], preexec_fn=become, start_new_session=True)
    gevent.sleep(0.1)
    end_orphans(other.pid, test_users.agent)
    assert other.poll() is None
    end_orphans(other.pid, test_users.runner)
    assert other.wait() == -9


def test_others_are_served_while_thousands_of_processes_are_looked_at(test_users: TestUsers) -> None:
    beats: list[float] = []

    def beat() -> None:
        while True:
            beats.append(time.monotonic())
            gevent.sleep(0.002)

    script = "for i in $(seq 1000); do sleep 60 & done; wait"
    with hostile(test_users.agent, "/bin/bash", "-c", script):
        gevent.sleep(1.5)
        heart = gevent.spawn(beat)
        gevent.sleep(0.01)
        end_processes(test_users.agent)
        heart.kill()
    assert max(later - earlier for earlier, later in itertools.pairwise(beats)) < 1


STOPPER = """
import os, signal, time
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    try: os.kill(-1, signal.SIGSTOP)
    except OSError: pass
"""


def test_processes_that_stop_each_other_do_not_stop_the_killer(test_users: TestUsers) -> None:
    # Whatever becomes the agent's is stopped at once; a killer that were the agent's would hold up the daemon for ever.
    assert ended(test_users.agent, "/usr/bin/python3", "-I", "-S", "-c", STOPPER.format(seconds=30)) < 5


def test_a_program_that_is_stopped_before_it_starts_does_not_hold_up_its_starter(test_users: TestUsers) -> None:
    with hostile(test_users.agent, "/usr/bin/python3", "-I", "-S", "-c", STOPPER.format(seconds=8)):
        started = time.monotonic()
        for _ in range(3):
            with contextlib.suppress(CommandError):
                run_command(["/bin/true"], account=test_users.agent, cwd="/", env={}, limit_bytes=10, timeout_s=1.0)
        assert time.monotonic() - started < 25
        end_processes(test_users.agent)
