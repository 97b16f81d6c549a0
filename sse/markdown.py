"""Foreign text inside Markdown, so that it can neither end its place nor begin another."""

from __future__ import annotations

import re

_BACKTICKS = re.compile("`+")
_PLAIN = re.compile(r"/?[A-Za-z0-9](?:[A-Za-z0-9 .,:/+#@-]|(?<=[A-Za-z0-9])_(?=[A-Za-z0-9]))*(?<! )\Z")
_LINE_END = re.compile("\r\n|\r|\n")
# What may stand before a block on its line: blanks, and the marks of quotes and lists, which nest.
_CONTAINERS = " \t>*+-0123456789.)"
_RULES = "-=_*+ \t"


def fenced(text: str, info: str) -> str:
    """``text`` in a code fence longer than any run of backticks in it."""
    text = _clean(text)
    fence = "`" * max(3, _longest_run(text) + 1)
    if text and not text.endswith("\n"):
        text += "\n"
    return f"{fence}{info}\n{text}{fence}"


def inline(text: str) -> str:
    """``text`` within a line: as it is where no character means anything to Markdown, else as code."""
    if _PLAIN.match(text):
        return text
    text = _LINE_END.sub(" ", _clean(text))
    ticks = "`" * (_longest_run(text) + 1)
    # CommonMark strips one blank from both ends, if both have one and there is more than blanks.
    pad = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def prose(text: str) -> str:
    """A text of paragraphs: as Markdown where it is no more than that, else in a fence.

    A heading or an open fence in it would change what the rest of the document is.
    """
    text = _clean(text)
    if any(_is_block(line) for line in _LINE_END.split(text)):
        return fenced(text, "text")
    return _LINE_END.sub("\n", text).strip("\n")


def _is_block(line: str) -> bool:
    """Whether a line may begin, end or underline a block: a heading, a fence, a rule, HTML, a link definition.

    Some that are harmless are taken for one too. One pass over the line, however long.
    """
    rest = line.lstrip(_CONTAINERS)
    if rest.startswith(("#", "```", "~~~", "<")) or (rest.startswith("[") and "]:" in rest):
        return True
    return not rest.strip(_RULES) and any(mark in line for mark in "-=_*+")


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)


def _clean(text: str) -> str:
    # CommonMark replaces NUL, and no program could be given a prompt with one as an argument.
    return text.replace("\0", "\ufffd")
