"""The head of an HTTP request. h11 reads it; what could still be read in two ways is refused here.

Runs as: root. Distrusts: every byte.
Promises: one meaning per request. The length of the body is known from exactly one place; no header has an ambiguous
  end, a hidden continuation line or a control character in it.
Checked by: tests/system/test_http_raw.py, tests/system/test_http_fuzz.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import h11

from daemon.errors import BadRequestError, HeadTooLargeError, TargetTooLongError, TooLargeError, VersionError

MAX_HEAD_BYTES = 64 * 1024
MAX_REQUEST_LINE_BYTES = 8 * 1024
MAX_FIELDS = 100
MAX_BODY_BYTES = 16 * 1024 * 1024
_REMEMBERED_BYTES = 4096
# Of what h11 keeps while it waits for the rest: the line of a chunk's size, or all trailer fields.
_MAX_PENDING_BYTES = 4096

# h11 takes LF for CRLF, joins continuation lines and lets control characters through.
_PLAIN_LINES = re.compile(rb"(?:[!-~\x80-\xff][\t -~\x80-\xff]*\r\n)+\r\n")
_LENGTH_LINE = re.compile(rb"\ncontent-length:[ \t]*(.*?)[ \t]*\r", re.IGNORECASE)
_ABSOLUTE = re.compile(r"https?://([^/?#]*)(.*)", re.IGNORECASE)

# Two of these are two requests in one: which of them counts is anybody's guess. h11 itself sees to Host and
# Transfer-Encoding.
_SINGLE = frozenset({"content-type", "origin", "expect"})


@dataclass(frozen=True, slots=True)
class Head:
    """A request line and its fields, under lower-case names. ``length`` is the body's size, None when it is chunked.

    ``parser`` has read exactly the head and goes on with what follows.
    """

    method: str
    target: str
    version: str
    fields: dict[str, str]
    length: int | None
    keep_alive: bool
    expects_continue: bool
    parser: h11.Connection


def parse_head(data: bytes) -> Head:
    """The head in ``data``, which ends with its empty line; a RequestError says what is wrong with it."""
    _check_lines(data)
    parser = h11.Connection(h11.SERVER, _MAX_PENDING_BYTES)
    parser.receive_data(data)
    try:
        request = parser.next_event()
    except h11.RemoteProtocolError as error:
        raise malformed(error) from None
    assert isinstance(request, h11.Request), "the head is complete"
    version = request.http_version.decode("ascii")
    if version not in ("1.0", "1.1"):
        raise VersionError("only HTTP/1.0 and HTTP/1.1 are served")
    fields = _join_fields(request)
    path, host = _origin_form(request.target.decode("ascii"))
    if host is not None:
        fields["host"] = host
    return Head(
        request.method.decode("ascii"),
        path,
        version,
        fields,
        _body_length(fields, version, data),
        _keeps_alive(fields, version),
        parser.they_are_waiting_for_100_continue,
        parser,
    )


class Heads:
    """The heads of one connection: who polls sends the same one each time, and reading takes its time."""

    __slots__ = ("_data", "_head")

    def __init__(self) -> None:
        self._data = b""
        self._head: Head | None = None

    def parse(self, data: bytes) -> Head:
        """What ``parse_head`` says to ``data``."""
        if self._head is not None and data == self._data:
            return self._head
        head = parse_head(data)
        # A chunked body changes its parser, so its head serves once. A long one would be kept as long as its client.
        keeps = head.length is not None and len(data) <= _REMEMBERED_BYTES
        self._data, self._head = (data, head) if keeps else (b"", None)
        return head


def malformed(error: h11.RemoteProtocolError) -> BadRequestError:
    """h11's complaint without the bytes that it quotes."""
    return BadRequestError(f"malformed request: {str(error).partition(': bytearray(')[0]}")


def _check_lines(data: bytes) -> None:
    """Before h11 sees them: it would spend 30 ms on 13,000 fields, and nobody else runs meanwhile."""
    if data.find(b"\r\n") > MAX_REQUEST_LINE_BYTES:
        raise TargetTooLongError("the request line is too long")
    if data.count(b"\n") > MAX_FIELDS + 2:
        raise HeadTooLargeError("too many header fields")
    if not _PLAIN_LINES.fullmatch(data):
        raise BadRequestError("a line of the head is continued, ends without CRLF, or has a control character in it")


def _join_fields(request: h11.Request) -> dict[str, str]:
    fields: dict[str, str] = {}
    for raw_name, raw_value in request.headers:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        if name not in fields:
            fields[name] = value
        elif name in _SINGLE:
            raise BadRequestError(f"the header field {name} appears twice")
        else:
            fields[name] += f", {value}"
    return fields


def _origin_form(target: str) -> tuple[str, str | None]:
    """The path of a target, and the host when it was in absolute form (which then wins over Host)."""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        return target, None
    rest = absolute[2]
    return (rest if rest.startswith("/") else f"/{rest}"), absolute[1]


def _body_length(fields: dict[str, str], version: str, data: bytes) -> int | None:
    length = fields.get("content-length")
    if "transfer-encoding" in fields:
        if length is not None or version == "1.0":  # h11 would ignore the length, or the version
            raise BadRequestError("Transfer-Encoding excludes Content-Length and HTTP/1.0")
        return None
    if length is None:
        return 0
    if _LENGTH_LINE.findall(data) != [length.encode()]:  # h11 makes one of "1, 1", and of two fields that agree
        raise BadRequestError("Content-Length has to be one number, and to be there once")
    if int(length) > MAX_BODY_BYTES:
        raise TooLargeError(f"the body is larger than {MAX_BODY_BYTES} bytes")
    return int(length)


def _keeps_alive(fields: dict[str, str], version: str) -> bool:
    if version == "1.0":
        return False
    options = fields.get("connection", "").lower().split(",")
    return all(option.strip(" \t") != "close" for option in options)
