"""One log per script that ran, in the results directory, where only root reads."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections import deque
from collections.abc import Sequence

import gevent

from shell.command import CommandResult

log = logging.getLogger(__name__)

_BUDGET_BYTES = 1 << 30
_NAME = re.compile(r"(\d+)-\w+\.log")


class CheckLogs:
    """``<folder>/0001-build.log`` and so on: command, code, duration and output of each script.

    A log that cannot be written (a full disk) is a warning: it must not stop a grade. Logs of checks that agents ask
    for are removed, oldest first, when together they exceed ``budget_bytes``: an agent could fill the disk with them.
    """

    def __init__(self, folder: str, budget_bytes: int = _BUDGET_BYTES) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._next = 1
        self._expendable: deque[tuple[str, int]] = deque()

    def prepare(self) -> None:
        """Make the folder; numbers go on where an earlier start ended."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        numbers = [int(match[1]) for name in os.listdir(self._folder) if (match := _NAME.fullmatch(name))]
        self._next = max(numbers, default=0) + 1

    def write(self, check: str, command: Sequence[str], result: CommandResult, *, keep: bool) -> None:
        """Write the log of one script; with ``keep`` it stays for good."""
        path = os.path.join(self._folder, f"{self._next:04d}-{check}.log")
        self._next += 1
        head = {
            "check": check,
            "command": list(command),
            "code": result.code,
            "ending": result.ending.value,
            "duration_s": round(result.duration_s, 3),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        parts = [json.dumps(head).encode(), b"\n--- stdout\n", result.stdout, b"\n--- stderr\n", result.stderr, b"\n"]
        try:
            gevent.get_hub().threadpool.apply(_write, (path, parts))
        except OSError as error:
            log.warning("could not write %s: %s", path, error.strerror)
            return
        if not keep:
            self._expendable.append((path, sum(map(len, parts))))
            self._trim()

    def _trim(self) -> None:
        while len(self._expendable) > 1 and sum(size for _, size in self._expendable) > self._budget_bytes:
            with contextlib.suppress(OSError):
                os.unlink(self._expendable.popleft()[0])


def _write(path: str, parts: list[bytes]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.writelines(parts)
