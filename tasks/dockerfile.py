"""A task's Dockerfile, as far as the rules for tasks go: its bases, and which file it copies where."""

from __future__ import annotations

import fnmatch
import json
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

# A word of its own, as the builder reads it: `<<<word` and `$((1<<n))` begin no here-document.
_HEREDOC = re.compile(r"(?:\A|(?<=\s))[0-9]*<<(-?)([\"']?)([A-Za-z_][A-Za-z0-9_]*)\2(?=\s|\Z)")
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")
_QUOTES = re.compile("[\"']")
_READ = ("ADD", "ARG", "COPY", "FROM", "WORKDIR")
_HEREDOC_INSTRUCTIONS = ("ADD", "COPY", "RUN")
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:\s|\Z)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its continuation lines joined. ``line`` is its first line's number."""

    line: int
    name: str
    rest: str

    def arguments(self) -> tuple[dict[str, str], list[str]]:
        """Its flags, and its words in either form, plain or as a JSON list."""
        flags: dict[str, str] = {}
        rest = self.rest
        while flag := _FLAG.match(rest):
            flags[flag.group(1)] = flag.group(2) or ""
            rest = rest[flag.end() :].lstrip()
        return flags, _words(rest)


@dataclass(frozen=True, slots=True)
class From:
    """One FROM: what it builds on and what the stage is called."""

    line: int
    image: str
    stage: str | None
    platform: str | None


@dataclass(frozen=True, slots=True)
class Copy:
    """One COPY or ADD of files of the task folder, in the last stage."""

    line: int
    sources: tuple[str, ...]
    target: str


@dataclass(slots=True)
class Dockerfile:
    """What was found. ``early_args`` are the arguments declared before the first FROM."""

    early_args: set[str] = field(default_factory=set)
    bases: list[From] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)


def parse_dockerfile(text: str) -> Dockerfile:
    """Read a Dockerfile; what does not concern a task, or is no instruction, is passed over."""
    found = Dockerfile()
    folder = "/"
    for instruction in _instructions(text):
        if instruction.name not in _READ:
            continue
        flags, words = instruction.arguments()
        if instruction.name == "ARG" and not found.bases:
            found.early_args.update(word.partition("=")[0] for word in words)
        elif instruction.name == "FROM" and words:
            stage = words[2].lower() if len(words) == 3 and words[1].upper() == "AS" else None
            found.bases.append(From(instruction.line, words[0], stage, flags.get("platform")))
            # Only what the last stage holds becomes the image.
            found.copies.clear()
            folder = "/"
        elif instruction.name == "WORKDIR" and words:
            folder = posixpath.join(folder, words[0])
        elif instruction.name in ("COPY", "ADD") and len(words) > 1 and "from" not in flags:
            target = posixpath.join(folder, words[-1])
            found.copies.append(Copy(instruction.line, tuple(words[:-1]), target))
    return found


def placed(copy: Copy, source: str, files: list[str], is_folder: Callable[[str], bool]) -> dict[str, str]:
    """Where COPY puts the matches of one of its sources: path in the image to path in the task folder.

    ``files`` are all files of the task folder. Empty when the source matches nothing.
    """
    source = posixpath.normpath(source.lstrip("/"))
    matches = _matches(source, files)
    into_folder = copy.target.endswith(("/", "/.")) or len(copy.sources) > 1 or len(matches) > 1
    result: dict[str, str] = {}
    for match in matches:
        if is_folder(match):
            prefix = "" if match == "." else match + "/"
            inner = {file: file[len(prefix) :] for file in files if file.startswith(prefix)}
            result.update({posixpath.normpath(f"{copy.target}/{name}"): file for file, name in inner.items()})
        elif into_folder:
            result[posixpath.normpath(f"{copy.target}/{posixpath.basename(match)}")] = match
        else:
            result[posixpath.normpath(copy.target)] = match
    return result


def _matches(source: str, files: list[str]) -> list[str]:
    """Files and folders that a source names; a pattern is matched part by part, as the builder does."""
    folders = {parent for file in files for parent in _parents(file)}
    known = {".", *files, *folders}
    if not _is_pattern(source):
        return [source] if source in known else []
    parts = source.replace("[^", "[!").split("/")
    return sorted(path for path in known if path != "." and _parts_match(path.split("/"), parts))


def _is_pattern(source: str) -> bool:
    return any(character in source for character in "*?[")


def _parts_match(path: list[str], pattern: list[str]) -> bool:
    return len(path) == len(pattern) and all(map(fnmatch.fnmatchcase, path, pattern))


def _parents(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def _words(rest: str) -> list[str]:
    if rest.startswith("["):
        try:
            listed = json.loads(rest)
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, list) and all(isinstance(word, str) for word in listed):
            return listed
    return [_QUOTES.sub("", word) for word in _WORD.findall(rest)]


def _instructions(text: str) -> Iterator[Instruction]:
    lines = enumerate(text.split("\n"), start=1)
    for number, line in lines:
        if not (stripped := line.strip()) or stripped.startswith("#"):
            continue
        name, _, rest = " ".join(_joined(stripped, lines)).replace("\t", " ").partition(" ")
        instruction = Instruction(number, name.upper(), rest.strip())
        if instruction.name in _HEREDOC_INSTRUCTIONS:
            for tabs, _, end in _HEREDOC.findall(instruction.rest):
                _skip_heredoc(lines, end, strip_tabs=bool(tabs))
        yield instruction


def _joined(line: str, lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    """An instruction's lines without the backslashes between them; comments and empty lines among them are left out."""
    while line.endswith("\\"):
        yield line[:-1].rstrip()
        line = next((more.strip() for _, more in lines if more.strip() and not more.lstrip().startswith("#")), "")
    yield line


def _skip_heredoc(lines: Iterator[tuple[int, str]], end: str, *, strip_tabs: bool) -> None:
    for _, line in lines:
        body = line.rstrip("\r")
        if (body.lstrip("\t") if strip_tabs else body) == end:
            return
