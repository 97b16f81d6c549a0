"""A program of its own: names what a private copy takes of the working directory.

Runs as: whoever may read the tree, in that tree, without anything of the project on its path (standard library only).
Distrusts: the tree, which may change while it is read.
Promises: prints, each ended by a NUL, the names of all directories, regular files and links below the working
  directory, a directory before what is in it, and on standard error one line for each thing left out; follows no link.
Does not promise: a consistent picture of a tree that is being changed.
Checked by: tests/system/test_copying.py.
"""

from __future__ import annotations

import os
import stat
import sys

_KINDS = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
_MAX_NOTES = 20


def main() -> None:
    names, notes = sys.stdout.buffer, Notes()
    pending = [b"."]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif not entry.is_symlink() and not entry.is_file(follow_symlinks=False):
                        notes.add(entry.path, kind(entry))
                        continue
                    names.write(entry.path + b"\0")
        except OSError as error:
            notes.add(folder, error.strerror or "unreadable")
    names.flush()
    notes.finish()


def kind(entry: os.DirEntry[bytes]) -> str:
    """What a thing is that is no directory, file or link."""
    try:
        return _KINDS.get(stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode), "special file")
    except OSError:
        return "vanished"


class Notes:
    """The lines on standard error: the first few, then how many more."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, path: bytes, reason: str) -> None:
        """Report that ``path`` was left out."""
        self.count += 1
        if self.count <= _MAX_NOTES:
            shown = "".join(c if c.isprintable() else "?" for c in path[2:].decode("utf-8", "replace")) or "."
            sys.stderr.write(f"not copied: {shown[:1000]} ({reason})\n")

    def finish(self) -> None:
        """Report what was counted only."""
        if self.count > _MAX_NOTES:
            sys.stderr.write(f"not copied: {self.count - _MAX_NOTES} more\n")


if __name__ == "__main__":
    main()
