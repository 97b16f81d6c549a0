"""A bounded stream keeps its two ends and says what is missing."""

from __future__ import annotations

import re
import sys

from hypothesis import given
from hypothesis import strategies as st

from shell.output import BoundedOutput

_GAP = re.compile(rb"\n\[\.\.\. (\d+) bytes are missing here: [^\n]*\]\n")


def _kept(pieces: list[bytes], limit: int) -> BoundedOutput:
    output = BoundedOutput(limit)
    for piece in pieces:
        output.add(piece)
    return output


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(2, 300))
def test_what_is_kept_and_what_is_missing_add_up(pieces: list[bytes], limit: int) -> None:
    whole = b"".join(pieces)
    data = _kept(pieces, limit).data()
    if len(whole) <= limit:
        assert data == whole
        return
    gap = _GAP.search(data)
    assert gap is not None
    head, tail = data[: gap.start()], data[gap.end() :]
    assert whole.startswith(head) and whole.endswith(tail)
    assert len(head) + len(tail) + int(gap[1]) == len(whole)
    assert len(head) <= limit // 2 and len(tail) <= limit - limit // 2
    assert len(head) + len(tail) > limit - 8  # at most a character is given up at each cut


@given(st.text(st.characters(codec="utf-8"), min_size=30, max_size=200), st.integers(8, 29))
def test_no_character_is_cut(text: str, limit: int) -> None:
    data = _kept([text.encode()[i : i + 7] for i in range(0, len(text.encode()), 7)], limit).data()
    assert "\ufffd" not in data.decode("utf-8", "replace").replace("\ufffd" * text.count("\ufffd"), "") or (
        "\ufffd" in text
    )


def test_a_million_tiny_pieces_cost_no_more_than_the_limit() -> None:
    output = _kept([b"x"] * 1_000_000, 1 << 16)
    held = sum(sys.getsizeof(chunk) for part in (output._head, output._tail) for chunk in part)
    assert held < 4 * (1 << 16)
    assert output.total_bytes == 1_000_000
