"""One bash on its terminal: start, input, messages, death.

Runs as: root up to the fork; bash runs as the account given.
Distrusts: bash, once the agent's text has run in it, and everything written to the terminal.
Promises: bash gets no descriptor of the daemon's but its own input and message pipe; what is written to the terminal
  is read and dropped, so it never fills; whoever reads the terminal can be given end of file.
Does not promise: that bash ever answers.
Checked by: tests/system/test_bash_session.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import struct
import termios
from collections.abc import Callable, Mapping
from fcntl import ioctl
from typing import Any

import gevent
import pexpect
import ptyprocess
from gevent import monkey

from shell.accounts import Account, child_setup
from shell.errors import CommandError
from shell.session_streams import Reader, pending_bytes

# Asked without waiting, so gevent's own, which goes through the hub, has nothing to add.
_poll = monkey.get_original("select", "poll")
_PR_SET_CHILD_SUBREAPER = 36
_TIOCGPTPEER = 0x5441
_libc = ctypes.CDLL(None, use_errno=True)
_BASH = "/bin/bash"
_REAP_SECONDS = 5.0
_OPEN_FILES = re.compile(rb"^Max open files +(\d+)", re.MULTILINE)
# The number of read(2), where it is known.
_READ = {"x86_64": b"0", "aarch64": b"63"}.get(os.uname().machine)


class _Spawn(pexpect.spawn):  # type: ignore[type-arg]  # generic in its type stub only
    """pexpect's spawn, which by itself cannot leave descriptors open until ``preexec_fn`` has used them."""

    def __init__(
        self,
        arguments: list[str],
        environment: dict[str, str],
        preexec_fn: Callable[[], None],
        keep: tuple[int, ...],
    ) -> None:
        self._keep = keep
        super().__init__(_BASH, arguments, env=environment, echo=False, use_poll=True, preexec_fn=preexec_fn)
        self.delaybeforesend = None

    ptyproc: ptyprocess.PtyProcess
    child_fd: int

    def _spawnpty(self, args: list[str], **options: Any) -> ptyprocess.PtyProcess:
        return ptyprocess.PtyProcess.spawn(args, pass_fds=self._keep, **options)


class BashProcess:
    """A running interactive bash.

    ``on_message`` gets what bash itself writes to its standard error, where its reports are, ``on_output`` what it
    writes to its standard output: commands have streams of their own. ``on_death`` is called once, at its end.
    """

    def __init__(
        self,
        account: Account,
        source: str,
        environment: Mapping[str, str],
        *,
        read_rc: bool,
        on_message: Callable[[bytes], None],
        on_output: Callable[[bytes], None],
        on_death: Callable[[], None],
    ) -> None:
        input_read, self._input = os.pipe()
        os.set_blocking(self._input, False)
        output_read, output_write = os.pipe()
        self._output = Reader(output_read, on_output)
        message_read, message_write = os.pipe()
        self._messages = Reader(message_read, on_message)
        theirs = (input_read, output_write, message_write)
        arguments = ["--noediting", *([] if read_rc else ["--norc"]), "-i"]
        try:
            self._child = _Spawn(
                arguments,
                dict(environment),
                _setup(account, source, theirs),
                theirs,
            )
        except Exception as error:  # ptyprocess raises whatever class the child's error had
            os.close(self._input)
            self._output.close()
            self._messages.close()
            raise CommandError(f"could not start bash as {account.name}: {error}") from error
        finally:
            for fd in theirs:
                os.close(fd)
        assert self._child.pid is not None
        self.pid: int = self._child.pid
        self._child.ptyproc.delayafterclose = self._child.ptyproc.delayafterterminate = 0.0
        # Our own end of the terminal, found through the master and not through a path.
        self._terminal = ioctl(self._child.child_fd, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        self._mode = termios.tcgetattr(self._terminal)
        self._screen = Reader(os.dup(self._child.child_fd), lambda data: None)
        self._pidfd = os.pidfd_open(self.pid)
        self._poll = _poll()
        self._poll.register(self._pidfd, select.POLLIN)
        self._death = gevent.get_hub().loop.io(self._pidfd, 1)
        self._on_death = on_death
        self._death.start(self._died)

    @property
    def is_alive(self) -> bool:
        """Whether bash, or the program it was replaced by, still runs."""
        return self._pidfd >= 0 and not self._poll.poll(0)

    def send(self, data: bytes) -> None:
        """Write to bash's input; waits cooperatively while the pipe is full. A bash that is gone is no error."""
        view = memoryview(data)
        while view and self._input >= 0:
            try:
                view = view[os.write(self._input, view) :]
            except BlockingIOError:
                if not self.is_alive:
                    return
                gevent.sleep(0.001)
            except BrokenPipeError:
                return

    def unread_bytes(self) -> int:
        """How much of what was sent bash has not read; also after its end."""
        return pending_bytes(self._input) if self._input >= 0 else 0

    def waits_for_input(self) -> bool:
        """Whether all that was sent has been read and somebody waits for more; False also when that cannot be known.

        Commands and DEBUG traps have another standard input, so it is bash at its prompt or an EXIT trap of its.
        """
        if self._input < 0 or not self.is_alive or self.unread_bytes():
            return False
        return any(self._reads_our_input(pid) for pid in {self.pid, self.foreground_group()} if pid)

    def end_input(self) -> None:
        """Whoever reads bash's input gets its end; bash at its prompt then exits."""
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    def _reads_our_input(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/syscall", "rb") as file:
                call = file.read().split()
            is_ours = os.path.samestat(os.stat(f"/proc/{pid}/fd/0"), os.fstat(self._input))
            return call[:2] == [_READ, b"0x0"] and is_ours
        return False

    def read_messages(self) -> None:
        """Take what bash itself has written up to now."""
        self._output.read_what_is_there()
        self._messages.read_what_is_there()

    def give_end_of_file(self) -> None:
        """Whoever reads the terminal now gets end of file.

        Raw mode knows none, and who already waits in it wants a byte. So the terminal leaves raw mode, and such a
        reader gets the byte that stands for end of file, quoted, and then end of file.
        """
        with contextlib.suppress(OSError, termios.error):
            # Output that was stopped (Ctrl-S) would hold its writer for ever.
            termios.tcflow(self._terminal, termios.TCOON)
            control = self._mode[6]
            typed = bytes(control[termios.VEOF])
            if not termios.tcgetattr(self._terminal)[3] & termios.ICANON:
                termios.tcsetattr(self._terminal, termios.TCSANOW, self._mode)
                typed = bytes(control[termios.VLNEXT]) + 3 * typed
            os.write(self._child.child_fd, typed)

    def settle(self) -> None:
        """Put the terminal back into its first mode and forget an end of file that nobody read."""
        with contextlib.suppress(OSError, termios.error):
            termios.tcflush(self._terminal, termios.TCIFLUSH)
            if termios.tcgetattr(self._terminal) != self._mode:
                termios.tcsetattr(self._terminal, termios.TCSANOW, self._mode)

    def foreground_group(self) -> int:
        """The process group that the terminal's signals go to, 0 when there is none."""
        with contextlib.suppress(OSError):
            return int(struct.unpack("i", ioctl(self._child.child_fd, termios.TIOCGPGRP, b"\0" * 4))[0])
        return 0

    def descriptor_limit(self) -> int:
        """How many descriptors bash may have now, 0 when that cannot be known."""
        # prlimit(2) wants a capability that a container's root lacks.
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/limits", "rb") as file:
            found = _OPEN_FILES.search(file.read())
            return int(found[1]) if found else 0
        return 0

    def signal(self, number: int) -> None:
        """Send bash itself a signal; nothing when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)

    def code(self) -> int:
        """Exit code of the ended bash, 128 + n when signal n ended it."""
        deadline = gevent.get_hub().loop.now() + _REAP_SECONDS
        while self._child.isalive():
            if gevent.get_hub().loop.now() > deadline:
                raise CommandError("bash ended but its exit code did not arrive")
            gevent.sleep(0.001)
        if self._child.signalstatus is not None:
            return 128 + int(self._child.signalstatus)
        return int(self._child.exitstatus or 0)

    def close(self) -> None:
        """End bash and give everything back. Its children are the caller's business."""
        self.signal(signal.SIGKILL)
        self.code()
        self._death.stop()
        self._death.close()
        self._output.close()
        self._messages.close()
        self._screen.close()
        self.end_input()
        for fd in (self._terminal, self._pidfd):
            os.close(fd)
        self._pidfd = -1
        self._child.close()

    def _died(self) -> None:
        self._death.stop()
        self._on_death()


def _setup(account: Account, source: str, streams: tuple[int, int, int]) -> Callable[[], None]:
    """What the child does before it becomes bash; ``streams`` become its descriptors 0, 1 and 2."""
    become = child_setup(account, None)

    def setup() -> None:
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        # Orphans below bash become bash's children: none can hide from the end of a command behind a double fork.
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
        become()
        for directory in (source, account.home, "/"):
            with contextlib.suppress(OSError):
                os.chdir(directory)
                break

    return setup
