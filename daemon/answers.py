"""Answers out: small ones in one piece, large ones as a stream that keeps memory and the hub's latency bounded.

Promises: JSON in valid UTF-8. Bytes that are no UTF-8 become U+FFFD, decided over the whole stream, so that a character
  that two pieces share stays whole. Between two pieces every other greenlet gets its turn.
Checked by: tests/unit/daemon/test_answers.py, tests/system/test_http_large.py.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flask import Response

from grading.strict_json import spell_json
from shell.turns import give_turn

PIECE_BYTES = 256 * 1024
_SMALL_BYTES = 64 * 1024
_ENTRIES_PER_TURN = 200
_JSON = "application/json"

_COMMON_ESCAPES = ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\t", b"\\t"), (b"\r", b"\\r"))
_CONTROLS = bytes(range(0x20))
_new_decoder = codecs.getincrementaldecoder("utf-8")


def encode(value: object) -> bytes:
    """``value`` as JSON. For small values: encoding does not yield."""
    return spell_json(value)


def answer(value: object, status: int = 200) -> Response:
    """A small value as an answer."""
    return encoded(encode(value), status)


def encoded(body: bytes, status: int = 200) -> Response:
    """JSON that is spelled out already as an answer."""
    return Response(body, status, mimetype=_JSON)


def streamed(pieces: Iterable[bytes]) -> Response:
    """Pieces of JSON as an answer of unknown length."""
    return Response(pieces, mimetype=_JSON)


def large_answer(value: Mapping[str, Any]) -> Response:
    """An object that may hold texts of any length, its own fields also as bytes of any content, as an answer."""
    if _weight(value) <= _SMALL_BYTES:
        return answer({name: _shown(entry) for name, entry in value.items()})
    return streamed(_pieces(value))


def list_answer(name: str, entries: Iterable[bytes]) -> Response:
    """An object with one field, the list of ``entries``, each of which is JSON already. A short list has a length."""
    pieces = _list_pieces(name, entries)
    first, second = next(pieces), next(pieces, None)
    return encoded(first) if second is None else streamed(itertools.chain((first, second), pieces))


def _list_pieces(name: str, entries: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces of ``{name: [entries]}``, where each entry is JSON already."""
    piece = bytearray(encode({name: []})[:-2])
    for count, entry in enumerate(entries):
        if count:
            piece += b","
        piece += entry
        if count % _ENTRIES_PER_TURN == 0:
            give_turn()
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece) + b"]}"


def _weight(value: object) -> int:
    """About how large the JSON of ``value`` is, as far as texts and numbers of entries make it."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(_weight(entry) for entry in value.values())
    return sum(map(_weight, value)) if isinstance(value, list) else 0


def _shown(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _pieces(value: object) -> Iterator[bytes]:
    """The JSON of ``value``. Between two slices of a long text the other greenlets get their turn."""
    if isinstance(value, dict):
        opening = b"{"
        for name, entry in value.items():
            yield opening + encode(name) + b":"
            yield from _pieces(entry)
            opening = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, (str, bytes)) and len(value) > PIECE_BYTES:
        yield from _string_pieces(value)
    else:
        yield encode(_shown(value))


def _string_pieces(text: str | bytes) -> Iterator[bytes]:
    """The JSON string of a long text. A string's JSON is the JSON of its parts: no escape reaches over a part's end."""
    decoder = _new_decoder("replace")
    yield b'"'
    for start in range(0, len(text), PIECE_BYTES):
        part = text[start : start + PIECE_BYTES]
        if isinstance(part, bytes):
            part = decoder.decode(part, final=start + PIECE_BYTES >= len(text))
        if part:
            yield _escaped(part)
        give_turn()
    yield b'"'


def _escaped(text: str) -> bytes:
    """``text`` as it stands between the quotes of a JSON string."""
    data = text.encode("utf-8", "surrogatepass")
    for plain, escape in _COMMON_ESCAPES:
        data = data.replace(plain, escape)
    # Five searches for single bytes are several times faster than the encoder, which looks at every character.
    if len(data.translate(None, _CONTROLS)) == len(data) and b"\xed" not in data:
        return data
    return encode(text)[1:-1]
