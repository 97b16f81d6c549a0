"""The agent's own record of its run: one JSON object a line in ``$SSE_ARCHIVE/dialog.jsonl``.

Every entry has ``seq`` (1, 2, 3 ...), ``type`` and ``timestamp`` (UTC), then what its method takes. The daemon serves
the entries at ``GET /agent/dialog``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from sse.error import SDKError

FILE_NAME = "dialog.jsonl"
DEFAULT_ARCHIVE = "/tmp/sse-archive"  # noqa: S108 - the contract's default, a directory of the agent's own
MAX_ENTRY_BYTES = 16 * 1024 * 1024  # the daemon skips longer lines
_NUMBER_BYTES = 32  # for seq and the line's end
_CHUNK_BYTES = 4 * 1024 * 1024
_RESERVED = frozenset({"seq", "type", "timestamp"})

# One for the whole process, because the file lock below does not keep two writers of one process apart. Held during a
# fork, so that no child begins with a lock whose holder it does not have; reentrant, because the handler of a signal
# that came during a write may say that the run is over.
_one_writer = threading.RLock()
os.register_at_fork(before=_one_writer.acquire, after_in_parent=_one_writer.release, after_in_child=_one_writer.release)


class DialogWriter:
    """Appends entries to a dialog, each written in one piece and flushed before the method returns.

    ``path`` is the file, by default ``$SSE_ARCHIVE/dialog.jsonl``; its directory is made when missing. A file that
    exists is continued: its numbers go on. Several writers of one file, also in several threads and processes, share
    its numbers. Every method raises SDKError when the entry is not JSON or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        archive = os.environ.get("SSE_ARCHIVE", DEFAULT_ARCHIVE)
        self.path = os.fspath(path) if path is not None else os.path.join(archive, FILE_NAME)
        self._seq = 0
        self._end = 0  # the file is known up to here
        with self._errors():
            os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            self._fd = os.open(self.path, flags, 0o644)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.close()
            raise SDKError(f"cannot write the dialog {self.path}: it is no regular file")

    def init(self, agent: str, model: str | None = None, **more: Any) -> int:
        """The run begins: which agent, which model. Returns the entry's number, as every method does."""
        return self.write("init", agent=agent, model=model, **more)

    def prompt(self, text: str) -> int:
        """The prompt that the model was given."""
        return self.write("prompt", text=text)

    def message(self, text: str, role: str = "assistant") -> int:
        """Something said."""
        return self.write("message", role=role, text=text)

    def thinking(self, text: str) -> int:
        """Something thought."""
        return self.write("thinking", text=text)

    def tool_start(self, name: str, argument: Any = None, call_id: str | None = None) -> int:
        """A tool is called."""
        return self.write("tool_start", name=name, argument=argument, call_id=call_id)

    def tool_result(self, name: str, result: Any = None, call_id: str | None = None, is_error: bool = False) -> int:
        """What the tool gave back."""
        return self.write("tool_result", name=name, result=result, call_id=call_id, is_error=is_error)

    def complete(self, success: bool | None = None, summary: str | None = None, **more: Any) -> int:
        """The run is over."""
        return self.write("complete", success=success, summary=summary, **more)

    def write(self, kind: str, **fields: Any) -> int:
        """Append an entry of any type, of at most MAX_ENTRY_BYTES; fields that are None are left out."""
        if reserved := _RESERVED & fields.keys():
            raise SDKError(f"a dialog entry has its own {', '.join(sorted(reserved))}")
        spelled = _spelled({"type": kind, "timestamp": _now(), **_set_fields(fields)})
        with self._alone():
            self._catch_up()
            self._seq = seq = self._seq + 1
            self._append(b'{"seq": %d, %b\n' % (seq, spelled[1:]))
            return seq

    def close(self) -> None:
        """Close the file; writing afterwards is an error."""
        with _one_writer:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> DialogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else who uses this class writes to the file meanwhile."""
        with _one_writer, self._errors():
            if self._fd < 0:
                raise SDKError(f"cannot write the dialog {self.path}: it is closed")
            self._lock_file(fcntl.LOCK_EX)
            try:
                yield
            finally:
                self._lock_file(fcntl.LOCK_UN)

    def _lock_file(self, operation: int) -> None:
        # A filesystem without locks keeps other processes out no more than nothing would.
        with contextlib.suppress(OSError):
            fcntl.lockf(self._fd, operation)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SDKError(f"cannot write the dialog {self.path}: {error.strerror}") from error

    def _append(self, line: bytes) -> None:
        while line:
            written = os.write(self._fd, line)
            self._end += written
            line = line[written:]

    def _catch_up(self) -> None:
        """Learn the last number from what others added; a line that a writer left unfinished is ended."""
        if os.fstat(self._fd).st_size < self._end:
            self._end = 0  # emptied by somebody; the numbers go on
        rest = b""
        while chunk := os.pread(self._fd, _CHUNK_BYTES, self._end):
            self._end += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            self._seq = max([self._seq, *map(_seq_of, lines)])
        if rest:
            self._seq = max(self._seq, _seq_of(rest))
            self._append(b"\n")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _set_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _spelled(entry: dict[str, Any]) -> bytes:
    try:
        # Escaped, because text that a model produced may hold half a character pair, which has no UTF-8.
        spelled = json.dumps(entry, allow_nan=False, default=str).encode("ascii")
    except (ValueError, TypeError, RecursionError) as error:
        raise SDKError(f"a dialog entry must be JSON: {error}") from error
    if len(spelled) > MAX_ENTRY_BYTES - _NUMBER_BYTES:
        raise SDKError(f"a dialog entry must have at most {MAX_ENTRY_BYTES} bytes, this one has {len(spelled)}")
    return spelled


def _seq_of(line: bytes) -> int:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return 0
    seq = entry.get("seq") if isinstance(entry, dict) else None
    return seq if type(seq) is int else 0
