"""The persistent bash that an agent drives: one command at a time, its answer exact, never stuck.

Runs as: the daemon; bash itself runs as the agent (see session_terminal).
Distrusts: the command and everything that bash and its children do.
Promises: an answer holds the command's bytes and nothing else; every command ends: by itself, at its time limit, or
  when it is stopped, and then all of its processes end with it; after whatever it did to the shell the next one works.
Does not promise: that state survives what ends bash itself; the answer then says that the shell was restarted.
Checked by: tests/conformance, tests/system/test_bash_*.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from shell.accounts import Account
from shell.command import CommandResult, Ending
from shell.environment import shell_environment
from shell.errors import CommandError
from shell.session_processes import descendants, end_all, in_sessions
from shell.session_protocol import death_notices, failed_to_parse, fork_failed, last_words, without_reports
from shell.session_run import LOST_CODE, Run
from shell.session_shell import Shell
from shell.session_streams import Exchange
from shell.stop import StopSignal

__all__ = ["RESTARTED", "BashSession", "shell_environment"]

_CLOSE_SECONDS = 2.0
_PARSE_ERROR_CODE = 2
_NO_PROCESS_CODE = 254
_RC_OR_NOT = (True, False)
_NO_RC = (False,)

RESTARTED = b"ssebench: the shell has ended and was restarted; its directory, variables, functions and jobs are gone\n"


class BashSession:
    """A bash that is started when first needed and started again whenever it ended.

    ``source`` is the directory it starts in, ``environment`` all of its environment. Each of stdout and stderr of an
    answer is kept within ``limit_bytes``. ``timeout_s`` caps every command, 0 means no limit. ``rc_path`` names the
    text each fresh shell reads after the user's own start-up files.
    """

    def __init__(
        self,
        account: Account,
        source: str,
        environment: Mapping[str, str],
        *,
        limit_bytes: int,
        timeout_s: float,
        rc_path: str,
    ) -> None:
        self._account = account
        self._source = source
        self._environment = dict(environment)
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s
        self._rc_path = rc_path
        self._shell: Shell | None = None
        self._exchange: Exchange | None = None
        self._sessions: set[int] = set()

    def execute(self, command: str, *, timeout_s: float | None, stop: StopSignal) -> CommandResult:
        """Run ``command`` in the shell and wait for its end, ``stop`` or the time limit in seconds.

        Never called while another call runs. A command that fails is a result; CommandError only when no shell can
        be started, none may be any more because ``stop`` is set, or none begins with the command.
        """
        started, text = time.monotonic(), command.encode()
        limit_s = min(filter(None, (timeout_s, self._timeout_s)), default=None)
        if self._exchange is None:
            self._exchange = Exchange(self._account, self._limit_bytes)
        before = self._shell
        shell, lost = self._ready_shell(stop)
        run = self._run(shell, self._exchange, text, limit_s, stop)
        # A ~/.bashrc that keeps each text from running would do so each time: at last a shell without it.
        for try_rc in (_RC_OR_NOT, _NO_RC):
            if not run.never_ran:
                break
            lost = lost or shell is before
            self._end_shell()
            shell = self._ready_shell(stop, try_rc)[0]
            run = self._run(shell, self._exchange, text, limit_s, stop)
        if run.never_ran:
            raise CommandError("bash does not run the command, not even in a new shell")
        stdout, stderr = self._collect(run, shell, self._exchange)
        # Nobody can tell whether the text itself said so: it is not run again, but the shell is of no more use.
        useless = shell.was_not_called(stderr)
        if run.code == 1 and failed_to_parse(text, stderr):
            run.code = shell.code = _PARSE_ERROR_CODE
        if (run.code == _NO_PROCESS_CODE or run.ending is not Ending.EXITED) and fork_failed(stderr):
            shell.code = LOST_CODE
        notes = run.note + (RESTARTED if lost or run.died or useless else b"")
        if run.died or useless:
            self._end_shell()
        return CommandResult(run.code, stdout, _with_notes(stderr, notes), time.monotonic() - started, run.ending)

    def close(self) -> None:
        """End the shells and all they started; a later ``execute`` starts anew."""
        shell = self._shell
        if shell is not None:
            end_all(lambda: descendants(shell.process.pid), self._account.uid, _CLOSE_SECONDS)
            self._end_shell()
        end_all(lambda: in_sessions(self._sessions), self._account.uid, _CLOSE_SECONDS)
        self._sessions.clear()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def _run(self, shell: Shell, exchange: Exchange, text: bytes, limit_s: float | None, stop: StopSignal) -> Run:
        run = Run(shell, exchange, self._account.uid, text, limit_s, stop)
        run.wait()
        shell.code = run.next_code
        return run

    def _collect(self, run: Run, shell: Shell, exchange: Exchange) -> tuple[bytes, bytes]:
        """What arrived on stdout and stderr, and the lines of bash's own that belong there."""
        stdout, stderr = exchange.stdout.take(), exchange.stderr.take()
        if run.died:
            stdout.add(without_reports(shell.nonce, shell.loose_output))
            stderr.add(b"" if run.is_deaf else last_words(shell.messages))
            return stdout.data(), without_reports(shell.nonce, stderr.data())
        if run.ending is Ending.EXITED:
            stderr.add(death_notices(shell.messages))
        return stdout.data(), stderr.data()

    def _ready_shell(self, stop: StopSignal, try_rc: Sequence[bool] = _RC_OR_NOT) -> tuple[Shell, bool]:
        """A shell at its prompt, and whether it takes the place of one that was lost since the last command."""
        lost = self._shell is not None
        if self._shell is not None and self._shell.at_prompt():
            return self._shell, False
        self._end_shell()
        with open(self._rc_path, "rb") as file:
            setup = file.read()
        # A ~/.bashrc that ends or hangs the shell would do so each time: then one without it.
        for read_rc in try_rc:
            # Whoever ends the agent phase sets it, then kills: nothing of the agent's may be started after that.
            if stop.is_set():
                raise CommandError(f"no shell was started, because {stop.reason}")
            self._shell = Shell(self._account, self._source, self._environment, read_rc=read_rc)
            self._sessions.add(self._shell.process.pid)
            if self._shell.start(setup):
                return self._shell, lost
            self._end_shell()
        raise CommandError(f"bash does not start as {self._account.name}: it ends or hangs before its first prompt")

    def _end_shell(self) -> None:
        if self._shell is not None:
            self._shell.process.close()
            self._shell = None


def _with_notes(data: bytes, notes: bytes) -> bytes:
    """stderr, then our lines, each on a line of its own."""
    if notes and data and not data.endswith(b"\n"):
        data += b"\n"
    return data + notes
