"""One program as a user: its streams, limits, time limit and result.

Runs as: root up to fork; the program runs as the account given.
Distrusts: the program, whatever it prints and however long it takes.
Promises: no descriptor of the daemon's is inherited; identity is switched before the working directory is entered; the
  output is bounded while it is read; when the call returns nothing of the program's session is left, whether it ended,
  ran out of time or was stopped.
Does not promise: to find processes that left the session; a caller that runs hostile code passes ``sweep`` for those.
Checked by: tests/system/test_command.py.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import gevent
from gevent import os as gevent_os

from shell.accounts import Account, child_setup
from shell.errors import CommandError
from shell.output import BoundedOutput
from shell.processes import end_orphans
from shell.stop import StopSignal
from shell.turns import give_turn

_READ_BYTES = 1 << 18
_READS_PER_TURN = 16
_COLLECT_SECONDS = 5.0


class Ending(enum.Enum):
    """Why a program's run was over."""

    EXITED = "exited"
    TIMED_OUT = "timed out"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a program did. ``code`` is its exit code, 128 + n when signal n ended it, 124 when it ran out of time.

    ``stdout`` and ``stderr`` are bytes within the limit, see shell.output. ``duration_s`` is wall time.
    """

    code: int
    stdout: bytes
    stderr: bytes
    duration_s: float = 0.0
    ending: Ending = Ending.EXITED


def run_command(
    argv: Sequence[str | bytes],
    *,
    account: Account,
    cwd: str,
    env: Mapping[str, str],
    limit_bytes: int,
    timeout_s: float | None = None,
    stop: StopSignal | None = None,
    stdin: int | None = None,
    pass_fds: Sequence[int] = (),
    umask: int = 0o022,
    sweep: Callable[[], None] | None = None,
) -> CommandResult:
    """Run ``argv`` (argv[0] an absolute path) as ``account`` and wait, without blocking other greenlets.

    ``stdin`` is a descriptor, or None for end of file. ``timeout_s`` None or 0 means no limit. ``sweep`` is called
    after the program's end and before the rest of its output is collected; it must end every process that could
    still hold the pipes. A program that fails is a result; CommandError only when it could not be started.
    """
    started = time.monotonic()
    process, streams = _start(argv, account, cwd, env, stdin, pass_fds, umask)
    outputs = [BoundedOutput(limit_bytes) for _ in streams]
    readers = [gevent.spawn(_drain, fd, output) for fd, output in zip(streams, outputs, strict=True)]
    try:
        ending = _wait(process, timeout_s, stop)
        _end_session(process, account)
        if sweep is not None:
            sweep()
        gevent.joinall(readers, timeout=_COLLECT_SECONDS)
    finally:
        _end_session(process, account)
        gevent.killall(readers)
        for fd in streams:
            os.close(fd)
    code = 124 if ending is Ending.TIMED_OUT else _exit_code(process)
    return CommandResult(code, outputs[0].data(), outputs[1].data(), time.monotonic() - started, ending)


def _start(
    argv: Sequence[str | bytes],
    account: Account,
    cwd: str,
    env: Mapping[str, str],
    stdin: int | None,
    pass_fds: Sequence[int],
    umask: int,
) -> tuple[subprocess.Popen[bytes], tuple[int, int]]:
    """Start the program in a session of its own; returns it and the read ends of its stdout and stderr."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        process = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=out_write,
            stderr=err_write,
            close_fds=True,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
            preexec_fn=child_setup(account, cwd, umask=umask),
        )
    except BaseException as error:
        os.close(out_read)
        os.close(err_read)
        if not isinstance(error, (OSError, subprocess.SubprocessError)):
            raise
        name = os.path.basename(os.fsdecode(argv[0]))
        raise CommandError(f"could not start {name} as {account.name}: {error}") from error
    finally:
        os.close(out_write)
        os.close(err_write)
    return process, (out_read, err_read)


def _drain(fd: int, output: BoundedOutput) -> None:
    """Read a pipe to its end."""
    gevent_os.make_nonblocking(fd)
    turn = 0
    while data := gevent_os.nb_read(fd, _READ_BYTES):
        output.add(data)
        turn += 1
        # A pipe that is never empty never makes this greenlet wait, and nobody else would be served.
        if turn % _READS_PER_TURN == 0:
            give_turn()


def _wait(process: subprocess.Popen[bytes], timeout_s: float | None, stop: StopSignal | None) -> Ending:
    """Wait for the end, the time limit or the stop signal, whichever comes first."""
    # gevent's Popen carries an AsyncResult that can be waited for together with an event.
    ended = process.result  # type: ignore[attr-defined]
    gevent.wait([ended] if stop is None else [ended, stop.event], timeout=timeout_s or None, count=1)
    if ended.ready():
        return Ending.EXITED
    return Ending.STOPPED if stop is not None and stop.is_set() else Ending.TIMED_OUT


def _end_session(process: subprocess.Popen[bytes], account: Account) -> None:
    """Kill the program, if it still runs, and what it left in its process group."""
    if process.returncode is None:
        # Not reaped yet (that happens in the event loop, which does not run here): the number is still its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    end_orphans(process.pid, account)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    code = process.wait()
    return 128 - code if code < 0 else code
