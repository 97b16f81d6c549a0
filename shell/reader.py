"""The daemon's end of the program that reads the agent's tree.

Runs as: root; the program runs with the agent's uid, all his groups, and a primary group nobody else has.
Distrusts: what comes back may be late, cut short or missing, because the agent may stop or kill the program; contents
  and names are the agent's.
Promises: each exchange has a limit of silence and of time, then ReaderError; nothing of the program is left after
  ``close``; root opens something of the agent's only when the program was refused it, through descriptors that follow
  no link, and hands over only what belongs to the agent.
Does not promise: a picture of one moment; a new start of the program begins from nothing.
Checked by: tests/system/test_capture.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import io
import os
import signal
import socket
import struct
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

import gevent

from shell.accounts import Account, child_setup, is_isolated
from shell.copying import private_gid
from shell.errors import SSEBenchError
from shell.interpreter import shared_python
from shell.owned import look_for
from shell.tree_channel import EXPECTED, FRAME, SMALL_BYTES, check_gone
from shell.turns import Turns

_RECEIVE_BYTES = 1 << 18
_LARGEST_FRAME = SMALL_BYTES + 4096
SILENCE_S = 15.0
EXCHANGE_S = 600.0


class ReaderError(SSEBenchError):
    """The tree could not be read; the message says why."""


class ReaderDiedError(ReaderError):
    """The program ended in the middle: the agent killed it, or his phase ended. A new one can be tried."""


class TreeGoneError(ReaderError):
    """The tree is gone or no directory any more."""


class ReadRequest(NamedTuple):
    """A file to read: its path, and the SHA-256 and size that it is expected to have (none: b"" and -1)."""

    path: bytes
    digest: bytes = b""
    size: int = -1


class Content(Protocol):
    """Takes the bytes of one file, in pieces, in order."""

    def write(self, data: bytes) -> None:
        """The next piece."""

    def finish(self) -> None:
        """All pieces came."""

    def discard(self) -> None:
        """The pieces so far are void; also called when ``write`` or ``finish`` failed."""


class ReadSink(Protocol):
    """What to do with the answers to read requests, called in the order of the requests."""

    def same(self, request: ReadRequest, kind: bytes) -> None:
        """The content is as expected."""

    def content(self, request: ReadRequest, kind: bytes, size: int) -> Content:
        """The content differs, or nothing was expected; exactly ``size`` bytes follow."""

    def gone(self, request: ReadRequest) -> None:
        """No regular file or link is there any more."""

    def unreadable(self, request: ReadRequest) -> None:
        """Closed to the agent, and not the agent's own."""

    def too_big(self, request: ReadRequest) -> None:
        """Larger than anything that fits a patch."""


def reader_account(agent: Account) -> Account:
    """The agent's rights under a private primary group: his processes can then not trace or read the helper."""
    return replace(agent, gid=private_gid()) if is_isolated() else agent


class ReaderProcess:
    """One running reader for part ``part`` of ``parts`` of the tree. Not for concurrent use."""

    def __init__(self, root: bytes, agent: Account, part: int = 0, parts: int = 1) -> None:
        self._root = root
        self._agent = agent
        self._turns = Turns()
        self._buffer = bytearray()
        self._socket, child = socket.socketpair()
        try:
            self._process = _start(reader_account(agent), child)
        except BaseException:
            self._socket.close()
            raise
        finally:
            child.close()
        try:
            with self._exchange():
                self._send(b"I", struct.pack(">HH", part, parts) + root)
        except BaseException:
            self.close()
            raise

    def scan(self) -> list[tuple[bytes, bytes]]:
        """(kind, path) of everything that changed since the last scan; kinds: see ``tree_channel.kind_of``, and
        ``d`` deleted, ``u`` unreadable, ``n`` name too long. TreeGoneError when there is no tree."""
        found: list[tuple[bytes, bytes]] = []
        with self._exchange():
            self._send(b"S")
            for kind, payload in self._answers():
                self._turns.take()
                if kind == b"E":
                    found.extend((record[:1], record[1:]) for record in payload.split(b"\0"))
                elif kind == b"Z":
                    if payload != b"y":
                        raise TreeGoneError(f"{os.fsdecode(self._root)} is gone or is no directory any more")
                    return found
        raise AssertionError("unreachable")

    def read(self, requests: list[ReadRequest], sink: ReadSink) -> None:
        """Read files; every answer goes to ``sink``."""
        with self._exchange():
            self._send(b"R", b"".join(map(_encode, requests)))
            answers = self._answers()
            for request in requests:
                self._read_one(request, answers, sink)
            next(answers)

    def save(self) -> bytes:
        """What the program knows from its scans: another one that loads it goes on from there. Opaque to the daemon."""
        with self._exchange():
            self._send(b"X")
            pieces = []
            for kind, payload in self._answers():
                if kind == b"Z":
                    break
                pieces.append(payload)
            return b"".join(pieces)

    def load(self, saved: bytes) -> None:
        """Give a new program what one for the same part of the same tree saved."""
        with self._exchange():
            self._send(b"M", saved)

    def repository_file(self, path: bytes) -> bytes | None:
        """The first MiB of a regular file at ``path`` below the tree, links followed with the agent's rights."""
        with self._exchange():
            self._send(b"Q", path)
            kind, payload = next(self._answers())
            return payload if kind == b"q" else None

    def close(self) -> None:
        """End the program; nothing of it is left on return."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read_one(self, request: ReadRequest, answers: Iterator[tuple[bytes, bytes]], sink: ReadSink) -> None:
        content: Content | None = None
        try:
            for kind, payload in answers:
                self._turns.take()
                if kind == b"D" and content is not None:
                    content.write(payload)
                elif kind == b"C":
                    content = sink.content(request, payload[:1], struct.unpack(">Q", payload[1:])[0])
                elif kind == b"A" and content is not None:
                    content.discard()
                    content = None
                elif kind == b"F" and content is not None:
                    content.finish()
                    return
                else:
                    _finish_one(request, kind, payload, sink)
                    return
        except BaseException:
            if content is not None:
                content.discard()
            raise

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Turn every way in which an exchange can fail into a ReaderError."""
        try:
            with gevent.Timeout(EXCHANGE_S, ReaderError(f"reading the tree took longer than {EXCHANGE_S:g} s")):
                yield
        except OSError as error:
            raise ReaderDiedError("the helper that reads the tree ended early") from error

    def _answers(self) -> Iterator[tuple[bytes, bytes]]:
        """The frames of an answer; heartbeats and cries for help are dealt with here."""
        while True:
            head = self._receive(FRAME.size)
            kind, length = FRAME.unpack(head)
            if length > _LARGEST_FRAME:
                raise ReaderError("the helper that reads the tree sent nonsense")
            payload = self._receive(length)
            if kind == b"O":
                self._help(payload[:1], payload[1:])
            elif kind != b".":
                yield kind, payload

    def _receive(self, count: int) -> bytes:
        buffer = self._buffer
        while len(buffer) < count:
            with gevent.Timeout(
                SILENCE_S, ReaderError(f"the helper that reads the tree was silent for {SILENCE_S:g} s")
            ):
                data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                raise ReaderDiedError("the helper that reads the tree ended early")
            buffer += data
        taken = bytes(buffer[:count])
        del buffer[:count]
        return taken

    def _send(self, kind: bytes, payload: bytes = b"") -> None:
        self._socket.sendall(FRAME.pack(kind, len(payload)) + payload)

    def _help(self, operation: bytes, path: bytes) -> None:
        """Answer a request for something the agent closed to himself."""
        fd: int | None = None
        try:
            answer, fd = look_for(operation, os.path.join(self._root, path), self._agent.uid)
        except BlockingIOError:
            answer = b"h"
        except PermissionError:
            answer = b"u"
        except OSError as error:
            check_gone(error)
            answer = b"g"
        try:
            head = FRAME.pack(b"o", len(answer))
            if fd is None:
                self._socket.sendall(head + answer)
            else:
                socket.send_fds(self._socket, [head], [fd])
                self._socket.sendall(answer)
        finally:
            if fd is not None:
                os.close(fd)


def _finish_one(request: ReadRequest, kind: bytes, payload: bytes, sink: ReadSink) -> None:
    """Pass on an answer that is one frame."""
    if kind == b"c":
        content = sink.content(request, payload[:1], len(payload) - 1)
        try:
            content.write(payload[1:])
            content.finish()
        except BaseException:
            content.discard()
            raise
    elif kind == b"=":
        sink.same(request, payload)
    elif kind == b"B":
        sink.too_big(request)
    elif kind == b"L":
        raise ReaderError(f"{os.fsdecode(request.path)!a} cannot be opened: a lease is held on it")
    elif kind == b"U":
        sink.unreadable(request)
    else:
        sink.gone(request)


def _encode(request: ReadRequest) -> bytes:
    return EXPECTED.pack(request.digest, request.size) + request.path + b"\0"


def _start(account: Account, child: socket.socket) -> subprocess.Popen[bytes]:
    """Start the program; it travels in a sealed memory file that any user can read but nobody can change."""
    program = os.memfd_create("program", os.MFD_ALLOW_SEALING)
    try:
        os.write(program, _program())
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(program, fcntl.F_ADD_SEALS, seals)
        return subprocess.Popen(
            [shared_python(), "-I", "-S", "-B", f"/dev/fd/{program}"],
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUTF8": "1"},
            stdin=child.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(program,),
            start_new_session=True,
            preexec_fn=child_setup(account, "/"),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ReaderError(f"the helper that reads the tree could not be started: {error}") from error
    finally:
        os.close(program)


@functools.cache
def _program() -> bytes:
    """The program and its parts as one archive that Python runs as it is."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as parts:
        parts.writestr("__main__.py", "from shell.tree_reader import main\n\nmain()\n")
        parts.writestr("shell/__init__.py", "")
        for name in ("tree_channel", "tree_scanner", "tree_files", "tree_reader"):
            with open(os.path.join(os.path.dirname(__file__), f"{name}.py"), "rb") as file:
                parts.writestr(f"shell/{name}.py", file.read())
    return archive.getvalue()
