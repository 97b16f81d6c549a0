"""The named cases of the capture: data files, and the tree that each of them begins with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.support.roundtrip import Tree

_FOLDER = Path(__file__).resolve().parents[1] / "capture_cases"
_STATUS = {"M": "modified", "A": "added", "D": "deleted"}

BASE_TREE: Tree = {
    b"README": ("file", b"A toy project.\nWith two lines.\n"),
    b".gitignore": ("file", b"out/\n*.o\n*.log\nvendor/\n"),
    b"src/main.c": ("file", b'#include "util.h"\n\nint main(void)\n{\n\treturn 0;\n}\n'),
    b"src/util.c": ("file", b"int util(int x)\n{\n\treturn x + 1;\n}\n"),
    b"docs/guide.txt": ("file", b"one\ntwo\nthree\n"),
    b"run.sh": ("exec", b"#!/bin/sh\nexec ./out/main\n"),
    b"data.bin": ("file", bytes(range(256)) * 3),
    b"link": ("link", b"README"),
    b"empty": ("file", b""),
    b"no-newline": ("file", b"README"),
    b"crlf.txt": ("file", b"one\r\ntwo\r\nthree\r\n"),
    b"out/old.txt": ("file", b"built earlier\n"),
}


@dataclass(frozen=True)
class Case:
    """One named case. ``files`` is what /files answers, None where only the round trip counts."""

    name: str
    act: str
    setup: str = ""
    clone: str = ""
    above: str = ""
    clone_git: bool = False
    files: dict[str, str] | None = None
    absent: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def begins_with_the_base_tree(self) -> bool:
        """Whether nothing is to be done to tree or clone before the capture is started."""
        return not (self.setup or self.clone or self.above or self.clone_git)


def load_cases() -> list[Case]:
    """Every case of every data file."""
    cases = []
    for path in sorted(_FOLDER.glob("*.yaml")):
        for entry in yaml.safe_load(path.read_text("utf-8")):
            files = entry.pop("files", None)
            if files is not None:
                files = {name: _STATUS[letter] for name, letter in files.items()}
            cases.append(Case(files=files, **entry))
    return cases
