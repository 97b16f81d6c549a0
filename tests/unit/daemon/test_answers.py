"""Answers are JSON in valid UTF-8, alike in one piece and in many."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon import answers
from daemon.answers import encode, large_answer, list_answer


def body(value: dict[str, Any]) -> bytes:
    """The whole body of an answer."""
    return large_answer(value).get_data()


@pytest.fixture
def tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PIECE_BYTES", 3)
    monkeypatch.setattr(answers, "_SMALL_BYTES", 3)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.integers(1, 7))
def test_bytes_are_decoded_over_the_whole_stream(data: bytes, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "PIECE_BYTES", piece)
        patch.setattr(answers, "_SMALL_BYTES", 0)
        shown = body({"code": 7, "stdout": data, "stderr": b""})
    assert json.loads(shown.decode("utf-8")) == {"code": 7, "stdout": data.decode("utf-8", "replace"), "stderr": ""}


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=40), st.integers(1, 7))
def test_texts_come_back_with_replacement_characters_for_lone_surrogates(text: str, piece: int) -> None:
    wanted = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "PIECE_BYTES", piece)
        patch.setattr(answers, "_SMALL_BYTES", 0)
        assert json.loads(body({"error_log": text}).decode("utf-8")) == {"error_log": wanted}
    assert json.loads(encode({"error_log": text}).decode("utf-8")) == {"error_log": wanted}


@pytest.mark.usefixtures("tiny_pieces")
@pytest.mark.parametrize("text", ["", "abc", 'a"b\\c', "\x00\x01\x1f", "\r\n\t\b\f", "é\u2028😀", "\x7f\x80\u0085"])
def test_a_streamed_text_is_the_json_of_the_text(text: str) -> None:
    assert body({"a": text * 5, "b": {"c": [1, None], "d": text}}) == encode(
        {"a": text * 5, "b": {"c": [1, None], "d": text}}
    )


def test_a_small_answer_has_a_length_and_a_large_one_comes_in_pieces() -> None:
    assert large_answer({"stdout": b"x" * 100}).headers["Content-Length"] == "113"
    large = large_answer({"stdout": b"x" * 3_000_000})
    assert "Content-Length" not in large.headers
    pieces = list(large.response)
    assert max(map(len, pieces)) <= 2 * answers.PIECE_BYTES
    assert len(pieces) > 10


def test_a_short_list_has_a_length_and_a_long_one_comes_in_pieces() -> None:
    assert list_answer("files", iter([])).get_data() == b'{"files":[]}'
    assert list_answer("files", iter([b"1", b"2"])).headers["Content-Length"] == "15"
    long = list_answer("files", (encode({"path": "x" * 100}) for _ in range(20_000)))
    assert "Content-Length" not in long.headers
    assert len(json.loads(long.get_data())["files"]) == 20_000


def test_numbers_that_are_no_json_are_never_sent() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode({"a": float("nan")})
