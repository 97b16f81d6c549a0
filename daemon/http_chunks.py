"""Bodies in chunks. h11 decodes them; what it would let pass between the chunks is refused here.

Runs as: root. Distrusts: the client: a size may be absurd, a line or the trailer endless, a line end half of one.
Promises: no chunk is begun that would make the body larger than MAX_BODY_BYTES; what follows the body goes back to
  the stream untouched; other connections get their turn between any two pieces.
Checked by: tests/unit/daemon/test_http_stream.py, tests/system/test_http_raw.py.
"""

from __future__ import annotations

import re
from typing import Protocol

import h11

from daemon.errors import BadRequestError, TooLargeError
from daemon.http_head import MAX_BODY_BYTES, malformed
from shell.turns import give_turn

# 4 KiB of one-byte chunks keep h11 busy for some 5 ms.
_PIECE_BYTES = 4096
_MAX_LINES = 32  # of a trailer
# As in heads: h11 takes LF for CRLF in a trailer, and any byte for an extension of a chunk's size.
_PLAIN_LINES = re.compile(rb"(?:[\t -~\x80-\xff]*\r\n)*[\t -~\x80-\xff]*\r?")
_CHUNK_SIZE = re.compile(rb"(?:\r\n)?([0-9A-Fa-f]{1,20})[ \t]*[;\r]")


class Source(Protocol):
    """Where the bytes come from."""

    def read(self, size: int) -> bytes:
        """At least one and at most ``size`` bytes."""

    def unread(self, data: bytes) -> None:
        """Take back what was read too far."""


class Chunks:
    """The decoded body behind a head that ``parser`` has read."""

    __slots__ = ("_half_line_end", "_parser", "_ready", "_source", "_total", "ended")

    def __init__(self, source: Source, parser: h11.Connection) -> None:
        self._source = source
        self._parser = parser
        self._ready = b""
        self._total = 0
        self._half_line_end = b""
        self.ended = False

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, empty only at the end; a RequestError says what is wrong with the chunks."""
        while not self._ready and not self.ended:
            self._advance()
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def _advance(self) -> None:
        before, _ = self._parser.trailing_data
        try:
            event = self._parser.next_event()
        except h11.RemoteProtocolError as error:
            raise malformed(error) from None
        after, _ = self._parser.trailing_data
        data = bytes(event.data) if isinstance(event, h11.Data) else b""
        consumed = before[: len(before) - len(after) - len(data)]
        self._check_framing(consumed, after if event is h11.NEED_DATA else b"")
        if isinstance(event, h11.Data):
            self._ready = data
            self._total += len(data)
        elif isinstance(event, h11.EndOfMessage):
            self.ended = True
            self._source.unread(after)
        else:
            give_turn()  # a client that sends faster than we decode never makes recv wait
            self._parser.receive_data(self._source.read(_PIECE_BYTES))

    def _check_framing(self, consumed: bytes, pending: bytes) -> None:
        """Check what stands between the data: ``consumed``, whole lines; ``pending``, the beginning of more."""
        consumed = self._half_line_end + consumed
        # After a chunk h11 takes a CR without waiting for its LF.
        self._half_line_end = b"\r" if consumed.endswith(b"\r") else b""
        lines = consumed + pending
        size = _CHUNK_SIZE.match(lines)
        if size is not None and self._total + int(size[1], 16) > MAX_BODY_BYTES:
            raise TooLargeError(f"the body is larger than {MAX_BODY_BYTES} bytes")
        if lines.count(b"\n") > _MAX_LINES + 3:
            raise BadRequestError("the chunked body has too many trailer fields")
        if not _PLAIN_LINES.fullmatch(lines):
            raise BadRequestError("a line of the chunked body ends without CRLF or has a control character in it")
