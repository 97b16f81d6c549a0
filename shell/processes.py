"""Every process of a user, and their end.

Runs as: root; the kill itself is done by a short-lived child with the user's own rights.
Distrusts: the processes it ends: they may fork without pause, ignore signals, change session or name, be stopped.
Promises: when ``end_processes`` returns, no process has the account's uid (and, if asked, gid) as real, effective or
  saved id, zombies aside. Nobody else's process is signalled. Nothing is chosen by name.
Does not promise: anything about processes of other users that the account's processes had started.
Checked by: tests/system/test_processes.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import gevent
from gevent import monkey

from shell.accounts import Account, become, default_signals, is_isolated
from shell.errors import ProcessesLeftError

_fork = monkey.get_original("os", "fork")
_waitpid = monkey.get_original("os", "waitpid")


def processes_of(account: Account, *, by_gid: bool = False) -> list[int]:
    """The pids of the account's processes, by any of the real, effective and saved uid; zombies are left out.

    With ``by_gid`` also those that have the account's gid in one of these slots.
    """
    return [pid for pid, uids, gids in _identities() if account.uid in uids or (by_gid and account.gid in gids)]


def end_processes(account: Account, *, by_gid: bool = False, within_s: float = 5.0) -> None:
    """Kill every process of the account and wait until none is left; ProcessesLeftError after ``within_s``.

    Does nothing when the daemon is not root: the account's processes then are the caller's own.
    """
    if not is_isolated() or account.uid == 0:
        return
    deadline = time.monotonic() + within_s
    while left := processes_of(account, by_gid=by_gid):
        # One kill(-1) by the user itself reaches all of them in one step of the kernel: no fork storm outruns it.
        _kill_all_as(account)
        # A process with a foreign real uid but the account's saved one, or of the group only, needs root's hand.
        for pid in left:
            _kill_if_still(pid, account, by_gid)
        if time.monotonic() > deadline:
            raise ProcessesLeftError(account.name, left)
        gevent.sleep(0.002)


def _kill_if_still(pid: int, account: Account, by_gid: bool) -> None:
    """Kill ``pid`` through a pidfd that is opened before its identity is read again: the number may be reused."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            identity = _identity(str(pid))
            if identity and (account.uid in identity[1] or (by_gid and account.gid in identity[2])):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


def _kill_all_as(account: Account) -> None:
    child = _fork()
    if child == 0:
        try:
            default_signals()
            become(account)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        _waitpid(child, 0)


def _identities() -> Iterator[tuple[int, set[int], set[int]]]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (identity := _identity(name)):
            yield identity


def _identity(pid: str) -> tuple[int, set[int], set[int]] | None:
    """(pid, uids, gids) of a process, None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            fields = dict(line.split(":", 1) for line in status if ":" in line)
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields.get("State", "").strip()[:1] in ("Z", "X"):
        return None
    uids, gids = ({int(word) for word in fields[key].split()[:3]} for key in ("Uid", "Gid"))
    return int(pid), uids, gids
