"""Users, and becoming one.

Runs as: root (or, in development, one ordinary user who then is everybody).
Distrusts: nothing at lookup; the child it confines is about to run hostile code.
Promises: after ``become`` the process has exactly the account's uid, gid and groups in all three slots, cannot get
  root back, gains nothing through set-uid programs, can leave no keys in the kernel, has default signals, and dies
  with the daemon, also when that has died already.
Does not promise: anything when the daemon itself is not root; then every account is the calling user.
Checked by: tests/system/test_accounts.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import grp
import os
import pwd
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from shell.errors import AccountError
from shell.keys import forbid_keys

_UNUSED_IDS = range(60_000, 65_000)
# Of 1000, which is "this one first"; the daemon keeps what it was given.
_OOM_SCORE = 500
# Of one user, threads included: more than any build uses, less than a machine has.
_MAX_PROCESSES = 4096
# From the switch of identity to exec.
_START_SECONDS = 3
_SIGEV_SIGNAL = 0
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_GET_NO_NEW_PRIVS = 39

# The daemon raises its own limit for connections after this; what it starts gets the one it was started with.
_DESCRIPTOR_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)

# Loaded here, not in the child: between fork and exec nothing should look for a library.
_libc = ctypes.CDLL(None, use_errno=True)
# glibc before 2.34 keeps timers apart.
_timers = _libc if hasattr(_libc, "timer_create") else ctypes.CDLL("librt.so.1", use_errno=True)


@dataclass(frozen=True, slots=True)
class Account:
    """One user as the kernel sees it, and where that user is at home."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    def with_private_gid(self, gid: int) -> Account:
        """The same uid under a group of its own: processes of the account proper can then not trace it."""
        return replace(self, gid=gid, groups=(gid,))


def find_account(name: str) -> Account:
    """The account called ``name``; AccountError when the system has none."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise AccountError(f"user {name} does not exist; create it with: useradd --create-home {name}") from None
    groups = tuple(sorted(set(os.getgrouplist(name, entry.pw_gid))))
    return Account(name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)


def current_account() -> Account:
    """The calling user, for a daemon that was not started as root."""
    uid = os.geteuid()
    try:
        return find_account(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return Account(str(uid), uid, os.getegid(), tuple(os.getgroups()), os.environ.get("HOME", "/"))


def unprivileged_pair(agent: str, runner: str) -> tuple[Account, Account]:
    """The agent's and the runner's accounts; AccountError when one is missing, is root, or both are one user."""
    first, second = find_account(agent), find_account(runner)
    for account in (first, second):
        if account.uid == 0 or account.gid == 0 or 0 in account.groups:
            raise AccountError(f"user {account.name} has root's uid or group; name an unprivileged user")
    if first.uid == second.uid:
        raise AccountError(f"agent and runner are the same user ({agent}, {runner}); name two different ones")
    if first.gid in second.groups or second.gid in first.groups:
        raise AccountError(f"users {agent} and {runner} share a group; give each a group of its own")
    return first, second


@functools.cache
def unused_id() -> int:
    """A number that is no uid and no gid of the system, small enough for the map of a user namespace."""
    used = {entry.gr_gid for entry in grp.getgrall()}
    used |= {number for entry in pwd.getpwall() for number in (entry.pw_uid, entry.pw_gid)}
    return next(number for number in reversed(_UNUSED_IDS) if number not in used)


def is_isolated() -> bool:
    """Whether accounts can be switched at all, that is: whether the daemon runs as root."""
    return os.geteuid() == 0


def child_setup(account: Account, cwd: str | None, *, umask: int = 0o022) -> Callable[[], None]:
    """What a child must do between fork and exec to run as ``account`` in ``cwd``.

    Fits ``preexec_fn`` of subprocess and of pexpect. An exception in it keeps the program from starting.
    """

    parent = os.getpid()

    def setup() -> None:
        default_signals()
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, _DESCRIPTOR_LIMIT)
        _be_expendable(account)
        _limit_start()
        become(account)
        # A parent that died before the signal for its death was asked for sends none.
        if os.getppid() != parent:
            raise AccountError("the daemon has ended")
        # After the switch of identity, so that root never follows a link the agent planted.
        if cwd is not None:
            os.chdir(cwd)

    return setup


def _limit_start() -> None:
    """Let the kernel kill this process unless it has become another program soon.

    Once it is the user's, other processes of that user may stop it, and whoever waits for its exec would wait for
    ever. The timer ends with exec; SIGKILL also ends what is stopped.
    """
    timer = ctypes.c_void_p()
    event = _SignalEvent(None, signal.SIGKILL, _SIGEV_SIGNAL)
    spec = _TimerSpec(0, 0, _START_SECONDS, 0)
    if _timers.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) != 0:
        raise AccountError(f"timer_create failed: {os.strerror(ctypes.get_errno())}")
    if _timers.timer_settime(timer, 0, ctypes.byref(spec), None) != 0:
        raise AccountError(f"timer_settime failed: {os.strerror(ctypes.get_errno())}")


class _SignalEvent(ctypes.Structure):
    """struct sigevent: 64 bytes on every 64-bit Linux."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: the interval, then the first time."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


def _be_expendable(account: Account) -> None:
    """Let memory and process numbers run out here before they run out for the daemon. Best effort."""
    with contextlib.suppress(OSError, ValueError):
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"%d" % _OOM_SCORE)
        finally:
            os.close(fd)
        if account.uid != 0 and is_isolated():
            _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
            limit = _MAX_PROCESSES if hard == resource.RLIM_INFINITY else min(hard, _MAX_PROCESSES)
            resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def default_signals() -> None:
    """Give every signal its default action and an empty mask: Python ignores SIGPIPE and SIGXFSZ, children inherit."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def become(account: Account) -> None:
    """Turn this process into ``account`` for good and verify it; AccountError when anything is not as asked.

    The order is the point: groups while still root, gid before uid (after it there is no right to change it), and
    the parent-death signal last, because a change of credentials clears it.
    """
    is_switched = os.geteuid() == 0
    if is_switched:
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
    if os.getresuid() != (account.uid,) * 3 or (account.uid != 0 and 0 in os.getresgid()):
        raise AccountError(f"could not become user {account.name}")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if _libc.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
        raise AccountError("no_new_privs did not take effect")
    if is_switched and account.uid != 0:
        forbid_keys()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise AccountError(f"prctl({option}) failed: {os.strerror(ctypes.get_errno())}")
