"""Which processes belong to the command that runs now, and their end.

Runs as: the daemon (root).
Distrusts: the processes: they ignore signals, change session and group, are stopped, fork while they are looked at.
Promises: a signal reaches only processes of the shell's account that descend from the shell; a process is addressed
  by a descriptor, so a number that was given to another process in between is never hit.
Does not promise: to catch what forks faster than it is killed; the caller then ends the shell, and the end of the
  agent phase kills by user.
Checked by: tests/conformance (endings, timeouts).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import gevent

from shell.turns import give_turn

_TICKS = os.sysconf("SC_CLK_TCK")
_PROCESSES_PER_TURN = 200


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc: who it is, whose child, and since when (in clock ticks since boot)."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment, to tell processes of before from those of after: a tick is long, so within one the numbers tell."""

    ticks: int
    last_pid: int

    @classmethod
    def now(cls) -> Moment:
        """This moment."""
        ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
        # Asked for each command, so without a file object, which takes ten times as long.
        fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return cls(ticks, int(os.read(fd, 100).split()[-1]))
        finally:
            os.close(fd)

    def is_after(self, found: Process) -> bool:
        """Whether ``found`` was started before this moment."""
        return (found.started, found.pid) <= (self.ticks, self.last_pid)


def process(pid: int) -> Process | None:
    """The process ``pid``; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name may hold blanks and brackets; nothing after the last bracket can.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def descendants(root: int) -> list[Process]:
    """Every living process below ``root``. Orphans count: the shell adopts them, see session_terminal."""
    children: dict[int, list[Process]] = {}
    for found in _everyone():
        children.setdefault(found.parent, []).append(found)
    below, todo = [], [root]
    while todo:
        more = children.pop(todo.pop(), [])
        below += more
        todo += [child.pid for child in more]
    return below


def in_sessions(sessions: Collection[int]) -> list[Process]:
    """Every living process of these terminal sessions."""
    return [found for found in _everyone() if found.session in sessions]


def _everyone() -> Iterator[Process]:
    """Every living process. Others get their turn in between: there may be thousands."""
    for count, name in enumerate(os.listdir("/proc")):
        if count % _PROCESSES_PER_TURN == 0:
            give_turn()
        if name.isdigit() and (found := process(int(name))) and found.state not in "ZX":
            yield found


def end_all(find: Callable[[], list[Process]], uid: int, within_s: float) -> bool:
    """Kill what ``find`` returns until it returns nothing; False when that takes longer than ``within_s``."""
    deadline = time.monotonic() + within_s
    while found := find():
        if time.monotonic() > deadline:
            return False
        # Stopped processes do not fork: so a storm of them is caught up with.
        send_signal(found, signal.SIGSTOP, uid)
        send_signal(found, signal.SIGKILL, uid)
        gevent.sleep(0.002)
    return True


def foreground(shell: int, foreground_group: int, since: Moment, *, has_jobs: bool) -> list[Process]:
    """The processes of the command that runs in ``shell`` now.

    Not among them, with all they started: what is older than the command and does not hold the terminal; orphans of
    such, known by the leader of their session or group; and the command's own jobs in the background (children of the
    shell in its session, with a group of their own that does not hold the terminal). Without job control (``has_jobs``)
    such a group is no sign of a job.
    """
    own = process(shell)
    below = descendants(shell)
    if own is None:
        return below
    # A job of before that was brought to the foreground is what the command waits for now.
    old = {found.pid for found in below if since.is_after(found) and found.group != foreground_group}
    spared = {shell}
    spared_groups: set[int] = set()
    ours = []
    for found in below:  # parents come before their children
        is_job = has_jobs and found.session == own.session and found.group not in (foreground_group, own.group)
        is_old = not old.isdisjoint((found.pid, found.session, found.group))
        if found.parent == shell:
            spare = is_old or (is_job and (found.group == found.pid or found.group in spared_groups))
        else:
            spare = found.parent in spared
        if spare:
            spared.add(found.pid)
            spared_groups.add(found.group)
        else:
            ours.append(found)
    return ours


def send_signal(processes: Iterable[Process], number: int, uid: int) -> None:
    """Signal those of ``processes`` that still are the same ones and belong to ``uid``."""
    for target in processes:
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(target.pid)
            try:
                now = process(target.pid)
                # /proc shows root as the owner of a process that cannot be traced. No descendant of the shell can be
                # root's: the shell runs with no_new_privs.
                if now and now.started == target.started and os.stat(f"/proc/{target.pid}").st_uid in (uid, 0):
                    signal.pidfd_send_signal(fd, number)
            finally:
                os.close(fd)
