"""A task's Dockerfile, as far as the rules for tasks go: its bases, and which file it copies where."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_HEREDOC = re.compile(r"<<-?\s*[\"']?([A-Za-z_][A-Za-z0-9_]*)[\"']?")
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?\Z")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its continuation lines joined. ``line`` is its first line's number."""

    line: int
    name: str
    rest: str

    def words(self) -> list[str]:
        """Its arguments; both forms, words and a JSON list."""
        if self.rest.startswith("["):
            try:
                listed = json.loads(self.rest)
            except (ValueError, RecursionError):
                listed = None
            if isinstance(listed, list) and all(isinstance(word, str) for word in listed):
                return listed
        return self.rest.split()


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
        flags, words = _split_flags(instruction.words())
        if instruction.name == "ARG" and not found.bases:
            found.early_args.update(word.partition("=")[0] for word in words)
        elif instruction.name == "FROM" and words:
            stage = words[2] if len(words) == 3 and words[1].upper() == "AS" else None
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
    into_folder = copy.target.endswith("/") or len(copy.sources) > 1
    result: dict[str, str] = {}
    for match in _matches(source, files):
        if is_folder(match):
            prefix = "" if match == "." else match + "/"
            inner = {file: file[len(prefix) :] for file in files if file.startswith(prefix)}
            result.update({posixpath.normpath(f"{copy.target}/{name}"): file for file, name in inner.items()})
        elif into_folder or "*" in source:
            result[posixpath.normpath(f"{copy.target}/{posixpath.basename(match)}")] = match
        else:
            result[posixpath.normpath(copy.target)] = match
    return result


def _matches(source: str, files: list[str]) -> list[str]:
    """Files and folders that a source names; a star stands for anything but a slash."""
    if source == ".":
        return ["."]
    folders = {parent for file in files for parent in _parents(file)}
    pattern = re.compile("[^/]*".join(re.escape(part) for part in source.split("*")).replace(r"\?", "[^/]"))
    return sorted(path for path in {*files, *folders} if pattern.fullmatch(path))


def _parents(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def _split_flags(words: list[str]) -> tuple[dict[str, str], list[str]]:
    flags: dict[str, str] = {}
    for index, word in enumerate(words):
        flag = _FLAG.match(word)
        if flag is None:
            return flags, words[index:]
        flags[flag.group(1)] = flag.group(2) or ""
    return flags, []


def _instructions(text: str) -> Iterator[Instruction]:
    lines = enumerate(text.split("\n"), start=1)
    for number, line in lines:
        if not (stripped := line.strip()) or stripped.startswith("#"):
            continue
        joined = stripped
        while joined.endswith("\\"):
            joined = joined[:-1].rstrip() + " " + _continuation(lines)
        for end in _HEREDOC.findall(joined):
            for _, body in lines:
                if body.lstrip("\t").rstrip("\r") == end:
                    break
        name, _, rest = joined.partition(" ")
        yield Instruction(number, name.upper(), rest.strip())


def _continuation(lines: Iterator[tuple[int, str]]) -> str:
    """The next line that is no comment; empty at the end of the file."""
    for _, line in lines:
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            return stripped
    return ""
