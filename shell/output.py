"""A stream kept within a limit while it is read: its first and its last half, and how much is missing between."""

from __future__ import annotations

from collections import deque


class BoundedOutput:
    """Collects the bytes of one stream and keeps at most about ``limit_bytes`` of them.

    Up to the limit everything is kept. Beyond it the first half and the last half stay, cut between UTF-8
    characters, with one line between them that says how many bytes are missing. Memory never exceeds the limit
    plus one chunk.
    """

    __slots__ = ("_head", "_head_bytes", "_head_room", "_tail", "_tail_bytes", "_tail_room", "total_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._head_room = max(1, limit_bytes // 2)
        self._tail_room = max(1, limit_bytes - self._head_room)
        self._head: list[bytes] = []
        self._head_bytes = 0
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total_bytes += len(data)
        room = self._head_room - self._head_bytes
        if room > 0:
            part = data[:room]
            self._head.append(part)
            self._head_bytes += len(part)
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._tail_room:
            self._tail_bytes -= len(self._tail.popleft())

    def parts(self) -> list[bytes]:
        """What was kept, in order; the line about the gap is among the parts. Joined they are the output."""
        excess = self._tail_bytes - self._tail_room
        tail = list(self._tail)
        if excess > 0:
            tail[0] = tail[0][excess:]
        missing = self.total_bytes - self._head_bytes - sum(map(len, tail))
        if missing == 0:
            return self._head + tail
        head = b"".join(self._head)
        rest = b"".join(tail)
        cut = _last_boundary(head)
        skip = _first_boundary(rest)
        missing += len(head) - cut + skip
        gap = b"\n[... %d bytes are missing here: the output was larger than SSE_OUTPUT_LIMIT ...]\n" % missing
        return [head[:cut], gap, rest[skip:]]

    def data(self) -> bytes:
        """The kept output as one bytes object."""
        return b"".join(self.parts())


def _last_boundary(data: bytes) -> int:
    """How much of ``data`` to keep so that it does not end inside a UTF-8 character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if wanted > back else len(data)
    return len(data)


def _first_boundary(data: bytes) -> int:
    """How many leading continuation bytes (at most three) to skip."""
    skip = 0
    while skip < min(3, len(data)) and 0x80 <= data[skip] < 0xC0:
        skip += 1
    return skip
