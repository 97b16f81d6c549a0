"""One command in the persistent bash, from its first byte to its end, whatever it does in between.

Runs as: the daemon (root); it signals processes of the agent.
Distrusts: the command: it may wait for a person, stop the shell, ignore signals, hide its processes, never end.
Promises: it ends: by itself, at its time limit, or when it is stopped; in the latter cases its foreground processes are
  gone, jobs of before and its own jobs in the background stay, and the shell stays if it can be interrupted at all.
Does not promise: an end of what forks faster than it can be stopped and killed.
Checked by: tests/conformance (timeouts, endings, input), tests/system/test_bash_session.py.
"""

from __future__ import annotations

import signal
import time

import gevent

from shell.command import Ending
from shell.session_processes import Moment, Process, foreground, process, send_signal
from shell.session_protocol import Said, Way, leaves_open
from shell.session_shell import Shell
from shell.session_streams import Exchange
from shell.stop import StopSignal

TIMED_OUT_CODE = 124
# What $? is instead of a code that takes a process to set, when bash can start none: still a failure.
LOST_CODE = 1
_LOOK_SECONDS = (0.05, 0.25, 0.5)
_INTERRUPT_SECONDS = 0.5
_KILL_SECONDS = 2.0
_STORM_SECONDS = 1.0
_PAUSE_SECONDS = 0.02
_PROMPT_SECONDS = 1.0
_READER_SECONDS = 0.02


class Run:
    """One command from its first byte to its end."""

    def __init__(
        self, shell: Shell, exchange: Exchange, uid: int, text: bytes, limit_s: float | None, stop: StopSignal
    ) -> None:
        self._shell = shell
        self._bash = shell.process
        self._exchange = exchange
        self._uid = uid
        self._text = text
        self._limit_s = limit_s
        self._stop = stop
        self._since = Moment.now()
        self._started = time.monotonic()
        self._way = Way.PROMPT_COMMAND
        self._began = False
        self._asked_again = False
        self.is_deaf = False
        self._ended_at: float | None = None
        self.code = 0
        self.next_code = 0
        self.ending = Ending.EXITED
        self.died = False
        self.note = b""

    def wait(self) -> None:
        """Run it to its end, which then is in ``code``, ``ending`` and ``died``; ``note`` is our line for stderr.

        ``next_code`` is what ``$?`` is to be for the next command.
        """
        self._stop.event.rawlink(self._shell.wake)
        try:
            self._send(Way.PROMPT if leaves_open(self._text) else Way.PROMPT_COMMAND)
            self.ending = self._wait()
            if self.ending is not Ending.EXITED:
                self.note = _ending_note(self.ending, self._limit_s, self._stop)
                self._end_foreground()
            self.code = self._code()
        finally:
            self._stop.event.unlink(self._shell.wake)
        self.next_code = self.code
        if self.ending is Ending.TIMED_OUT:
            self.code = self.next_code = TIMED_OUT_CODE
        # Bash may have had no process for the code of before, and would need one for this code too.
        if self.ending is not Ending.EXITED and not self._has_begun():
            self.next_code = LOST_CODE

    def _send(self, way: Way) -> None:
        self._way = way
        self._began = False
        self._exchange.prepare()
        self._shell.send(self._text, self._exchange, way)

    def _is_over(self) -> bool:
        """Whether bash is back at its prompt: only then has it said all that belongs to this command."""
        if self._shell.heard(Said.READY):
            return True
        if self._shell.heard(Said.ENDED) is None:
            return False
        # What runs at the prompt is no part of the command and may take its time.
        self._ended_at = self._ended_at or time.monotonic()
        return time.monotonic() - self._ended_at > _PROMPT_SECONDS

    def _wait(self) -> Ending:
        looks = 0
        while True:
            if self._is_over():
                if not self._may_try_again():
                    return Ending.EXITED
                if self._shell.could_not_fork():
                    self._shell.code = LOST_CODE
                    self._send(self._way)
                else:
                    self._send(self._way if self._shell.had_no_high() else Way.BARE_PROMPT)
            if not self._bash.is_alive:
                return Ending.EXITED
            if self._stop.is_set():
                return Ending.STOPPED
            elapsed = time.monotonic() - self._started
            if self._limit_s is not None and elapsed >= self._limit_s:
                return Ending.TIMED_OUT
            look_s = _LOOK_SECONDS[min(looks, len(_LOOK_SECONDS) - 1)]
            wait_s = look_s if self._limit_s is None else min(look_s, self._limit_s - elapsed)
            if not self._shell.wait(wait_s):
                looks += 1
                self._look_after()
                self._check_hearing()

    def _look_after(self) -> None:
        """Help a command along that would wait for a person: at the terminal, or to continue a stopped shell."""
        self._bash.give_end_of_file()
        self._shell.wait(_READER_SECONDS)
        self._bash.settle()
        state = process(self._bash.pid)
        if state is not None and state.state == "T":
            self._bash.signal(signal.SIGCONT)

    def _check_hearing(self) -> None:
        """Ask a bash that reads on without a word once more, then end it: it skips all commands (extdebug), or an EXIT
        trap reads input."""
        if self._bash.waits_for_input():
            self._bash.read_messages()
            if self._shell.heard(Said.READY):
                return
            if not self._asked_again:
                self._asked_again = True
                self._shell.ask_again(self._way)
            else:
                self.is_deaf = self._bash.foreground_group() == self._bash.pid
                self._bash.end_input()

    @property
    def never_ran(self) -> bool:
        """Whether it is over without bash having begun with the text, whatever bash says: the shell was about to end,
        could not open the text's streams (``ulimit -n 3``), or a trap had the call skipped.
        """
        return self.ending is Ending.EXITED and not self._has_begun()

    def _has_begun(self) -> bool:
        """Whether bash may have begun with the text: only when it surely has not, the text may be sent once more."""
        self._began = self._began or (self._exchange.was_opened() and not self._shell.lost_the_streams())
        return self._began

    def _may_try_again(self) -> bool:
        """Whether bash is at its prompt without having begun, and there is another way to have it begin."""
        if self._has_begun() or not self._shell.heard(Said.READY):
            return False
        return self._way is not Way.BARE_PROMPT or self._shell.could_not_fork()

    def _code(self) -> int:
        """The command's exit code; the shell's own when that has ended instead of reporting one."""
        if not self._bash.is_alive:
            self._bash.read_messages()
        # READY alone comes when the text was cut short.
        report = self._shell.heard(Said.ENDED, Said.READY)
        if report is not None and not self.is_deaf:
            self._bash.settle()
            return report.number
        self.died = True
        own_code = self._bash.code()
        return own_code if report is None else report.number

    def _end_foreground(self) -> None:
        """What Ctrl-C would do, then SIGKILL to the command's processes, at last to the shell."""
        self._interrupt()
        self._wait_over(_INTERRUPT_SECONDS)
        started = time.monotonic()
        while self._kill(stop_first=time.monotonic() - started > _STORM_SECONDS) or not self._gone():
            if time.monotonic() - started > _KILL_SECONDS:
                # It does not come back: its loop ignores SIGINT, or it starts processes faster than they are killed.
                self._bash.signal(signal.SIGKILL)
                self._wait_over(_PROMPT_SECONDS)
                return
            self._wait_over(_PAUSE_SECONDS)
            if not self._gone():
                if self._bash.waits_for_input():
                    self._shell.ask_again(self._way)
                elif self._shell.has_jobs:
                    self._interrupt_shell()
                else:
                    self._interrupt_together()
                self._wait_over(_PAUSE_SECONDS)

    def _interrupt(self) -> None:
        if not self._shell.has_jobs:
            self._interrupt_together()
            return
        send_signal(self._foreground(), signal.SIGINT, self._uid)
        # Like on a terminal the shell itself is only interrupted while it has no program in the foreground.
        if self._bash.foreground_group() == self._bash.pid:
            self._interrupt_shell()

    def _interrupt_together(self) -> None:
        """What Ctrl-C does to a shell without job control: it and its programs get the signal in the same moment.

        Such a shell goes on unless the last program of the pipeline it waits for dies of the signal.
        """
        self._bash.signal(signal.SIGSTOP)
        targets = self._foreground()
        self._bash.signal(signal.SIGINT)
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):
            send_signal(targets, number, self._uid)
        self._bash.signal(signal.SIGCONT)

    def _interrupt_shell(self) -> None:
        self._bash.signal(signal.SIGINT)
        self._bash.signal(signal.SIGCONT)

    def _kill(self, *, stop_first: bool) -> bool:
        """Kill the command's processes; whether there were any. Stopped ones do not fork: that ends a storm of them."""
        targets = self._foreground()
        if stop_first:
            send_signal(targets, signal.SIGSTOP, self._uid)
        send_signal(targets, signal.SIGKILL, self._uid)
        return bool(targets)

    def _foreground(self) -> list[Process]:
        group, has_jobs = self._bash.foreground_group(), self._shell.has_jobs
        return foreground(self._bash.pid, group, self._since, has_jobs=has_jobs)

    def _gone(self) -> bool:
        return self._is_over() or not self._bash.is_alive

    def _wait_over(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._gone() and (left := deadline - time.monotonic()) > 0:
            self._shell.wait(left)
        if self._gone():
            gevent.sleep(0.001)


def _ending_note(ending: Ending, limit_s: float | None, stop: StopSignal) -> bytes:
    if ending is Ending.TIMED_OUT:
        return b"ssebench: the command was stopped at its time limit of %g seconds\n" % (limit_s or 0)
    return b"ssebench: the command was stopped because %s\n" % (stop.reason or "").encode()
