"""Private copies of a tree: read with one user's rights, written with another's.

Runs as: root up to fork; list and archive are made as the reader, the copy as the writer.
Distrusts: the tree and its owner: links, special files, directories swapped while they are read, helpers stopped or
  killed.
Promises: root opens nothing in the tree; no link is followed, also not the tree's own path; links arrive as links,
  named pipes, sockets and devices do not arrive and are named in the notes; a helper that is stopped ends in CopyError.
Does not promise: a consistent copy of a tree that is being changed.
Checked by: tests/system/test_copying.py, tests/attack/test_links.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import gevent

from shell.accounts import Account, child_setup, unused_id
from shell.directories import enter_directory
from shell.errors import SSEBenchError
from shell.programs import program_argv
from shell.stop import StopSignal

# The group of helpers that have the agent's uid.
private_gid = unused_id

_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
_MESSAGE_BYTES = 8192
_MAX_NOTES = 40
_TAR = "/usr/bin/tar" if os.path.exists("/usr/bin/tar") else "/bin/tar"
_TAR_WARNING = re.compile(r"^\S*tar: (?:\./)?(.*?): Warning: (.*)$")
# An unreadable file is worth a note, not a failure; one that vanished or grew was being worked on.
_ARCHIVE = [
    _TAR, "--create", "--file=-", "--format=gnu", "--sparse", "--blocking-factor=256", "--no-recursion", "--null",
    "--verbatim-files-from", "--files-from=-", "--ignore-failed-read", "--warning=no-file-changed",
    "--warning=no-file-removed",
]  # fmt: skip
_UNPACK = [_TAR, "--extract", "--file=-", "--blocking-factor=256", "--delay-directory-restore", "--no-same-owner"]


class CopyError(SSEBenchError):
    """A private copy could not be made; what exists of it is of no use."""


class CopyStoppedError(CopyError):
    """The copy was ended early because its action was."""


@dataclass(frozen=True, slots=True)
class TreeReader:
    """Who may read a tree: the agent's uid under a group of its own, or root for a tree that root alone can change."""

    account: Account

    @classmethod
    def confined(cls, account: Account) -> TreeReader:
        """The account's rights, out of reach of ptrace by the account's other processes.

        Access checks still count the account's own groups; only the group that ptrace compares differs.
        """
        if account.uid == 0 or os.geteuid() != 0:
            return cls(account)
        return cls(replace(account, gid=private_gid(), groups=account.groups))


def copy_tree(
    source: str,
    reader: TreeReader,
    destination: str,
    writer: Account,
    *,
    timeout_s: float,
    stop: StopSignal | None = None,
) -> list[str]:
    """Copy what is in the directory ``source`` into the existing directory ``destination``.

    Returns notes, one line for each thing that was left out (at most a few dozen). CopyError when the copy is not
    whole.
    """
    with _Pipeline() as pipeline:
        try:
            pipeline.start(program_argv("lister"), _in(source, reader.account))
            pipeline.start(_ARCHIVE, _in(source, reader.account))
            pipeline.start(_UNPACK, child_setup(writer, destination), last=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise CopyError(f"could not copy the source tree: {_why_not_started(source, error)}") from error
        pipeline.wait(timeout_s, stop)
        return pipeline.notes()


def _in(source: str, account: Account) -> Callable[[], None]:
    become = child_setup(account, None)

    def setup() -> None:
        become()
        enter_directory(source)

    return setup


def _why_not_started(source: str, error: Exception) -> str:
    if not os.path.lexists(_TAR):
        return f"{_TAR} is missing; install tar"
    return f"{source} cannot be entered, or is no directory reached without links ({error})"


@dataclass(slots=True)
class _Helper:
    process: subprocess.Popen[bytes]
    messages: bytearray = field(default_factory=bytearray)


class _Pipeline:
    """Processes in a row, the output of each the input of the next; all ended and reaped at the end."""

    def __init__(self) -> None:
        self._helpers: list[_Helper] = []
        self._readers: list[gevent.Greenlet[..., None]] = []
        # The read end of the newest pipe. Plain descriptors: gevent's file objects would make the pipes non-blocking
        # for the helpers too.
        self._output: int | None = None

    def __enter__(self) -> _Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self._helpers:
            if helper.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    helper.process.send_signal(signal.SIGKILL)
            helper.process.wait()
        gevent.killall(self._readers)
        for helper in self._helpers:
            assert helper.process.stderr is not None
            helper.process.stderr.close()
        self._close_output()

    def start(self, argv: Sequence[str], setup: Callable[[], None], *, last: bool = False) -> None:
        """Start the next process, which reads what the one before writes."""
        output = None if last else os.pipe()
        try:
            process = subprocess.Popen(
                argv,
                env=_ENV,
                stdin=subprocess.DEVNULL if self._output is None else self._output,
                stdout=subprocess.DEVNULL if output is None else output[1],
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=setup,
            )
        except BaseException:
            if output is not None:
                os.close(output[0])
            raise
        finally:
            # The daemon must not hold the pipes, or a helper would never learn that its neighbour is gone.
            if output is not None:
                os.close(output[1])
            self._close_output()
        self._output = None if output is None else output[0]
        helper = _Helper(process)
        self._helpers.append(helper)
        self._readers.append(gevent.spawn(_collect, helper))

    def _close_output(self) -> None:
        if self._output is not None:
            os.close(self._output)
            self._output = None

    def wait(self, timeout_s: float, stop: StopSignal | None) -> None:
        """Wait for all of them.

        CopyError when one failed, was killed, or the time is up; CopyStoppedError when somebody asked for the end.
        """
        deadline = time.monotonic() + timeout_s
        for helper in self._helpers:
            ended = helper.process.result  # type: ignore[attr-defined]
            events = [ended] if stop is None else [ended, stop.event]
            gevent.wait(events, timeout=max(0.0, deadline - time.monotonic()), count=1)
            if stop is not None and stop.is_set():
                raise CopyStoppedError(f"stopped because {stop.reason}")
            if not ended.ready():
                raise CopyError(f"copying the source tree took longer than {timeout_s:.0f} s")
        gevent.joinall(self._readers, timeout=1)
        # The end of a pipeline fails first for a reason of its own (a full disk), or because what feeds it was killed.
        killed = [h for h in self._helpers if h.process.returncode < 0 and h.process.returncode != -signal.SIGPIPE]
        for helper in (*killed, *reversed(self._helpers)):
            self._check(helper)

    def _check(self, helper: _Helper) -> None:
        code = helper.process.returncode
        # tar's 1 says that files changed while they were read, which is what a working agent does.
        if code == 0 or (code == 1 and helper is self._helpers[1]):
            return
        if code < 0:
            raise CopyError(f"copying the source tree was interrupted: a helper was ended by signal {-code}")
        words = helper.messages.decode("utf-8", "replace").strip().splitlines()[:3]
        raise CopyError("could not copy the source tree: " + ("; ".join(words) or f"helper ended with {code}"))

    def notes(self) -> list[str]:
        """What the listing and the archive left out."""
        return list(_note_lines(self._helpers[:2]))[:_MAX_NOTES]


def _note_lines(helpers: Sequence[_Helper]) -> Iterator[str]:
    for helper in helpers:
        for line in helper.messages.decode("utf-8", "replace").splitlines():
            warning = _TAR_WARNING.match(line)
            yield line if warning is None else f"not copied: {warning[1]} ({warning[2]})"


def _collect(helper: _Helper) -> None:
    """Keep the first messages of a helper and read the rest away."""
    assert helper.process.stderr is not None
    while data := helper.process.stderr.read(4096):
        helper.messages += data[: max(0, _MESSAGE_BYTES - len(helper.messages))]
