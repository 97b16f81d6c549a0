"""YAML from anyone: plain data or a refusal with a line, never another exception, never a long wait."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.yamlfile import MAX_BYTES, YamlError, load_yaml


@pytest.mark.parametrize(
    "data, value",
    [
        (b"", None),
        (b"\xef\xbb\xbfa: 1", {"a": 1}),
        (b"a: |\n  x\r\n  y\r\n", {"a": "x\ny\n"}),
        (b"a: 2020-01-01", {"a": "2020-01-01"}),
        (b"a: 2020-99-99", {"a": "2020-99-99"}),
        (b"a: =", {"a": "="}),
        (b"1: 2\non: 3\nnull: 4", {"1": 2, "on": 3, "null": 4}),
        (b"a: [1, true, null, 1.5, '1']", {"a": [1, True, None, 1.5, "1"]}),
        ("a: \u00e9 \U0001f41b".encode(), {"a": "\u00e9 \U0001f41b"}),
    ],
)
def test_plain_yaml_is_plain_data(data: bytes, value: object) -> None:
    assert load_yaml(data) == value


@pytest.mark.parametrize(
    "data, message",
    [
        (b"a: &x 1\nb: *x", "line 2: aliases are not accepted"),
        (b"a: 1\nb: 2\na: 3", "line 3: duplicate key: a"),
        (b"a: {x: 1, x: 2}", "line 1: duplicate key: x"),
        (b"a: 1\n\xff", "expected UTF-8"),
        ("a: 1".encode("utf-16"), "expected UTF-8"),
        (b'a: "\\ud800"', "line 1: NUL and lone surrogates"),
        (b'a: "\\0"', "line 1: NUL and lone surrogates"),
        (b'"\\0": 1', "line 1: NUL and lone surrogates"),
        (b'a: "\\U00110000"', "expected YAML"),
        (b"a: !!python/name:os.system", "line 1: tags are not accepted"),
        (b"a: !!binary aGk=", "line 1: tags are not accepted"),
        (b"<<: {a: 1}", "line 1: expected a name"),
        (b"? [1, 2]\n: 3", "line 1: expected a name"),
        (b"a: 1\n--- \nb: 2", "line 2"),
        (b"[" * 100_000, "line 1: nested more than 20 levels deep"),
        (b"a: " + b"9" * 5000, "line 1: a number of more than 40 characters"),
        (b"a: 1" + b":1" * 400_000, "line 1: a number of more than 40 characters"),
        (b"a: 0x" + b"f" * 5000, "line 1: a number of more than 40 characters"),
        (b"a: b: c", "line 1"),
        (b"\t", "line 1"),
        (b"x" * (MAX_BYTES + 1), "expected at most"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_everything_else_is_refused_by_name(data: bytes, message: str) -> None:
    with pytest.raises(YamlError, match=f"^{message}"):
        load_yaml(data)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text("ab:-[]{}&*!|>\"'#\n \t?%@`,0.", max_size=60).map(str.encode)))
def test_no_input_raises_anything_else(data: bytes) -> None:
    try:
        load_yaml(data)
    except YamlError as error:
        assert str(error)
