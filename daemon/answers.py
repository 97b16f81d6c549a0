"""Answers out: small ones in one piece, large ones as a stream that keeps memory and the hub's latency bounded.

Promises: JSON in valid UTF-8. Bytes that are no UTF-8 become U+FFFD, decided over the whole stream, so that a character
  that two pieces share stays whole. Between two pieces every other greenlet gets its turn.
Checked by: tests/unit/daemon/test_answers.py, tests/system/test_http_large.py.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import gevent
from flask import Response

PIECE_BYTES = 256 * 1024
_SMALL_BYTES = 64 * 1024
_JSON = "application/json"

# One encoder for all: strict (no NaN), in UTF-8 rather than escapes, without spaces.
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)
_new_decoder = codecs.getincrementaldecoder("utf-8")


def encode(value: object) -> bytes:
    """``value`` as JSON. For small values: encoding does not yield."""
    return _encoder.encode(value).encode("utf-8", "replace")


def answer(value: object, status: int = 200) -> Response:
    """A small value as an answer."""
    return encoded(encode(value), status)


def encoded(body: bytes, status: int = 200) -> Response:
    """JSON that is spelled out already as an answer."""
    return Response(body, status, mimetype=_JSON)


def streamed(pieces: Iterable[bytes]) -> Response:
    """Pieces of JSON as an answer of unknown length."""
    return Response(pieces, mimetype=_JSON)


def text_answer(texts: Mapping[str, bytes], **others: Any) -> Response:
    """An object whose fields are ``others`` (small) and ``texts`` (bytes of any length and content)."""
    if sum(map(len, texts.values())) <= _SMALL_BYTES:
        shown = {name: data.decode("utf-8", "replace") for name, data in texts.items()}
        return answer({**others, **shown})
    return streamed(_object_pieces(texts, others))


def list_answer(name: str, entries: Iterable[object]) -> Response:
    """An object with one field, the list ``entries``, encoded one by one."""
    return streamed(list_pieces(name, map(encode, entries)))


def list_pieces(name: str, entries: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces of ``{name: [entries]}``, where each entry is JSON already."""
    piece = bytearray(encode({name: []})[:-2])
    first = True
    for entry in entries:
        if not first:
            piece += b","
        first = False
        piece += entry
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
            gevent.sleep(0)
    yield bytes(piece) + b"]}"


def _object_pieces(texts: Mapping[str, bytes], others: Mapping[str, Any]) -> Iterator[bytes]:
    yield encode(others)[:-1]
    separator = b"," if others else b""
    for name, data in texts.items():
        yield separator + encode(name) + b":"
        yield from _string_pieces(data)
        separator = b","
    yield b"}"


def _string_pieces(data: bytes) -> Iterator[bytes]:
    """The JSON string of ``data``."""
    decoder = _new_decoder("replace")
    view = memoryview(data)
    yield b'"'
    for start in range(0, len(data), PIECE_BYTES):
        text = decoder.decode(view[start : start + PIECE_BYTES], final=start + PIECE_BYTES >= len(data))
        if text:
            # A string's JSON is the JSON of its parts: no escape reaches over a character's end.
            yield encode(text)[1:-1]
        gevent.sleep(0)
    yield b'"'
