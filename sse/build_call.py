"""A test script as the prompt shows it: without its call of the build script, which the agent cannot read."""

from __future__ import annotations

import re
from collections.abc import Iterator

_COMMENT = "# The build script above runs here."
_STAND_IN_COMMENT = '# The build script above runs here; "true" stands for its call.'

_HERE = r'\$\(dirname\s+(?:--\s+)?"?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?"?\)'
# A word that begins here: what stands before it (an operator, a parenthesis, a variable's name and =) is kept.
_WORD = r"(?<![\w./$-])"
_ROOT = r"(?:\$\{?\w+\}?|/[^\s\"'`$;&|()<>={}]*)?"
_PATH = rf"(?:{_WORD}{_ROOT}/ssebench/scripts/build\.sh|{_HERE}/build\.sh|\"{_HERE}\"/build\.sh)(?![\w./-])"
_OPTION = r"(?:-o\s+\w+|-\S+)"
_INTERPRETER = rf"(?:{_WORD}(?:/[\w./-]*/)?(?:bash|dash|sh|source|exec|time|\.)(?:\s+{_OPTION})*\s+)"
_CALL = re.compile(rf"{_INTERPRETER}*([\"']?){_PATH}\1")
_REDIRECTION = r"(?:\s*[012&]?>{1,2}\s*(?:&[012-]|[^\s;&|()<>]+))"
_OR_END = r"(?:\s*\|\|\s*exit(?:\s+(?:[0-9]+|\"?\$\?\"?))?)"
_ONLY_CALL = re.compile(rf"{_CALL.pattern}{_REDIRECTION}*{_OR_END}?\s*;?(?:\s*|\s+#.*)")


def without_build_call(script: str) -> str:
    """The script with each call of the build script replaced by a comment, every other command as it was.

    Where the call is a part of a longer command or block, ``true`` takes its place below the comment, so that the
    script stays valid.
    """
    if "build.sh" not in script:
        return script
    return "".join(_without_call(command) for command in _commands(script))


def _commands(script: str) -> Iterator[str]:
    """The lines of a script, those that a backslash continues joined."""
    lines: list[str] = []
    for line in re.split(r"(?<=\n)", script):
        lines.append(line)
        text = line.rstrip("\r\n")
        continued = (len(text) - len(text.rstrip("\\"))) % 2 == 1
        # A backslash at the end of a comment continues nothing.
        if not continued or (len(lines) == 1 and text.lstrip().startswith("#")):
            yield "".join(lines)
            lines = []
    yield "".join(lines)


def _without_call(command: str) -> str:
    if command.lstrip().startswith("#") or not _CALL.search(command):
        return command
    text = command.rstrip("\r\n")
    end = command[len(text) :]
    if _ONLY_CALL.fullmatch(text):
        return f"{_COMMENT}{end}"
    indent = text[: len(text) - len(text.lstrip())]
    first_end = "\r\n" if "\r\n" in command else "\n"
    return f"{indent}{_STAND_IN_COMMENT}{first_end}{_CALL.sub('true', text)}{end}"
