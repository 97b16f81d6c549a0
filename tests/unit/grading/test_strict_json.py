"""Both parsers take exactly the JSON of the standard, and take it alike."""

from __future__ import annotations

import json
import time
from typing import Any

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grading import large_json
from grading.large_json import LargeParser
from grading.strict_json import StrictJSONError, parse_json

REFUSED = [
    b"",
    b" ",
    b"{",
    b"}",
    b"[1,]",
    b"[1 2]",
    b'{"a":1,}',
    b'{"a" 1}',
    b"{1:2}",
    b'{"a":1,"a":2}',
    b'{"a":{"b":1,"b":1}}',
    b'{"a":1,"\\u0061":2}',
    b"NaN",
    b"[Infinity]",
    b"-Infinity",
    b"[1e999]",
    b"[-1e999]",
    b"01",
    b"+1",
    b".5",
    b"1.",
    b"0x10",
    b"tru",
    b"True",
    b"'a'",
    b'"a',
    b'"\x01"',
    b'"\n"',
    b'"\\x41"',
    b'"\\u12"',
    b'"\xff"',
    b'"\xc3"',
    b"\xef\xbb\xbf{}",
    b"{}{}",
    b"{} x",
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000,
    b"9" * 100_000,
    b"/* */ {}",
    b"\x00",
    "\u00a0{}".encode(),
]

TAKEN = [
    b"{}",
    b"[]",
    b" \t\r\n[ ] ",
    b'{"a":[1,-2.5e3,true,false,null,"x"]}',
    b'"\\ud83d\\ude00 \\u00e9 \\\\ud83d \\/ \\b\\f\\n\\r\\t"',
    '"é\u2028😀"'.encode(),
    b'"\\ud83d"',
    b'"\\\\\\ud83d\\ude00"',
    b"-0",
    b"1E5",
    b"123456789012345678901234567890",
    b"[" * 400 + b"]" * 400,
    b'{"":{"":[[],{}]}}',
]


def parse_large(data: bytes) -> Any:
    return LargeParser(data).parse()


@pytest.mark.parametrize("parse", [parse_json, parse_large])
@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_strict_json_is_refused(parse: Any, text: bytes) -> None:
    with pytest.raises(StrictJSONError):
        parse(text)


@pytest.mark.parametrize("parse", [parse_json, parse_large])
@pytest.mark.parametrize("text", TAKEN, ids=range(len(TAKEN)))
def test_strict_json_has_the_value_the_standard_parser_gives(parse: Any, text: bytes) -> None:
    assert parse(text) == json.loads(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(VALUES, st.booleans())
def test_every_value_comes_back_from_the_sliced_parser(value: Any, ascii_only: bool) -> None:
    assert parse_large(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=12) | st.text('{}[]",:\\u0123456789eE+-.truefalsn \n', max_size=14).map(str.encode))
def test_both_parsers_agree_on_random_bytes(text: bytes) -> None:
    assert _outcome(parse_json, text) == _outcome(parse_large, text)


def _outcome(parse: Any, text: bytes) -> Any:
    try:
        return repr(parse(text))
    except StrictJSONError:
        return "refused"


@pytest.mark.parametrize("offset", range(14))
def test_characters_and_escapes_that_two_windows_share_stay_whole(offset: int) -> None:
    unit = "é😀\\ud83d\\ude00\\\\\\n"
    text = b'"' + b"x" * offset + unit.encode() * 8000 + b'"'
    assert parse_large(text) == json.loads(text)


def test_more_values_than_fit_are_refused() -> None:
    with pytest.raises(StrictJSONError, match="more than"):
        parse_large(b"[" + b"0," * large_json.MAX_VALUES + b"0]")


@pytest.mark.parametrize(
    "text",
    [b'"' + b"a\\n" * 3_000_000 + b'"', b"[" + b"[]," * 3_000_000, b'{"a":"' + b"x" * 9_000_000],
    ids=["escapes", "lists", "unended"],
)
def test_others_get_their_turn_while_a_large_text_is_parsed(text: bytes) -> None:
    turns = 0

    def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            gevent.sleep(0)

    counter = gevent.spawn(count)
    started = time.monotonic()
    _outcome(parse_json, text)
    taken_ms = (time.monotonic() - started) * 1000
    counter.kill()
    assert turns > taken_ms / 50
