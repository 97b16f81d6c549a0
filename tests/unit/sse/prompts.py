"""Metadata for prompts, and a prompt read back by a CommonMark parser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from sse.metadata import Metadata, TaskDescription


def metadata(
    *,
    project: str = "sample",
    language: str = "c",
    source: str = "/src/sample",
    issue: str | None = None,
    reports: list[str] | None = None,
    bug: str | None = None,
    build: str | None = "#!/bin/sh\ncc main.c\n",
    test: str | None = "#!/bin/sh\n./a.out\n",
) -> Metadata:
    """A task of which only what a test is about is not plain."""
    description = TaskDescription(issue, reports, bug)
    return Metadata("sample-1", project, language, Path(source), description, [Path("/x/poc")], build, test)


def headings(prompt: str) -> list[str]:
    """Every heading, with its level's marks."""
    tokens = MarkdownIt("commonmark").parse(prompt)
    return [
        f"{token.markup} {tokens[index + 1].content}"
        for index, token in enumerate(tokens)
        if token.type == "heading_open"
    ]


def fences(prompt: str) -> list[str]:
    """What stands in every code fence, as the parser reads it."""
    return [token.content for token in MarkdownIt("commonmark").parse(prompt) if token.type == "fence"]


def inline_text(prompt: str, line_start: str) -> str:
    """The text of the list item or paragraph that begins with ``line_start``, marks of code removed."""
    for token in MarkdownIt("commonmark").parse(prompt):
        if token.type == "inline" and token.content.startswith(line_start):
            children: list[Any] = token.children or []
            assert all(child.type in ("text", "code_inline", "softbreak") for child in children), token.content
            return "".join(child.content for child in children)
    raise AssertionError(f"nothing begins with {line_start!r}")


def as_read(text: str) -> str:
    """A fenced text as CommonMark gives it back: LF line ends, U+FFFD for NUL, the last line ended."""
    text = re.sub("\r\n|\r", "\n", text).replace("\0", "\ufffd")
    return text if not text or text.endswith("\n") else text + "\n"
