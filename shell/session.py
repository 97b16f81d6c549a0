"""The persistent bash that an agent drives: one command at a time, its answer exact, never stuck.

Runs as: the daemon; bash itself runs as the agent (see session_terminal).
Distrusts: the command and everything that bash and its children do.
Promises: an answer holds the command's bytes and nothing else; every command ends: by itself, at its time limit, or
  when it is stopped, and then all of its processes end with it; after whatever it did to the shell the next one works.
Does not promise: that state survives what ends bash itself; the answer then says that the shell was restarted.
Checked by: tests/conformance, tests/system/test_bash_*.py.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Mapping

import gevent
from gevent.event import Event

from shell.accounts import Account
from shell.command import CommandResult, Ending
from shell.environment import shell_environment
from shell.errors import CommandError
from shell.session_processes import boot_ticks, descendants, end_all, foreground, in_sessions, process, send_signal
from shell.session_protocol import (
    Command,
    Report,
    Said,
    belongs_in_file,
    command_lines,
    death_notices,
    direct_lines,
    file_text,
    last_words,
    may_shadow,
    reports,
    startup_lines,
    streams_failed,
    without_reports,
)
from shell.session_streams import Exchange
from shell.session_terminal import BashProcess
from shell.stop import StopSignal

__all__ = ["BashSession", "shell_environment"]

_START_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_READY_SECONDS = 2.0
_LOOK_SECONDS = (0.05, 0.25, 0.5)
_INTERRUPT_SECONDS = 0.5
_KILL_SECONDS = 2.0
_PROMPT_SECONDS = 1.0
_READER_SECONDS = 0.02
_MESSAGE_BYTES = 1 << 16

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
        self._bash: BashProcess | None = None
        self._exchange: Exchange | None = None
        self._turned = Event()
        self._messages = b""
        self._loose_output = b""
        self._nonce = b""
        self._heard: list[Report] = []
        self._shadowed: frozenset[int] = frozenset()
        self._checks_names = False
        self._prompts: tuple[bytes, ...] = (b"", b"", b"")
        self._code = 0
        self._sessions: set[int] = set()

    def execute(self, command: str, *, timeout_s: float | None, stop: StopSignal) -> CommandResult:
        """Run ``command`` in the shell and wait for its end, ``stop`` or the time limit in seconds.

        Never called while another call runs. A command that fails is a result; CommandError only when no shell can
        be started.
        """
        started = time.monotonic()
        limit_s = min(filter(None, (timeout_s, self._timeout_s)), default=None)
        text = command.encode()
        run, notes = self._run(text, limit_s, stop)
        if run.streams_failed:
            # The text was not run: the shell cannot open any file, say after `ulimit -n 3`.
            self._end_bash()
            run, notes = self._run(text, limit_s, stop)
            notes += RESTARTED
        assert self._exchange is not None
        stdout, stderr = self._exchange.stdout.take(), self._exchange.stderr.take()
        if run.died:
            stdout.add(self._loose_output)
            stderr.add(last_words(self._messages))
        elif run.ending is Ending.EXITED:
            stderr.add(death_notices(self._messages))
        complaints = without_reports(self._nonce, stderr.data()) if run.died else stderr.data()
        self._code = run.code
        seconds = time.monotonic() - started
        return CommandResult(run.code, stdout.data(), _with_notes(complaints, notes), seconds, run.ending)

    def close(self) -> None:
        """End the shells and all they started; a later ``execute`` starts anew."""
        if self._bash is not None:
            end_all(lambda: descendants(self._bash.pid) if self._bash else [], self._account.uid, _CLOSE_SECONDS)
            self._end_bash()
        end_all(lambda: in_sessions(self._sessions), self._account.uid, _CLOSE_SECONDS)
        self._sessions.clear()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def _run(self, text: bytes, limit_s: float | None, stop: StopSignal) -> tuple[_Run, bytes]:
        """The finished run and lines of ours for stderr."""
        bash, lost = self._ready_bash()
        run = _Run(self, bash, text, limit_s, stop)
        notes = run.wait()
        ended = self.heard(Said.ENDED)
        if ended is not None and ended.prompts:
            self._prompts = ended.prompts
        run.streams_failed = run.code == 1 and not run.died and streams_failed(self._messages)
        return run, notes + (RESTARTED if lost or run.died else b"")

    # What a run needs of its session.

    def begin(self, nonce: bytes) -> None:
        """From now on only reports under ``nonce`` count."""
        self._nonce = nonce
        self._messages = b""
        self._loose_output = b""
        self._heard = []
        self._turned.clear()

    def heard(self, *kinds: Said) -> Report | None:
        """The first report of one of these kinds since ``begin``."""
        return next((report for report in self._heard if report.said in kinds), None)

    def wait(self, seconds: float | None) -> bool:
        """Until something happened: bash reported or died, the run was stopped. False when ``seconds`` went by."""
        happened = self._turned.wait(seconds)
        self._turned.clear()
        return happened

    def wake(self, _: object = None) -> None:
        """End the current ``wait``."""
        self._turned.set()

    def lines(self, text: bytes, *, direct: bool) -> bytes:
        """What to send so that bash runs ``text``."""
        assert self._exchange is not None
        in_file = belongs_in_file(text) and self._exchange.write_text(file_text(text, self._shadowed))
        self._checks_names = may_shadow(text) and not direct
        command = Command(self._nonce, text, self._code, self._exchange.paths, self._shadowed, self._prompts, in_file)
        return direct_lines(command) if direct else command_lines(command)

    @property
    def uid(self) -> int:
        """Whose processes a run may signal."""
        return self._account.uid

    def forget_bash(self) -> int:
        """Bury the shell; its exit code."""
        assert self._bash is not None
        self._bash.read_messages()
        code = self._bash.code()
        self._end_bash()
        return code

    # Starting.

    def _ready_bash(self) -> tuple[BashProcess, bool]:
        """A shell at its prompt, and whether it takes the place of one that was lost since the last command."""
        if self._exchange is None:
            self._exchange = Exchange(self._account, self._limit_bytes)
        lost = self._bash is not None
        if self._bash is not None and self._at_prompt(self._bash):
            return self._bash, False
        self._end_bash()
        # A ~/.bashrc that ends or hangs the shell would do so each time: then one without it.
        for read_rc in (True, False):
            bash = self._start(read_rc)
            if bash is not None:
                return bash, lost
        raise CommandError(f"bash does not start as {self._account.name}: it ends or hangs before its first prompt")

    def _at_prompt(self, bash: BashProcess) -> bool:
        """Whether the shell has come back from the last command, waiting a little for it."""
        deadline = time.monotonic() + _READY_SECONDS
        while not self.heard(Said.READY):
            left = deadline - time.monotonic()
            if left <= 0 or not bash.is_alive:
                return False
            self.wait(min(left, 0.25))
        if self._checks_names:
            self._shadowed = frozenset(report.number for report in self._heard if report.said is Said.SHADOWED)
        return bash.is_alive

    def _start(self, read_rc: bool) -> BashProcess | None:
        self.begin(_nonce())
        self._checks_names = True
        self._code = 0
        self._bash = bash = BashProcess(
            self._account,
            self._source,
            self._environment,
            read_rc=read_rc,
            on_message=self._take_message,
            on_output=self._take_output,
            on_death=self.wake,
        )
        self._sessions.add(bash.pid)
        with open(self._rc_path, "rb") as file:
            bash.send(startup_lines(self._nonce, file.read()))
        deadline = time.monotonic() + _START_SECONDS
        while bash.is_alive and time.monotonic() < deadline:
            ended = self.heard(Said.ENDED)
            if ended is not None and self._at_prompt(bash):
                self._prompts = ended.prompts or (b"", b"", b"")
                return bash
            self.wait(0.25)
            bash.give_end_of_file()
        self._end_bash()
        return None

    def _end_bash(self) -> None:
        if self._bash is not None:
            self._bash.close()
            self._bash = None

    def _take_message(self, data: bytes) -> None:
        """Bash wrote something of its own: look for reports, keep only what can be the beginning of one."""
        self._messages += data
        found, self._messages = reports(self._nonce, self._messages)
        if found:
            self._heard += found
            self._turned.set()
        self._messages = self._messages[-_MESSAGE_BYTES:]

    def _take_output(self, data: bytes) -> None:
        """Bash itself wrote to its standard output. Only an EXIT trap's is of interest, see ``execute``."""
        self._loose_output = (self._loose_output + data)[-_MESSAGE_BYTES:]


class _Run:
    """One command from its first byte to its end."""

    def __init__(
        self, session: BashSession, bash: BashProcess, text: bytes, limit_s: float | None, stop: StopSignal
    ) -> None:
        self._session = session
        self._bash = bash
        self._text = text
        self._limit_s = limit_s
        self._stop = stop
        self._since_ticks = boot_ticks()
        self._started = time.monotonic()
        self._direct = False
        self._ended_at: float | None = None
        self.code = 0
        self.ending = Ending.EXITED
        self.died = False
        self.streams_failed = False

    def wait(self) -> bytes:
        """Run it to its end, which then is in ``code``, ``ending`` and ``died``; lines of ours for stderr."""
        note = b""
        self._stop.event.rawlink(self._session.wake)
        try:
            self._send(direct=False)
            self.ending = self._wait()
            if self.ending is not Ending.EXITED:
                note = _ending_note(self.ending, self._limit_s, self._stop)
                self._end_foreground()
            self.code = self._code()
        finally:
            self._stop.event.unlink(self._session.wake)
        if self.ending is Ending.TIMED_OUT:
            self.code = 124
        return note

    def _send(self, *, direct: bool) -> None:
        self._direct = direct
        self._session.begin(_nonce())
        self._bash.send(self._session.lines(self._text, direct=direct))

    def _is_over(self) -> bool:
        """Whether bash is back at its prompt: only then has it said all that belongs to this command."""
        if self._session.heard(Said.ENDED) is None:
            return self._direct and self._session.heard(Said.READY) is not None
        if self._session.heard(Said.READY):
            return True
        # What runs at the prompt is no part of the command and may take its time.
        self._ended_at = self._ended_at or time.monotonic()
        return time.monotonic() - self._ended_at > _PROMPT_SECONDS

    def _wait(self) -> Ending:
        looks = 0
        while True:
            if self._is_over():
                if self._direct or self._session.heard(Said.STARTED):
                    return Ending.EXITED
                # The prompt came and the text did not run: a prompt variable is read-only.
                self._send(direct=True)
            if not self._bash.is_alive:
                return Ending.EXITED
            if self._stop.is_set():
                return Ending.STOPPED
            elapsed = time.monotonic() - self._started
            if self._limit_s is not None and elapsed >= self._limit_s:
                return Ending.TIMED_OUT
            look_s = _LOOK_SECONDS[min(looks, len(_LOOK_SECONDS) - 1)]
            wait_s = look_s if self._limit_s is None else min(look_s, self._limit_s - elapsed)
            if not self._session.wait(wait_s):
                looks += 1
                self._look_after()

    def _look_after(self) -> None:
        """Help a command along that would wait for a person: at the terminal, or to continue a stopped shell."""
        self._bash.give_end_of_file()
        self._session.wait(_READER_SECONDS)
        self._bash.settle()
        state = process(self._bash.pid)
        if state is not None and state.state == "T":
            self._bash.signal(signal.SIGCONT)

    def _code(self) -> int:
        """The command's exit code; the shell's own when that has ended instead of reporting one."""
        # ENDED comes after READY when the text was cut short; the code then is what READY found.
        report = self._session.heard(Said.ENDED, Said.READY)
        if report is not None:
            self._bash.settle()
            return report.number
        self.died = True
        return self._session.forget_bash()

    def _end_foreground(self) -> None:
        """SIGINT to the command's processes and to the shell's own loops, then SIGKILL; at last to the shell."""
        self._signal_foreground(signal.SIGINT)
        self._interrupt_shell()
        self._wait_over(_INTERRUPT_SECONDS)
        deadline = time.monotonic() + _KILL_SECONDS
        while self._signal_foreground(signal.SIGKILL) or not self._gone():
            if time.monotonic() > deadline:
                # It does not come back: its loop ignores SIGINT, or it starts processes faster than they are killed.
                self._bash.signal(signal.SIGKILL)
                self._wait_over(_PROMPT_SECONDS)
                return
            self._interrupt_shell()
            self._wait_over(0.02)

    def _interrupt_shell(self) -> None:
        if not self._gone():
            self._bash.signal(signal.SIGINT)
            self._bash.signal(signal.SIGCONT)

    def _gone(self) -> bool:
        return self._is_over() or not self._bash.is_alive

    def _wait_over(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._gone() and (left := deadline - time.monotonic()) > 0:
            self._session.wait(left)
        if self._gone():
            gevent.sleep(0.001)

    def _signal_foreground(self, number: int) -> bool:
        """Signal all of the command's processes; whether there were any."""
        group = self._bash.foreground_group()
        targets = foreground(self._bash.pid, group, self._since_ticks)
        if number == signal.SIGKILL:
            # Stopped processes do not fork: so a storm of them is caught up with.
            send_signal(targets, signal.SIGSTOP, self._session.uid)
        send_signal(targets, number, self._session.uid)
        return bool(targets)


def _nonce() -> bytes:
    return secrets.token_hex(12).encode()


def _ending_note(ending: Ending, limit_s: float | None, stop: StopSignal) -> bytes:
    if ending is Ending.TIMED_OUT:
        return b"ssebench: the command was stopped at its time limit of %g seconds\n" % (limit_s or 0)
    return b"ssebench: the command was stopped because %s\n" % (stop.reason or "").encode()


def _with_notes(data: bytes, notes: bytes) -> bytes:
    """stderr, then our lines, each on a line of its own."""
    if notes and data and not data.endswith(b"\n"):
        data += b"\n"
    return data + notes
