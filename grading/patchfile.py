"""The patch as a file: made readable for ``git apply``, and read back whole."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import gevent

from grading.objects import Change
from shell.turns import Turns

_PIECE_BYTES = 1 << 20


def quote_headers(path: str, changes: Iterable[Change]) -> None:
    """Quote the names in headers that ``git apply`` would read wrongly as git writes them.

    A header of an empty file or of a mode alone has no ``---`` and ``+++`` lines below it: the names have to be taken
    from its first line, where blanks may also be the end of a name.
    """
    headers = [b"diff --git a/%s b/%s" % (c.path, c.path) for c in changes if b" " in c.path and _is_bare(c)]
    if not headers:
        return
    wanted = re.compile(b"^(?:" + b"|".join(map(re.escape, headers)) + b")$", re.MULTILINE)
    partial = f"{path}.quoted"
    turns = Turns()
    with open(path, "rb") as source, open(partial, "wb") as target:
        # Whole lines: in a patch no line of content begins like a header.
        while lines := source.readlines(_PIECE_BYTES):
            target.write(wanted.sub(_quote, b"".join(lines)))
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
    before, after = change.before, change.after
    if before is None or after is None:
        only = before or after
        return only is not None and only.size == 0
    return before.oid == after.oid


def _quote(found: re.Match[bytes]) -> bytes:
    names = found.group()[len(b"diff --git ") :]
    half = (len(names) - 1) // 2
    return b'diff --git "%s" "%s"' % (names[:half], names[half + 1 :])


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        parts = []
        while size > 0 and (data := file.read(size)):
            parts.append(data)
            size -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)
