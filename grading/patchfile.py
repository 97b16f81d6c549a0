"""The patch as a file: made readable for ``git apply``, and read back whole."""

from __future__ import annotations

import os
from collections.abc import Iterable

import gevent

from grading.objects import Change
from shell.turns import Turns

_PIECE_BYTES = 1 << 20
_HEADER = b"diff --git "


def quote_headers(path: str, changes: Iterable[Change]) -> None:
    """Quote the names in headers that ``git apply`` would read wrongly as git writes them.

    A header of an empty file or of a mode alone has no ``---`` and ``+++`` lines below it: the names have to be taken
    from its first line, where blanks may also be the end of a name.
    """
    headers = {b"%sa/%s b/%s\n" % (_HEADER, c.path, c.path) for c in changes if b" " in c.path and _is_bare(c)}
    if not headers:
        return
    partial = f"{path}.quoted"
    turns = Turns()
    with open(path, "rb") as source, open(partial, "wb") as target:
        # Whole lines: in a patch no line of content begins like a header.
        for line in source:
            target.write(_quoted(line) if line.startswith(_HEADER) and line in headers else line)
            turns.take()
    os.rename(partial, path)


def read_whole(path: str) -> bytes:
    """The file's bytes, without holding up other greenlets however many they are."""
    size = os.stat(path).st_size
    if size <= _PIECE_BYTES:
        with open(path, "rb") as file:
            return file.read()
    whole: bytes = gevent.get_hub().threadpool.apply(_read, (path,))
    return whole


def _is_bare(change: Change) -> bool:
    """Whether the change has a header of that kind; one of a type is a deletion and an addition, with one each."""
    before, after = change.before, change.after
    if before is not None and after is not None and before.oid == after.oid:
        return True
    return any(side is not None and side.size == 0 for side in (before, after))


def _quoted(header: bytes) -> bytes:
    names = header[len(_HEADER) : -1]
    half = (len(names) - 1) // 2
    return b'%s"%s" "%s"\n' % (_HEADER, names[:half], names[half + 1 :])


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        parts = []
        while size > 0 and (data := file.read(size)):
            parts.append(data)
            size -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)
