"""Becoming another user: complete, for good, and verified."""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
from pathlib import Path

import pytest

from shell.accounts import Account, child_setup, current_account, find_account, is_isolated, unprivileged_pair
from shell.command import CommandResult, run_command
from shell.errors import AccountError, CommandError
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


KEY_CALLS = """
import ctypes, platform
add, request, control = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments): return ctypes.get_errno() if libc.syscall(*arguments) < 0 else 0
print(call(add, b"user", b"note", b"x", 1, -4), call(request, b"user", b"note", None, 0), call(control, 0, -4, 0))
"""
# push rbx; eax = keyctl of i386; ebx = ecx = edx = 0; int 0x80; pop rbx; ret
KEY_CALL_OF_32_BIT = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("53b82001000031db31c931d2cd805bc3"))
print(-ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())
"""


def test_no_key_can_be_left_or_found(test_users: TestUsers) -> None:
    for account in (test_users.agent, test_users.runner):
        answer = run_as(account, f"python3 -I -S -c '{KEY_CALLS}'")
        assert answer.stdout.split() == [b"%d" % errno.ENOSYS] * 3, answer


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the 32-bit calls of x86")
def test_no_key_can_be_left_or_found_with_the_calls_of_32_bit(test_users: TestUsers) -> None:
    argv = ["/usr/bin/python3", "-I", "-S", "-c", KEY_CALL_OF_32_BIT]
    if subprocess.run(argv, check=False, capture_output=True).returncode != 0:
        pytest.skip("this kernel has no 32-bit calls")
    answer = run_as(test_users.runner, f"python3 -I -S -c '{KEY_CALL_OF_32_BIT}'")
    assert answer.stdout.split() == [b"%d" % errno.ENOSYS], answer


def test_a_child_that_starts_after_its_parents_end_does_not_run(test_users: TestUsers) -> None:
    setup = child_setup(test_users.agent, "/")
    read_end, write_end = os.pipe()
    # The child's child has another parent than the one that asked for the setup.
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            try:
                setup()
            except AccountError as error:
                os.write(write_end, str(error).encode())
            os._exit(0)
        os.wait()
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    assert os.read(read_end, 100) == b"the daemon has ended"
    os.close(read_end)


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
