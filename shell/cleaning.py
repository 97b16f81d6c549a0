"""What a user left behind outside its own directories, and its removal.

Runs as: root; the removal itself is done by programs with the rights of the user whose things are removed.
Distrusts: every file and directory of that user.
Promises: nothing of anybody else is touched; no link is followed; the daemon's event loop is never held up; who is
  told that all is gone can rely on it.
Does not promise: to find files in directories that only a group can enter, or made world-writable by others outside
  the shared places after the start.
Checked by: tests/system/test_cleaning.py, tests/attack/test_left_for_grading.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections.abc import Iterable, Sequence

import gevent

from shell.accounts import Account, current_account, is_isolated
from shell.command import CommandResult, Ending, run_command
from shell.directories import open_directory
from shell.errors import CommandError, SSEBenchError
from shell.programs import program_argv
from shell.stop import StopSignal
from shell.takeover import take_from

log = logging.getLogger(__name__)

# Shared by convention; the scan finds what an image has beyond these.
USUAL_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/dev/mqueue")  # noqa: S108 (places to clean, not to use)
_CRON_FOLDERS = ("/var/spool/cron", "/var/spool/cron/crontabs", "/var/spool/cron/atjobs", "/var/spool/at")
_NOT_SCANNED = ("/proc", "/sys", "/dev")
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
# What has a meaning in a pattern of find's.
_PATTERN = re.compile(r"[\\*?\[]")
_NICE = ("/usr/bin/nice", "-n", "19")
_MESSAGE_BYTES = 1 << 16
_FOUND_BYTES = 1 << 24
_MARGIN_BYTES = 1 << 10
_CLEAN_SECONDS = 300.0
_SCAN_SECONDS = 120.0


class CleaningError(SSEBenchError):
    """Something of a user's may be left where others find it."""


class SharedPlaces:
    """The directories that every user may write to, found once, and how they are freed of one user's things."""

    def __init__(self, owner: Account | None = None, keep: Iterable[str] = ()) -> None:
        """``keep``: directories that stay, with everything below them, also when ``owner``'s things are removed.

        What took the place of one does not stay: nothing that is no directory, no directory of another user's.
        """
        self._owner = owner
        self._keep = {os.path.normpath(path) for path in keep}
        self._places = [place for place in USUAL_PLACES if os.path.isdir(place)]
        self._scan: gevent.Greenlet[..., None] | None = None
        self._scanned = False
        self._guest: Account | None = None
        self._stop = StopSignal()

    def keep(self, *paths: str) -> None:
        """Add directories to keep."""
        self._keep.update(map(os.path.normpath, paths))

    def kept_from(self, account: Account) -> list[str]:
        """The paths that a purge of ``account`` leaves alone."""
        return sorted(path for path in self._keep if self._stays(path, account))

    def _stays(self, path: str, account: Account) -> bool:
        try:
            found = os.lstat(path)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and (found.st_uid != account.uid or account == self._owner)

    def start_scan(self, guest: Account | None = None) -> None:
        """Begin to look for world-writable directories of the image, in the background.

        What ``guest`` may write elsewhere is taken from it: a home, a directory that the image gave it. Nothing there
        could be told from what it leaves.
        """
        if self._scan is None and is_isolated():
            self._guest = guest
            self._scan = gevent.spawn(self._scan_quietly)

    def close(self) -> None:
        """End a scan that still runs."""
        self._stop.set("the daemon stops")
        if self._scan is not None:
            self._scan.join()

    def _scan_quietly(self) -> None:
        """Beside everything else; when it fails, ``purge`` sees to it."""
        with contextlib.suppress(CleaningError):
            self._find_places(_NICE)

    def _wait_scanned(self) -> None:
        """Until everything has been found; CleaningError when that is impossible."""
        if self._scan is None:
            return
        self._scan.join()
        if not self._scanned:
            self._find_places()

    def _find_places(self, how: Sequence[str] = ()) -> None:
        try:
            found = _run(
                [*how, "/usr/bin/find", "/", *self._scan_rules()],
                current_account(),
                timeout_s=_SCAN_SECONDS,
                limit_bytes=_FOUND_BYTES,
                stop=self._stop,
            )
        except CommandError as error:
            raise CleaningError(f"the search for shared places failed: {error}") from error
        if found.ending is not Ending.EXITED:
            raise CleaningError(f"the search for shared places did not end within {_SCAN_SECONDS:g} s")
        # 1 also tells of files that went away meanwhile.
        if found.code not in (0, 1):
            raise CleaningError(f"the search for shared places ended with {found.code}: {_last_line(found)}")
        if len(found.stdout) > _FOUND_BYTES - _MARGIN_BYTES:
            raise CleaningError(f"the image has more shared places than fit into {_FOUND_BYTES} bytes")
        names = [os.fsdecode(name) for name in found.stdout.split(b"\0") if name]
        open_to_all = [name[1:] for name in names if name.startswith("w")]
        self._places += [name for name in open_to_all if name not in self._places]
        if self._guest is not None:
            self._take_from(self._guest, [name[1:] for name in names if name.startswith("g")])
        self._scanned = True

    def _scan_rules(self) -> list[str]:
        rules: list[str] = []
        for path in sorted({*_NOT_SCANNED, *self._keep}):
            rules += ["-path", _PATTERN.sub(r"\\\g<0>", path), "-prune", "-o"]
        if self._guest is not None:
            rules += ["-uid", str(self._guest.uid), "-printf", r"g%p\0", "-prune", "-o"]
        # What others cannot pass through they cannot write below, unless they own it.
        rules += ["-type", "d", "!", "-perm", "-0001", "-prune", "-o"]
        rules += ["-type", "d", "-perm", "-0002", "-printf", r"w%p\0"]
        if self._guest is not None:
            for gid in sorted({self._guest.gid, *self._guest.groups}):
                rules += ["-o", "!", "-type", "l", "-gid", str(gid), "-perm", "-0020", "-printf", r"g%p\0"]
        return rules

    def _take_from(self, guest: Account, paths: Iterable[str]) -> None:
        """What lies in a place that is open to all is left to the purge, which removes it."""
        for path in paths:
            if any(path.startswith(f"{place}/") for place in self._places):
                continue
            with contextlib.suppress(OSError):
                if take_from(guest, path):
                    log.warning(
                        "%s could be written by %s, who runs code of the agent's: it is root's now, because what was "
                        "left there would reach graded builds",
                        path,
                        guest.name,
                    )

    def purge(self, account: Account, *, everywhere: bool = False) -> None:
        """Remove everything of ``account`` in shared places, its IPC objects, cron and at jobs.

        The account must have no process left. ``everywhere`` waits for a scan that still runs; without it only the
        places known so far are looked at. CleaningError when something may be left.
        """
        if not is_isolated() or account.uid == 0:
            return
        if everywhere:
            self._wait_scanned()
        remove_jobs(account)
        queues = gevent.spawn(_purge_message_queues, account)
        files = gevent.spawn(self._purge_files, account)
        reasons = [reason for reason in (files.get(), queues.get()) if reason]
        if reasons:
            raise CleaningError(f"could not remove all that {account.name} left in shared places: {'; '.join(reasons)}")

    def try_purge(self, account: Account, *, everywhere: bool = False) -> None:
        """The same where nothing depends on it yet: what resists is logged."""
        try:
            self.purge(account, everywhere=everywhere)
        except CleaningError as error:
            log.warning("%s", error)

    def _purge_files(self, account: Account) -> str:
        """Empty, or why something may be left."""
        arguments = ["purge", str(account.uid), *self._places, "--", *self.kept_from(account)]
        # The user's own rights first; then root, for what the user cannot list or what others put into its directories.
        why = "nothing was tried"
        for actor in (account, current_account()):
            try:
                result = _run_cleaner(arguments, actor)
            except CommandError as error:
                why = str(error)
                continue
            if result.code == 0:
                return ""
            why = _last_line(result)
        return f"files: {why}"


def empty_directory(fd: int, account: Account) -> bool:
    """Remove everything in the directory behind ``fd`` with the account's rights, then root's; whether it is empty.

    Root's pass is for directories of other users that the account let in; the caller has moved the tree out of reach.
    """
    actors = [account, current_account()] if is_isolated() else [account]
    with contextlib.suppress(CommandError):
        return any(_run_cleaner(["empty", str(fd)], actor, pass_fds=[fd]).code == 0 for actor in actors)
    return False


def remove_jobs(account: Account) -> None:
    """Remove the account's crontab and at jobs: files of its name or ownership in root's spool directories."""
    for path in _CRON_FOLDERS:
        with contextlib.suppress(OSError):
            fd = open_directory(path)
            try:
                _remove_jobs_in(fd, account)
            finally:
                os.close(fd)


def _remove_jobs_in(folder: int, account: Account) -> None:
    for name in os.listdir(folder):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) and (found.st_uid == account.uid or name == account.name):
            os.unlink(name, dir_fd=folder)


def _purge_message_queues(account: Account) -> str:
    """Empty, or why some may be left."""
    # Where their file system is mounted it is one of the shared places.
    if os.path.ismount("/dev/mqueue"):
        return ""
    try:
        result = _run_cleaner(["mqueues", str(account.uid)], current_account())
    except CommandError as error:
        return f"POSIX message queues: {error}"
    if result.code == 0:
        return ""
    return f"POSIX message queues: {_last_line(result)}; mount the file system mqueue at /dev/mqueue"


def _run_cleaner(arguments: Sequence[str], account: Account, pass_fds: Sequence[int] = ()) -> CommandResult:
    return _run(program_argv("cleaner", *arguments), account, timeout_s=_CLEAN_SECONDS, pass_fds=pass_fds)


def _run(
    argv: Sequence[str],
    account: Account,
    *,
    timeout_s: float,
    limit_bytes: int = _MESSAGE_BYTES,
    pass_fds: Sequence[int] = (),
    stop: StopSignal | None = None,
) -> CommandResult:
    return run_command(
        argv,
        account=account,
        cwd="/",
        env=_ENV,
        limit_bytes=limit_bytes,
        timeout_s=timeout_s,
        pass_fds=pass_fds,
        stop=stop,
    )


def _last_line(result: CommandResult) -> str:
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"the cleaner ended with {result.code}"
