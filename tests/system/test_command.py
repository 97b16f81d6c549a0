"""One command as a user: its result, its limits, and that nothing of it stays."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import gevent
import pytest

from shell.accounts import Account, current_account
from shell.command import CommandResult, Ending, run_command
from shell.errors import CommandError
from shell.processes import end_processes, processes_of
from shell.stop import StopSignal
from tests.support.users import TestUsers

pytestmark = pytest.mark.users


def sh(account: Account, script: str, **more: Any) -> CommandResult:
    options: dict[str, Any] = {"cwd": "/", "env": {"PATH": "/usr/bin:/bin"}, "limit_bytes": 1 << 20, "timeout_s": 30.0}
    options |= more
    return run_command(["/bin/sh", "-c", script], account=account, **options)


def test_streams_come_apart_and_byte_exact(test_users: TestUsers) -> None:
    answer = sh(test_users.runner, r"printf 'a\r\n\0\377'; printf 'b\n' >&2; exit 7")
    assert (answer.stdout, answer.stderr, answer.code) == (b"a\r\n\0\xff", b"b\n", 7)
    assert answer.ending is Ending.EXITED


def test_a_signal_is_128_and_its_number(test_users: TestUsers) -> None:
    assert sh(test_users.runner, "kill -SEGV $$").code == 139


def test_standard_input_is_at_its_end(test_users: TestUsers) -> None:
    assert sh(test_users.runner, "cat; echo done").stdout == b"done\n"


def test_the_environment_is_exactly_what_was_given(test_users: TestUsers) -> None:
    answer = run_command(
        ["/usr/bin/env"], account=test_users.runner, cwd="/", env={"A": "1"}, limit_bytes=1000, timeout_s=10
    )
    assert answer.stdout == b"A=1\n"


def test_no_descriptor_of_the_daemons_is_inherited(test_users: TestUsers, tmp_path: Path) -> None:
    # Kept open and inheritable on purpose: the third and only other descriptor is that of the listing.
    leaked = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        assert sh(test_users.runner, "ls /proc/self/fd").stdout.split() == [b"0", b"1", b"2", b"3"]
    finally:
        os.close(leaked)


def test_time_runs_out_with_the_output_so_far(test_users: TestUsers) -> None:
    answer = sh(test_users.runner, "echo early; sleep 60", timeout_s=0.3)
    assert (answer.code, answer.stdout, answer.ending) == (124, b"early\n", Ending.TIMED_OUT)
    assert answer.duration_s < 10


def test_a_stop_signal_ends_it_early(test_users: TestUsers) -> None:
    stop = StopSignal()
    gevent.spawn_later(0.2, stop.set, "its client went away")
    answer = sh(test_users.runner, "echo early; exec sleep 60", stop=stop)
    assert (answer.stdout, answer.ending) == (b"early\n", Ending.STOPPED)
    assert answer.code == 137


def test_an_orphan_in_the_group_is_ended_and_does_not_hold_the_answer(test_users: TestUsers) -> None:
    started = time.monotonic()
    answer = sh(test_users.runner, "(trap '' TERM HUP INT; sleep 60) & echo done")
    assert answer.stdout == b"done\n"
    assert time.monotonic() - started < 10
    assert processes_of(test_users.runner) == []


def test_a_process_that_left_the_session_is_found_by_the_sweep(test_users: TestUsers) -> None:
    answer = sh(
        test_users.runner,
        "setsid sh -c 'setsid sleep 60' & sleep 0.2; echo done",
        sweep=lambda: end_processes(test_users.runner, by_gid=True),
    )
    assert answer.stdout == b"done\n"
    assert processes_of(test_users.runner) == []


def test_output_beyond_the_limit_is_cut_while_it_is_read(test_users: TestUsers) -> None:
    answer = sh(test_users.runner, "yes 0123456789 | head -c 30000000; echo end", limit_bytes=100_000)
    assert len(answer.stdout) < 101_000
    assert answer.stdout.startswith(b"0123456789\n") and answer.stdout.endswith(b"end\n")
    assert b"bytes are missing here" in answer.stdout


def test_a_program_that_never_stops_printing_lets_others_be_served(test_users: TestUsers) -> None:
    beats: list[float] = []

    def beat() -> None:
        while True:
            beats.append(time.monotonic())
            gevent.sleep(0.005)

    heart = gevent.spawn(beat)
    sh(test_users.runner, "exec cat /dev/zero", timeout_s=1.0, limit_bytes=1000)
    heart.kill()
    assert len(beats) > 10
    assert max(later - earlier for earlier, later in itertools.pairwise(beats)) < 0.5


def test_what_cannot_be_started_is_our_error_and_leaks_nothing(test_users: TestUsers) -> None:
    with pytest.raises(CommandError, match="no-such-program"):
        run_command(["/no-such-program"], account=test_users.runner, cwd="/", env={}, limit_bytes=10)


def test_hundreds_of_quick_commands_keep_their_codes() -> None:
    for number in range(200):
        answer = run_command(
            ["/bin/sh", "-c", f"exit {number}"], account=current_account(), cwd="/", env={}, limit_bytes=10
        )
        assert answer.code == number


def test_commands_at_the_same_time_do_not_wait_for_each_other(test_users: TestUsers) -> None:
    started = time.monotonic()
    jobs = [gevent.spawn(sh, account, "sleep 1") for account in (test_users.agent, test_users.runner) for _ in range(3)]
    gevent.joinall(jobs)
    assert time.monotonic() - started < 4
    assert all(job.get().code == 0 for job in jobs)


def test_the_umask_is_the_one_given(test_users: TestUsers) -> None:
    assert sh(test_users.runner, "umask", umask=0o077).stdout == b"0077\n"
