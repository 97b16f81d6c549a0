"""One life of the persistent bash: what is sent to it, what it reported, and what it has to be told again.

Runs as: the daemon.
Distrusts: every message: the agent's code runs in the same bash. A false one spoils the agent's own answers, no more.
Promises: what is kept of the messages is bounded; a command is told the exit code and the prompt variables that the
  one before it left.
Does not promise: that bash ever answers; whoever waits has a limit.
Checked by: tests/conformance, tests/system/test_bash_session.py.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

from gevent.event import Event

from shell.accounts import Account
from shell.session_protocol import (
    HIGH_DESCRIPTORS,
    NONCE_BYTES,
    Command,
    Report,
    Said,
    Way,
    belongs_in_file,
    command_lines,
    direct_lines,
    file_text,
    fork_failed,
    is_free,
    lost_the_streams,
    may_change_prompts,
    may_shadow,
    needs_no_jobs,
    ready_line,
    reports,
    startup_lines,
    was_not_called,
)
from shell.session_streams import Exchange
from shell.session_terminal import BashProcess

_START_SECONDS = 10.0
_PROMPT_SECONDS = 2.0
_LOOK_SECONDS = 0.25
_MESSAGE_BYTES = 1 << 14


class Shell:
    """A bash process and the conversation with it."""

    def __init__(self, account: Account, source: str, environment: Mapping[str, str], *, read_rc: bool) -> None:
        self.code = 0
        self.messages = b""
        self.loose_output = b""
        self.nonce = b""
        self._turned = Event()
        self._heard: list[Report] = []
        self._shadowed: frozenset[int] = frozenset()
        self._checks_names = False
        self._command: Command | None = None
        self._prompts: tuple[bytes, ...] = (b"", b"", b"")
        self._high = True
        self._has_jobs = True  # see conf/shell.rc
        self._knows_jobs = True
        self._guarded = False
        self.process = BashProcess(
            account,
            source,
            environment,
            read_rc=read_rc,
            on_message=self._take_message,
            on_output=self._take_output,
            on_death=self.wake,
        )

    def start(self, setup: bytes) -> bool:
        """Send ``setup`` and wait for the first prompt; False when it does not come."""
        self._begin(checks_names=True)
        self.process.send(startup_lines(self.nonce, setup))
        deadline = time.monotonic() + _START_SECONDS
        while self.process.is_alive and time.monotonic() < deadline:
            if self.heard(Said.READY):
                return self.at_prompt()
            if not self.wait(_LOOK_SECONDS):
                self.process.give_end_of_file()
                if self.process.waits_for_input():
                    self.process.read_messages()
                    return self.heard(Said.READY) is not None and self.at_prompt()
        return False

    def at_prompt(self) -> bool:
        """Whether bash is at its prompt, ready for a command; waits a little for it."""
        deadline = time.monotonic() + _PROMPT_SECONDS
        while not self.heard(Said.READY):
            left = deadline - time.monotonic()
            if left <= 0 or not self.process.is_alive:
                return False
            self.wait(min(left, _LOOK_SECONDS))
        self._remember()
        return self.process.is_alive

    def send(self, text: bytes, exchange: Exchange, way: Way) -> None:
        """Have bash run ``text``; from now on only what it reports about this command counts."""
        code, shadowed, prompts = self.code, self._shadowed, self._prompts
        usual = way is Way.PROMPT_COMMAND
        self._begin(checks_names=may_shadow(text) and usual)
        in_file = usual and belongs_in_file(text) and exchange.write_text(file_text(text, shadowed))
        # The last way needs as few descriptors as can be.
        high = self._high and way is not Way.BARE_PROMPT
        monitored = way is Way.BARE_PROMPT or not self._can_do_without_jobs(text)
        command = Command(
            self.nonce, text, code, exchange.paths, shadowed, prompts, in_file, high, monitored, self._guarded
        )
        lines = command_lines(command) if usual else direct_lines(command, way)
        self._command = command
        self._guarded = self._guarded or may_change_prompts(text)
        self.process.send(lines)

    def ask_again(self, way: Way) -> None:
        """Ask once more whether bash is at its prompt: an interrupt while it read the question made it forget that."""
        self.process.send(ready_line(self.nonce, way, self.is_monitored))

    @property
    def is_monitored(self) -> bool:
        """Whether the current command's text runs with the job control that the shell has, and not with none."""
        return self._command is None or self._command.monitored

    @property
    def has_jobs(self) -> bool:
        """Whether the current command's text began with job control."""
        return self.is_monitored and self._has_jobs

    def heard(self, *kinds: Said) -> Report | None:
        """The first report of one of these kinds on the current command."""
        return next((report for report in self._heard if report.said in kinds), None)

    def could_not_fork(self) -> bool:
        """Whether the text did not run, because bash could not start the process that sets ``$?`` before it."""
        return self.heard(Said.ENDED) is None and self.code > 1 and fork_failed(self.messages)

    def lost_the_streams(self) -> bool:
        """Whether the text did not run although its streams were opened."""
        return self._command is not None and lost_the_streams(self._command, self.messages)

    def had_no_high(self) -> bool:
        """Whether the text did not run for want of high descriptors; from now on the shell does without."""
        few = self._high and (self.lost_the_streams() or self.process.descriptor_limit() < HIGH_DESCRIPTORS)
        self._high = self._high and not few
        return few

    def was_not_called(self, stderr: bytes) -> bool:
        """Whether the text probably did not run, because what calls it is switched off, as ``stderr`` then says."""
        report = self.heard(Said.ENDED)
        return report is not None and self._command is not None and was_not_called(self._command, report, stderr)

    def wait(self, seconds: float | None) -> bool:
        """Until bash is at its prompt or dies or somebody calls ``wake``; False when ``seconds`` went by instead."""
        happened: bool = self._turned.wait(seconds)
        self._turned.clear()
        return happened

    def wake(self, _: object = None) -> None:
        """End the current ``wait``."""
        self._turned.set()

    def _begin(self, *, checks_names: bool) -> None:
        self.nonce = secrets.token_hex(NONCE_BYTES).encode()
        self.messages = b""
        self.loose_output = b""
        self._heard = []
        self._checks_names = checks_names
        self._turned.clear()

    def _can_do_without_jobs(self, text: bytes) -> bool:
        """Whether ``text`` is better run without the job control that the shell has, and this can be switched off."""
        return self._has_jobs and self._knows_jobs and needs_no_jobs(text) and is_free(b"builtin", self._shadowed)

    def _remember(self) -> None:
        """Take over what the reports on the last command say about the shell."""
        last = self.heard(Said.ENDED, Said.READY)
        if last is not None and last.prompts:
            self._prompts = last.prompts
            if self.is_monitored:
                self._has_jobs = b"m" in last.options
        self._knows_jobs = last is not None and bool(last.options)
        if self._checks_names:
            self._shadowed = frozenset(report.number for report in self._heard if report.said is Said.SHADOWED)

    def _take_message(self, data: bytes) -> None:
        found, rest = reports(self.nonce, self.messages + data)
        self.messages = rest[-_MESSAGE_BYTES:]
        self._heard += found
        # Nobody goes on before bash is at its prompt; whoever counts the time since the end looks now and then.
        if any(report.said is Said.READY for report in found):
            self._turned.set()

    def _take_output(self, data: bytes) -> None:
        """Bash itself wrote to its standard output: of interest when it was an EXIT trap."""
        self.loose_output = (self.loose_output + data)[-_MESSAGE_BYTES:]
