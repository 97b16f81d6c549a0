"""Becoming another user: complete, for good, and verified."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shell.accounts import Account, current_account, find_account, is_isolated, unprivileged_pair
from shell.command import CommandResult, run_command
from shell.errors import AccountError, CommandError
from tests.support.live import REPOSITORY
from tests.support.users import TestUsers

pytestmark = pytest.mark.users


def run_as(account: Account, script: str) -> CommandResult:
    return run_command(
        ["/bin/sh", "-c", script],
        account=account,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        limit_bytes=1 << 20,
        timeout_s=20,
    )


def status_of(account: Account) -> dict[str, str]:
    text = run_as(account, "cat /proc/self/status").stdout.decode()
    return {key: value.strip() for key, value in (line.split(":", 1) for line in text.splitlines() if ":" in line)}


def test_all_ids_are_the_accounts_and_root_is_out_of_reach(test_users: TestUsers) -> None:
    for account in (test_users.agent, test_users.runner):
        status = status_of(account)
        assert set(status["Uid"].split()) == {str(account.uid)}
        assert set(status["Gid"].split()) == {str(account.gid)}
        assert set(map(int, status["Groups"].split())) == set(account.groups)
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapAmb"], 16) == 0


def test_set_uid_programs_give_nothing(test_users: TestUsers) -> None:
    assert status_of(test_users.agent)["NoNewPrivs"] == "1"
    answer = run_as(test_users.agent, "su root -c id; sudo -n id; id -u")
    assert answer.stdout.decode().split() == [str(test_users.agent.uid)]


def test_signals_are_default_and_unblocked(test_users: TestUsers) -> None:
    status = status_of(test_users.runner)
    assert int(status["SigIgn"], 16) == int(status["SigBlk"], 16) == int(status["SigCgt"], 16) == 0


def test_a_private_group_keeps_the_uid_and_hides_from_the_account_itself(test_users: TestUsers) -> None:
    private = test_users.agent.with_private_gid(64999)
    status = status_of(private)
    assert set(status["Uid"].split()) == {str(test_users.agent.uid)}
    assert set(status["Gid"].split()) == {"64999"}


SEARCH_KEY = """
import ctypes, platform
add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
libc = ctypes.CDLL(None)
SEARCH, SESSION, JOIN = 10, -3, 1
def seen(): return libc.syscall(keyctl, SEARCH, SESSION, b"user", b"ssebench-test", 0) >= 0
"""
# A daemon that was started from a session with a keyring; everybody who has inherited that may read and add keys.
INHERITED_KEYRING = f"""{SEARCH_KEY}
import subprocess, sys
from shell.accounts import child_setup, find_account
if libc.syscall(keyctl, JOIN, None) < 0 or libc.syscall(add_key, b"user", b"ssebench-test", b"x", 1, SESSION) < 0:
    sys.exit("no keyrings")
assert seen()
argv = ["/usr/bin/python3", "-I", "-S", "-c", {SEARCH_KEY + "print(seen())"!r}]
subprocess.run(argv, preexec_fn=child_setup(find_account(sys.argv[1]), "/"), check=True)
"""


def test_keys_of_the_daemons_session_are_out_of_reach(test_users: TestUsers) -> None:
    argv = [sys.executable, "-c", INHERITED_KEYRING, test_users.runner.name]
    ended = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if "no keyrings" in ended.stderr:
        pytest.skip("this kernel or container has no keyrings")
    assert ended.stdout == "False\n", ended.stderr


def test_the_kernel_ends_children_before_the_daemon_when_memory_runs_out(test_users: TestUsers) -> None:
    assert int(run_as(test_users.runner, "cat /proc/self/oom_score_adj").stdout) >= 500


def test_processes_of_a_user_are_limited_in_number(test_users: TestUsers) -> None:
    (line,) = run_as(test_users.runner, "grep 'Max processes' /proc/self/limits").stdout.decode().splitlines()
    assert int(line.split()[3]) <= 4096


def test_the_working_directory_is_entered_with_the_users_rights(test_users: TestUsers, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(CommandError, match="could not start"):
        run_command(["/bin/true"], account=test_users.agent, cwd=str(closed), env={}, limit_bytes=10)


def test_a_missing_user_is_named_with_the_remedy() -> None:
    with pytest.raises(AccountError, match="useradd"):
        find_account("nobody-of-this-name")


def test_privileged_and_identical_users_are_refused(test_users: TestUsers) -> None:
    with pytest.raises(AccountError, match="root"):
        unprivileged_pair("root", test_users.runner.name)
    with pytest.raises(AccountError, match="same user"):
        unprivileged_pair(test_users.agent.name, test_users.agent.name)
    assert unprivileged_pair(test_users.agent.name, test_users.runner.name) == (test_users.agent, test_users.runner)


def test_root_is_isolated_and_its_own_account() -> None:
    assert is_isolated() and current_account().uid == 0


def test_the_parent_death_signal_is_set(test_users: TestUsers) -> None:
    program = "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)"
    answer = run_command(
        ["/usr/bin/python3", "-I", "-S", "-c", program],
        account=test_users.agent,
        cwd="/",
        env={},
        limit_bytes=100,
    )
    assert int(answer.stdout) == signal.SIGKILL
    assert os.geteuid() == 0
