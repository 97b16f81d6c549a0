"""The agent's dialog.jsonl, read again and again at the cost of what is new.

Runs as: root.
Distrusts: the agent, who owns the file and its directory: it may be a link, a FIFO, a device, somebody else's file,
  under a lease, may change, shrink or grow without end while it is read, and contain anything.
Promises: only a regular file of the agent's is ever opened, and no link is followed on the way; opening and reading
  never wait for anybody; one poll reads a bounded number of bytes in bounded time; entries are the agent's own JSON,
  checked to be strict; other greenlets get their turn every few milliseconds.
Does not promise: a consistent picture of a file that is overwritten in place without shrinking.
Checked by: tests/system/test_dialog.py, tests/unit/grading/test_dialog.py.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from grading.strict_json import StrictJSONError, has_lone_surrogate, parse_json, spell_json
from shell.accounts import Account
from shell.errors import SSEBenchError
from shell.turns import give_turn

FILE_NAME = "dialog.jsonl"
MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_POLL_BYTES = 512 * 1024 * 1024
MAX_POLL_SECONDS = 60.0

_PIECE_BYTES = 256 * 1024
_MERGED_BLOCK_BYTES = 32 * 1024
_LINES_PER_TURN = 100
_FINGERPRINT_BYTES = 64
_RESPELLED_BYTES = 1024 * 1024
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class DialogError(SSEBenchError):
    """The file exists but cannot be read."""


@dataclass(slots=True)
class _Block:
    """Some whole lines of the file. ``last_seq`` is the greatest of theirs, None when no line is an entry."""

    start: int
    end: int
    last_seq: int | None


@dataclass(slots=True)
class _Index:
    """What is known about the first ``end`` bytes of one file, all of them whole lines or parts of one too long.

    ``searched``: up to there no further line ends. ``skipping``: the line at ``end`` is too long to be kept.
    ``tail``: the last bytes before ``end``, to notice a file that was written anew. ``last_seq``: the greatest of all.
    """

    identity: tuple[int, int]
    end: int = 0
    searched: int = 0
    skipping: bool = False
    tail: bytes = b""
    last_seq: int | None = None
    blocks: list[_Block] = field(default_factory=list)

    def holds(self, since: int | None) -> bool:
        """Whether there is an entry with a greater ``seq``."""
        return _is_greater(self.last_seq, since)

    def wanted(self, since: int | None) -> list[_Block]:
        """The blocks that hold such entries."""
        return [block for block in self.blocks if _is_greater(block.last_seq, since)] if self.holds(since) else []

    def advance(self, block: _Block, tail: bytes) -> None:
        """Take in a block, unless another poll did so meanwhile. Small ones join the one before."""
        if block.start != self.end:
            return
        self.end, self.tail, self.skipping = block.end, tail, False
        self.last_seq = _greater(self.last_seq, block.last_seq)
        last = self.blocks[-1] if self.blocks else None
        if last is not None and last.end == block.start and block.end - last.start <= _MERGED_BLOCK_BYTES:
            last.end = block.end
            last.last_seq = _greater(last.last_seq, block.last_seq)
        elif block.last_seq is not None:
            self.blocks.append(block)

    def skip_to(self, start: int, end: int) -> None:
        """The line at ``start`` is too long and goes on at ``end``."""
        if start == self.end:
            self.end, self.searched, self.skipping, self.tail = end, end, True, b""


class _OpenFile:
    """A descriptor that closes with its last user, also when an answer is given up before it began."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)

    def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes at ``offset``; empty behind the end."""
        return os.pread(self.fd, size, offset)


class DialogFile:
    """The dialog in the archive directory of one run."""

    def __init__(self, archive: str, agent: Account) -> None:
        # Resolved once, before the agent runs: a system's own links (/var/run) stay usable, the agent's never are.
        self._directories = os.path.realpath(archive).strip("/").split("/")
        self._agent = agent
        self._index = _Index((-1, -1))

    def entries(self, since: int | None) -> Iterator[bytes]:
        """The JSON of each entry, in file order, with a greater ``seq`` than ``since``; none without a file.

        DialogError, at once, when there is a file that must not or cannot be opened.
        """
        found = self._find()
        if found is None:
            return iter(())
        path_fd, status = found
        try:
            index = self._index_for(status)
            if index.searched >= status.st_size and not index.holds(since):
                return iter(())  # nothing new: the file needs not even be opened
            file = _OpenFile(self._reopen(path_fd))
        finally:
            os.close(path_fd)
        try:
            index = self._index = self._verified(index, file)
        except OSError as error:
            raise DialogError(f"{FILE_NAME} cannot be read: {error.strerror}") from error
        return _Reading(file, status.st_size, index, since).run()

    def _find(self) -> tuple[int, os.stat_result] | None:
        """An O_PATH descriptor of the file and its status; None when it does not exist."""
        fd = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            for name in [*self._directories, FILE_NAME]:
                # O_PATH opens nothing: no FIFO waits, no device wakes up, no lease is broken.
                below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                os.close(fd)
                fd = below
            status = os.fstat(fd)
            self._check(status)
        except FileNotFoundError:
            os.close(fd)
            return None
        except (OSError, DialogError) as error:
            os.close(fd)
            if isinstance(error, DialogError):
                raise
            raise DialogError(f"{FILE_NAME} cannot be read: {error.strerror}") from error
        return fd, status

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise DialogError(f"{FILE_NAME} is not a regular file")
        if status.st_uid != self._agent.uid:
            raise DialogError(f"{FILE_NAME} does not belong to {self._agent.name}")

    def _reopen(self, path_fd: int) -> int:
        """The file of an O_PATH descriptor, for reading. O_NONBLOCK: the agent's lease would hold a plain open."""
        try:
            return os.open(f"/proc/self/fd/{path_fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            raise DialogError(f"{FILE_NAME} cannot be opened: {error.strerror}") from error

    def _index_for(self, status: os.stat_result) -> _Index:
        """What is known about this file; nothing when it is another one or has shrunk."""
        identity = (status.st_dev, status.st_ino)
        if self._index.identity != identity or status.st_size < self._index.searched:
            self._index = _Index(identity)
        return self._index

    @staticmethod
    def _verified(index: _Index, file: _OpenFile) -> _Index:
        """``index``, or an empty one when other bytes stand where the last ones were."""
        if index.tail and file.read(index.end - len(index.tail), len(index.tail)) != index.tail:
            return _Index(index.identity)
        return index


class _Reading:
    """One poll: the blocks that are known, then what is new."""

    def __init__(self, file: _OpenFile, size: int, index: _Index, since: int | None) -> None:
        self._file, self._size, self._index, self._since = file, size, index, since
        self._budget = MAX_POLL_BYTES
        self._deadline = time.monotonic() + MAX_POLL_SECONDS
        self._last_seq: int | None = None

    def run(self) -> Iterator[bytes]:
        """The wanted entries."""
        try:
            for block in self._index.wanted(self._since):
                if self._exhausted():
                    return
                yield from self._lines(self._read(block.start, block.end - block.start))
            yield from self._new_lines()
        except OSError:
            return  # the answer has begun; what could not be read is like what was not written yet

    def _exhausted(self) -> bool:
        return self._budget <= 0 or time.monotonic() > self._deadline

    def _read(self, offset: int, size: int) -> bytes:
        data = self._file.read(offset, size)
        self._budget -= max(1, len(data))
        return data

    def _lines(self, data: bytes) -> Iterator[bytes]:
        """The wanted entries of whole lines; notes the greatest ``seq`` of all."""
        for count, line in enumerate(data.split(b"\n")[:-1], 1):
            entry = parse_entry(line)
            if entry is not None:
                seq, shown = entry
                self._last_seq = _greater(self._last_seq, seq)
                if self._since is None or seq > self._since:
                    yield shown
            if count % _LINES_PER_TURN == 0:
                give_turn()

    def _new_lines(self) -> Iterator[bytes]:
        index = self._index
        start, skipping = index.end, index.skipping
        if not skipping and index.searched > start and not self._line_ends_after(index.searched):
            return
        held: list[bytes] = []
        held_bytes = 0
        while start + held_bytes < self._size and not self._exhausted():
            data = self._read(start + held_bytes, min(_PIECE_BYTES, self._size - start - held_bytes))
            if not data:
                break
            whole = data.rfind(b"\n") + 1
            if whole == 0:
                held.append(data)
                held_bytes += len(data)
                if skipping or held_bytes > MAX_LINE_BYTES:
                    index.skip_to(start, start + held_bytes)
                    start, skipping, held, held_bytes = start + held_bytes, True, [], 0
                give_turn()
                continue
            lines = b"".join([*held, data[:whole]])
            end = start + len(lines)
            if skipping:
                lines = lines[lines.find(b"\n") + 1 :]
            self._last_seq = None
            yield from self._lines(lines)
            index.advance(_Block(start, end, self._last_seq), lines[-_FINGERPRINT_BYTES:])
            start, skipping, held, held_bytes = end, False, [], 0
            give_turn()
        if start == index.end:
            index.searched = start + held_bytes

    def _line_ends_after(self, offset: int) -> bool:
        """Whether the line that was not whole last time is so now; it is not read anew before."""
        while offset < self._size and not self._exhausted():
            data = self._read(offset, _PIECE_BYTES)
            if not data or b"\n" in data:
                return bool(data)
            offset += len(data)
            if offset - self._index.end > MAX_LINE_BYTES:
                return True
            give_turn()
        self._index.searched = max(self._index.searched, offset)
        return False


def parse_entry(line: bytes) -> tuple[int, bytes] | None:
    """``seq`` and the JSON to show of one line; None when it is no entry."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        value = parse_json(line)
    except StrictJSONError:
        return None
    if not isinstance(value, dict) or type(value.get("seq")) is not int:
        return None
    if _SURROGATE_ESCAPE.search(line) and has_lone_surrogate(value):
        # Valid as JSON, but no client can hold it as text. A long line is not worth spelling anew.
        return (value["seq"], spell_json(value)) if len(line) <= _RESPELLED_BYTES else None
    return value["seq"], line.strip(b" \t\r")


def _is_greater(seq: int | None, since: int | None) -> bool:
    return seq is not None and (since is None or seq > since)


def _greater(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
