"""The agent's own record of its run: one JSON object a line in ``$SSE_ARCHIVE/dialog.jsonl``.

Every entry has ``seq`` (1, 2, 3 ...), ``type`` and ``timestamp`` (UTC), then what its method takes. The daemon serves
the entries at ``GET /agent/dialog``.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from sse.error import SDKError

FILE_NAME = "dialog.jsonl"
DEFAULT_ARCHIVE = "/tmp/sse-archive"  # noqa: S108 - the contract's default, a directory of the agent's own


class DialogWriter:
    """Appends entries to a dialog, each written in one piece and flushed before the method returns.

    ``path`` is the file, by default ``$SSE_ARCHIVE/dialog.jsonl``; its directory is made when missing. A file that
    exists is continued: its numbers go on. Safe to use from several threads.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        archive = os.environ.get("SSE_ARCHIVE", DEFAULT_ARCHIVE)
        self.path = os.fspath(path) if path is not None else os.path.join(archive, FILE_NAME)
        self._lock = threading.Lock()
        try:
            os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SDKError(f"cannot write the dialog {self.path}: {error.strerror}") from error
        self._seq = self._continue()

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
        """Append an entry of any type; fields that are None are left out. SDKError when it cannot be written."""
        with self._lock:
            entry = {"seq": self._seq + 1, "type": kind, "timestamp": _now(), **_set_fields(fields)}
            self._append(_line(entry))
            self._seq += 1
            return self._seq

    def close(self) -> None:
        """Close the file; writing afterwards is an error."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> DialogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError as error:
            raise SDKError(f"cannot write the dialog {self.path}: {error.strerror}") from error

    def _continue(self) -> int:
        """The last number in the file; a line that an earlier writer left unfinished is ended."""
        last = 0
        line = b""
        with open(os.dup(self._fd), "rb") as file:
            file.seek(0)
            for line in file:
                last = max(last, _seq_of(line))
        if line and not line.endswith(b"\n"):
            self._append(b"\n")
        return last


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _set_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _line(entry: dict[str, Any]) -> bytes:
    try:
        # Escaped, because text that a model produced may hold half a character pair, which has no UTF-8.
        return json.dumps(entry, allow_nan=False, default=str).encode("ascii") + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise SDKError(f"a dialog entry must be JSON: {error}") from error


def _seq_of(line: bytes) -> int:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return 0
    seq = entry.get("seq") if isinstance(entry, dict) else None
    return seq if type(seq) is int else 0
