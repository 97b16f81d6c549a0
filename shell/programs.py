"""Small Python programs that run as another user: how their argument vector is made.

The other user need not be able to read the project's files, so the program's text travels as an argument. It uses the
standard library only and runs isolated (no site, no environment, no bytecode): nothing that a user can plant is
imported.
"""

from __future__ import annotations

import functools
from pathlib import Path

from shell.interpreter import shared_python

_HERE = Path(__file__).parent


@functools.cache
def program_text(module: str) -> str:
    """The text of the program ``shell/<module>.py``."""
    return (_HERE / f"{module}.py").read_text("utf-8")


def program_argv(module: str, *arguments: str) -> list[str]:
    """The argument vector that runs the program ``shell/<module>.py`` with ``arguments``."""
    return [shared_python(), "-I", "-S", "-B", "-c", program_text(module), *arguments]
