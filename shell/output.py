"""A stream kept within a limit while it is read: its first and its last half, and how much is missing between."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator


class BoundedOutput:
    """Collects the bytes of one stream and keeps at most about ``limit_bytes`` of them.

    Up to the limit everything is kept. Beyond it the first half and the last half stay, cut between UTF-8
    characters, with one line between them that says how many bytes are missing. Memory never exceeds the limit
    plus two chunks.
    """

    __slots__ = ("_head", "_head_room", "_tail", "_tail_room", "total_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._head_room = max(1, limit_bytes // 2)
        self._tail_room = max(1, limit_bytes - self._head_room)
        self._head = _Chunks()
        self._tail = _Chunks()
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total_bytes += len(data)
        room = self._head_room - self._head.size
        if room > 0:
            self._head.add(data[:room])
            data = data[room:]
        if data:
            self._tail.add(data)
            self._tail.drop_first_beyond(self._tail_room)

    def parts(self) -> list[bytes]:
        """What was kept, in order; the line about the gap is among the parts. Joined they are the output."""
        missing = self.total_bytes - self._head.size - min(self._tail.size, self._tail_room)
        if missing == 0:
            return [bytes(chunk) for chunk in (*self._head, *self._tail)]
        head = b"".join(self._head)
        tail = b"".join(self._tail)[-self._tail_room :]
        cut = _last_boundary(head)
        skip = _first_boundary(tail)
        missing += len(head) - cut + skip
        gap = b"\n[... %d bytes are missing here: the output was larger than SSE_OUTPUT_LIMIT ...]\n" % missing
        return [head[:cut], gap, tail[skip:]]

    def data(self) -> bytes:
        """The kept output as one bytes object."""
        return b"".join(self.parts())


class _Chunks:
    """Bytes in pieces of some size, however small the pieces are that they come in: each object costs memory too."""

    __slots__ = ("_chunks", "size")

    _CHUNK_BYTES = 1 << 16

    def __init__(self) -> None:
        self._chunks: deque[bytearray] = deque()
        self.size = 0

    def __iter__(self) -> Iterator[bytearray]:
        return iter(self._chunks)

    def add(self, data: bytes) -> None:
        if self._chunks and len(self._chunks[-1]) < self._CHUNK_BYTES:
            self._chunks[-1] += data
        else:
            self._chunks.append(bytearray(data))
        self.size += len(data)

    def drop_first_beyond(self, room: int) -> None:
        """Let go of the first chunks as long as ``room`` bytes remain."""
        while self.size - len(self._chunks[0]) >= room:
            self.size -= len(self._chunks.popleft())


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
