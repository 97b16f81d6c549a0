"""Strict JSON of many megabytes, parsed in slices: the standard parser would hold every other request up until its end.

Distrusts: the text. Promises: the same values and the same refusals as strict_json on small texts, at most MAX_VALUES
  values and MAX_DEPTH levels, and a turn for the other greenlets every few milliseconds.
Checked by: tests/unit/grading/test_strict_json.py, which holds both parsers against each other.
"""

from __future__ import annotations

import codecs
import math
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # the C one; typeshed lacks it
from typing import Any

from shell.errors import SSEBenchError
from shell.turns import give_turn

MAX_VALUES = 200_000  # of one text; each costs about a hundred bytes of memory once it is parsed
MAX_DEPTH = 500
_TOKENS_PER_TURN = 400
_WINDOW_BYTES = 64 * 1024

_SPACE = re.compile(rb"[ \t\n\r]*")
_SCALAR = re.compile(rb"(-?(?:0|[1-9][0-9]{0,4000})(?![0-9]))(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
_STRING_PART = re.compile(rb'(?:[^"\\\x00-\x1f]+|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})+')
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_CONSTANTS: dict[bytes, Any] = {b"true": True, b"false": False, b"null": None}
_ESCAPE_BYTES = 6  # of \uXXXX
_new_decoder = codecs.getincrementaldecoder("utf-8")


class StrictJSONError(SSEBenchError):
    """The text is not JSON; the message says what is wrong with it."""


class LargeParser:
    """Parses one text."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._tokens = 0
        self._values = 0

    def parse(self) -> Any:
        """The one value of the text; StrictJSONError when there is anything else."""
        value = self._value()
        self._skip_space()
        if self._at != len(self._data):
            raise self._error("there is more behind the value")
        return value

    def _value(self) -> Any:
        """One value with everything in it; a stack of its own, because the text decides how deep it goes."""
        open_containers: list[tuple[list[Any] | dict[str, Any], str | None]] = []
        while True:
            value = self._begin()
            if isinstance(value, (list, dict)) and not self._closes(value):
                if len(open_containers) >= MAX_DEPTH:
                    raise self._error("it is nested too deeply")
                open_containers.append((value, self._key(value)))
                continue
            while open_containers:
                container, key = open_containers.pop()
                if isinstance(container, list):
                    container.append(value)
                else:
                    container[str(key)] = value
                if self._goes_on(container):
                    open_containers.append((container, self._key(container)))
                    break
                value = container
            else:
                return value

    def _begin(self) -> Any:
        """The next scalar, or an empty container for one that begins."""
        self._count()
        self._skip_space()
        first = self._data[self._at : self._at + 1]
        if first == b'"':
            return self._string()
        if first in (b"[", b"{"):
            self._at += 1
            return [] if first == b"[" else {}
        match = _SCALAR.match(self._data, self._at)
        if match is None:
            raise self._error("expected a value")
        self._at = match.end()
        if match[1] is None:
            return _CONSTANTS[match[0]]
        return int(match[0]) if match[2] is None and match[3] is None else self._float(match[0])

    def _float(self, text: bytes) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise StrictJSONError("a number is too large")
        return value

    def _closes(self, container: list[Any] | dict[str, Any]) -> bool:
        """Whether a container that just began is empty."""
        return self._take(b"]" if isinstance(container, list) else b"}")

    def _goes_on(self, container: list[Any] | dict[str, Any]) -> bool:
        """Whether a comma follows, rather than the container's end."""
        if self._take(b","):
            return True
        if not self._closes(container):
            raise self._error("expected a comma or the end")
        return False

    def _key(self, container: list[Any] | dict[str, Any]) -> str | None:
        """The next key of an object with its colon; None in a list."""
        if isinstance(container, list):
            return None
        self._skip_space()
        if self._data[self._at : self._at + 1] != b'"':
            raise self._error("expected a key")
        key = self._string()
        if key in container:
            raise StrictJSONError("a key appears twice in one object")
        if not self._take(b":"):
            raise self._error("expected a colon")
        return key

    def _string(self) -> str:
        """The string that begins here, decoded window by window."""
        decoder = _new_decoder()
        parts: list[str] = []
        at = self._at + 1
        while (match := _STRING_PART.match(self._data, at, at + _WINDOW_BYTES)) is not None:
            end = self._whole_pair(at, match.end())
            try:
                text = decoder.decode(self._data[at:end])
            except UnicodeDecodeError:
                raise StrictJSONError("it is not UTF-8") from None
            parts.append(scanstring(text + '"', 0)[0] if "\\" in text else text)
            at = end
            if len(parts) > 1:
                give_turn()
        if self._data[at : at + 1] != b'"' or decoder.getstate()[0]:
            self._at = at
            raise self._error("a string does not end, or holds a control character or a wrong escape")
        self._at = at + 1
        return parts[0] if len(parts) == 1 else "".join(parts)

    def _whole_pair(self, start: int, end: int) -> int:
        """Where to cut so that the two escapes of one character stay together."""
        escape = end - _ESCAPE_BYTES
        if escape <= start or not _HIGH_SURROGATE.fullmatch(self._data, escape, end):
            return end
        before = escape
        while before > start and self._data[before - 1] == 0x5C:
            before -= 1
        return end if (escape - before) % 2 else escape

    def _take(self, character: bytes) -> bool:
        self._skip_space()
        if self._data[self._at : self._at + 1] != character:
            return False
        self._at += 1
        return True

    def _skip_space(self) -> None:
        while (match := _SPACE.match(self._data, self._at, self._at + _WINDOW_BYTES)) and match.end() > self._at:
            self._at = match.end()
            self._turn()
        self._turn()

    def _turn(self) -> None:
        self._tokens += 1
        if self._tokens % _TOKENS_PER_TURN == 0:
            give_turn()

    def _count(self) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise StrictJSONError(f"it holds more than {MAX_VALUES} values")

    def _error(self, what: str) -> StrictJSONError:
        return StrictJSONError(f"{what} at byte {self._at}")
