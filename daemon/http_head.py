"""The head of an HTTP request, strictly: what could be read in two ways is refused.

Runs as: root. Distrusts: every byte.
Promises: one meaning per request. The length of the body is known from exactly one place; no header has an ambiguous
  end, a hidden continuation line or a control character in it.
Checked by: tests/unit/daemon/test_http_head.py, tests/system/test_http_raw.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from daemon.errors import BadRequestError, HeadTooLargeError, TargetTooLongError, TooLargeError, VersionError

MAX_HEAD_BYTES = 64 * 1024
MAX_REQUEST_LINE_BYTES = 8 * 1024
MAX_FIELDS = 100
MAX_BODY_BYTES = 16 * 1024 * 1024

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/([0-9]\.[0-9])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_LENGTH = re.compile(r"[0-9]{1,18}")
_ABSOLUTE = re.compile(r"https?://([^/?#]*)(.*)", re.IGNORECASE)

# Two of these are two requests in one: which of them counts is anybody's guess.
_SINGLE = frozenset({"content-length", "transfer-encoding", "host", "content-type", "origin", "expect"})


@dataclass(frozen=True, slots=True)
class Head:
    """A request line and its fields, under lower-case names. ``length`` is the body's size, None when it is chunked."""

    method: str
    target: str
    version: str
    fields: dict[str, str]
    length: int | None
    keep_alive: bool
    expects_continue: bool

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return self.length is None


def parse_head(data: bytes) -> Head:
    """The head in ``data``, which ends before the empty line; a RequestError says what is wrong with it."""
    first, *lines = data.split(b"\r\n")
    if len(first) > MAX_REQUEST_LINE_BYTES:
        raise TargetTooLongError("the request line is too long")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise BadRequestError("the request line is malformed")
    method, target, version = (part.decode("latin-1") for part in match.groups())
    if version not in ("1.0", "1.1"):
        raise VersionError("only HTTP/1.0 and HTTP/1.1 are served")
    fields = _parse_fields(lines)
    path, host = _origin_form(target)
    if host is not None:
        fields["host"] = host
    return Head(
        method,
        path,
        version,
        fields,
        _body_length(fields, version),
        _keeps_alive(fields, version),
        _expects_continue(fields, version),
    )


def _parse_fields(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > MAX_FIELDS:
        raise HeadTooLargeError("too many header fields")
    fields: dict[str, str] = {}
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise BadRequestError("a header field is malformed")
        name = match[1].decode("ascii").lower()
        value = match[2].decode("latin-1").rstrip(" \t")
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


def _body_length(fields: dict[str, str], version: str) -> int | None:
    coding, length = fields.get("transfer-encoding"), fields.get("content-length")
    if coding is not None:
        if length is not None:
            raise BadRequestError("Content-Length and Transfer-Encoding exclude each other")
        if coding.lower() != "chunked" or version == "1.0":
            raise BadRequestError("the only transfer coding is chunked, in HTTP/1.1")
        return None
    if length is None:
        return 0
    if not _LENGTH.fullmatch(length):
        raise BadRequestError("Content-Length is not a number")
    if int(length) > MAX_BODY_BYTES:
        raise TooLargeError(f"the body is larger than {MAX_BODY_BYTES} bytes")
    return int(length)


def _keeps_alive(fields: dict[str, str], version: str) -> bool:
    if version == "1.0":
        return False
    options = fields.get("connection", "").lower().split(",")
    return all(option.strip(" \t") != "close" for option in options)


def _expects_continue(fields: dict[str, str], version: str) -> bool:
    return version == "1.1" and fields.get("expect", "").lower() == "100-continue"
