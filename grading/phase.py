"""The agent phase and its end: after it the agent can neither ask for anything nor have anything run.

Runs as: root; what the agent left in shared places is removed with the agent's own rights.
Distrusts: the agent's processes, its home, its source tree, its archive.
Promises: the end is on the disk before the first process is killed, so no crash opens the phase again; from then on
  ``ended`` is true; when ``end`` returns no process of the agent's uid is left, its crontab and at jobs are gone, and
  the runner can enter none of the closed paths.
Does not promise: to close directories of the agent's outside the closed paths and the shared places.
Checked by: tests/system/test_phase.py, tests/attack/test_left_for_grading.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import gevent
from gevent.lock import BoundedSemaphore

from grading.state import RunState
from shell.accounts import Account, is_isolated
from shell.cleaning import SharedPlaces, remove_jobs
from shell.directories import open_directory
from shell.processes import end_processes

log = logging.getLogger(__name__)

# A purge that takes longer goes on while the answer is given; grading waits for its end.
_PURGE_ANSWER_SECONDS = 3.0


class AgentPhase:
    """The time in which the agent may act. It ends once and for all.

    ``closed_paths`` are the agent's own directories (source tree, home, archive): they are closed to other users at
    the end, and never removed. ``places`` are the places that all users share.
    """

    def __init__(self, state: RunState, agent: Account, closed_paths: Sequence[str]) -> None:
        self._state = state
        self._agent = agent
        self._closed_paths = tuple(closed_paths)
        self._ended = state.phase_ended()
        self._finished = False
        self._lock = BoundedSemaphore(1)
        self._cleaning: gevent.Greenlet[..., None] | None = None
        self.places = SharedPlaces(agent, keep=closed_paths)

    @property
    def ended(self) -> bool:
        """Whether the phase has ended, in this start of the daemon or an earlier one."""
        return self._ended

    @property
    def resumed(self) -> bool:
        """Whether an earlier start of the daemon served this run already."""
        return self._state.resumed

    @property
    def support_path(self) -> str:
        """A root-only directory of the run for the first state of the task's support directories."""
        return os.path.join(self._state.path, "support")

    def end(self) -> None:
        """End the phase. A call after a successful one has no effect, one after a failed one tries again.

        ProcessesLeftError when a process of the agent's could not be killed within 5 s; the phase has ended all the
        same.
        """
        # Before anything can fail: nothing is allowed any more.
        self._ended = True
        with self._lock:
            if self._finished:
                return
            gevent.get_hub().threadpool.apply(self._state.mark_phase_ended)
            end_processes(self._agent)
            remove_jobs(self._agent)
            for path in self._closed_paths:
                _close_to_others(path, self._agent)
            # A job that cron started between the kill and its removal.
            end_processes(self._agent)
            self._cleaning = gevent.spawn(self.places.try_purge, self._agent, everywhere=True)
            self._cleaning.join(timeout=_PURGE_ANSWER_SECONDS)
            self._finished = True

    def clean(self) -> None:
        """After the end, once more: free the shared places of the agent's things; no effect during the phase.

        What ``end`` could not remove, what code of the agent's in a check that still ran has linked there since, what
        a job of cron's that was just being started has left. CleaningError when something may be left.
        """
        if not self._ended:
            return
        if self._cleaning is not None:
            self._cleaning.join()
        end_processes(self._agent)
        self.places.purge(self._agent, everywhere=True)


def _close_to_others(path: str, agent: Account) -> None:
    """Take every right of group and others from the agent's directory at ``path``.

    Root changes a mode here, so it must be the right directory: opened without following links, the owner checked on
    the open descriptor, and the mode changed through it.
    """
    if not is_isolated():
        return
    try:
        fd = open_directory(path)
    except OSError as error:
        # Gone, or replaced. A file or a link in a shared place is removed there, and so is what a link leads to.
        log.warning("could not close %s to other users: %s", path, error.strerror)
        return
    try:
        found = os.fstat(fd)
        if found.st_uid == agent.uid:
            os.fchmod(fd, found.st_mode & 0o700)
        elif found.st_uid == 0:
            os.fchmod(fd, found.st_mode & 0o770)
    finally:
        os.close(fd)
