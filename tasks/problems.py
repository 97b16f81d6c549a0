"""What is wrong with a task or a dataset, told so that its author can repair it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shell.errors import SSEBenchError


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One fault: the file it is in, the key within that file (may be empty), and what was expected."""

    file: str
    key: str
    message: str

    def __str__(self) -> str:
        """One line, safe for a terminal whatever the file's keys hold."""
        line = ": ".join(part for part in (self.file, self.key, self.message) if part)
        return "".join(c if c.isprintable() else "?" for c in line)

    def below(self, folder: str) -> Problem:
        """The same problem, its file named from one folder further up."""
        return Problem(f"{folder}/{self.file}" if self.file else folder, self.key, self.message)


class InvalidTaskError(SSEBenchError):
    """A task's files break the rules. ``problems`` holds all of them; the text has one line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
