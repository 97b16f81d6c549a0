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
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import gevent
from gevent import monkey

from shell.accounts import Account, is_isolated, unused_id
from shell.errors import ProcessesLeftError
from shell.turns import give_turn

_STATUS = re.compile(rb"^State:\s+(?P<state>\w).*?^Uid:\s+(?P<uids>[\d\s]+?)^Gid:\s+(?P<gids>[\d\t]+)", re.M | re.S)
_ONE_THREAD = re.compile(rb"^Threads:\s+[01]$", re.M)
_STATUS_BYTES = 8192
_PIDS_PER_TURN = 100
_PASS_SECONDS = 0.002
_ORPHAN_PASSES = 50

_fork = monkey.get_original("os", "fork")
_waitpid = monkey.get_original("os", "waitpid")


def processes_of(account: Account, *, by_gid: bool = False) -> list[int]:
    """The pids of the account's processes, by any of the real, effective and saved uid; zombies are left out.

    With ``by_gid`` also those that have the account's gid in one of these slots.
    """
    found = ((pid, _identity(pid)) for pid in _pids())
    return [pid for pid, identity in found if identity is not None and identity.belongs_to(account, by_gid)]


def end_processes(account: Account, *, by_gid: bool = False, within_s: float = 5.0) -> None:
    """Kill every process of the account and wait until none is left; ProcessesLeftError after ``within_s``.

    Does nothing when the daemon is not root: the account's processes then are the caller's own.
    """
    if not is_isolated() or account.uid == 0:
        return
    deadline = time.monotonic() + within_s
    # Looked up here, not in the child: between fork and kill nothing should read files.
    unused_id()
    # One kill(-1) by the user itself reaches all of them in one step of the kernel: no fork storm outruns it. It comes
    # before any look, and no look stands in for it: a process that forks and exits without pause is another one by
    # the time its number is read, so a look that finds nothing proves nothing.
    reached = _kill_all_as(account)
    while (left := _find(account, by_gid)) or not reached:
        # A process with a foreign real uid but the account's saved one, or of the group only, needs root's hand. So do
        # the first ones when there is no room for one more process.
        for pid in left:
            _kill_if(pid, lambda identity: identity.belongs_to(account, by_gid))
        if time.monotonic() > deadline:
            raise ProcessesLeftError(account.name, left)
        gevent.sleep(_PASS_SECONDS)
        reached = _kill_all_as(account) or reached


def end_orphans(leader: int, account: Account) -> None:
    """Kill what an ended session leader of the account's left in its process group and session.

    The leader has been reaped, so its number may by now be that of another group: each process is looked at first.
    """
    for _ in range(_ORPHAN_PASSES):
        try:
            os.killpg(leader, 0)
        except OSError:
            return
        found = [pid for pid in _pids() if _session_of(pid) == leader]
        for pid in found:
            _kill_if(pid, lambda identity: identity.belongs_to(account, by_gid=False))
        if not found:
            return
        gevent.sleep(_PASS_SECONDS)


@dataclass(frozen=True, slots=True)
class _Identity:
    """The real, effective and saved ids of one process."""

    uids: tuple[int, ...]
    gids: tuple[int, ...]

    def belongs_to(self, account: Account, by_gid: bool) -> bool:
        return account.uid in self.uids or (by_gid and account.gid in self.gids)


def _find(account: Account, by_gid: bool) -> list[int]:
    """``processes_of``, with a pause after each bunch: thousands of processes must not hold up the event loop."""
    found = []
    for number, pid in enumerate(_pids(), 1):
        identity = _identity(pid)
        if identity is not None and identity.belongs_to(account, by_gid):
            found.append(pid)
        if number % _PIDS_PER_TURN == 0:
            give_turn()
    return found


def _kill_if(pid: int, wanted: Callable[[_Identity], bool]) -> None:
    """Kill ``pid`` through a pidfd that is opened before its identity is read: the number may be reused."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            identity = _identity(pid)
            if identity is not None and wanted(identity):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


def _kill_all_as(account: Account) -> bool:
    """Send SIGKILL to all that the account itself may signal; False when no process could be made that does it."""
    try:
        child = _fork()
    except OSError:
        return False
    if child == 0:
        try:
            _become_killer(account)
            # Nobody there to signal is as good as all of them signalled.
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            os._exit(0)
        finally:
            os._exit(1)
    status: int = _waitpid(child, 0)[1]
    return status == 0


def _become_killer(account: Account) -> None:
    """Take the account's rights to signal without being signalled by it: a stopped killer would stop the daemon.

    A process may signal others when its effective uid is their real or saved one. So only the effective uid is the
    account's. The other two must be nobody's: as root's they would let kill(-1) reach everybody's processes.
    """
    nobody = unused_id()
    os.setgroups([])
    os.setresgid(nobody, nobody, nobody)
    os.setresuid(nobody, account.uid, nobody)
    if os.getresuid() != (nobody, account.uid, nobody):
        os._exit(1)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _identity(pid: int) -> _Identity | None:
    """Who a process is; None when it is gone or a zombie."""
    try:
        fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, _STATUS_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return None
    # The kernel escapes line ends in names, so a process cannot forge these lines.
    found = _STATUS.search(text)
    if found is None:
        return None
    # A zombie with threads is a process of which only the first thread has ended.
    if found["state"] in (b"Z", b"X") and _ONE_THREAD.search(text):
        return None
    uids, gids = (tuple(map(int, found[key].split()[:3])) for key in ("uids", "gids"))
    return _Identity(uids, gids)
