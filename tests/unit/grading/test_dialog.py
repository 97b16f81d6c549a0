"""The dialog: what counts as an entry, and a poll that costs what is new."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grading import dialog as module
from grading.dialog import DialogError, DialogFile, parse_entry
from shell.accounts import current_account


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dialog.jsonl"


@pytest.fixture
def dialog(tmp_path: Path) -> DialogFile:
    return DialogFile(str(tmp_path), current_account())


def poll(dialog: DialogFile, since: int | None = None) -> list[Any]:
    return [json.loads(entry) for entry in dialog.entries(since)]


def seqs(dialog: DialogFile, since: int | None = None) -> list[int]:
    return [entry["seq"] for entry in poll(dialog, since)]


def line(seq: object, **more: object) -> bytes:
    return json.dumps({"seq": seq, **more}).encode() + b"\n"


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


SKIPPED = [
    b"",
    b" ",
    b"x",
    b"[]",
    b'"seq"',
    b"{}",
    b'{"seq":"1"}',
    b'{"seq":1.0}',
    b'{"seq":1e2}',
    b'{"seq":true}',
    b'{"seq":null}',
    b'{"seq":1',
    b'{"seq":1}}',
    b'{"seq":1,"seq":2}',
    b'{"seq":1,"a":{"b":1,"b":2}}',
    b'{"seq":1,"a":NaN}',
    b'{"seq":1,"a":1e999}',
    b"\xef\xbb\xbf" + b'{"seq":1}',
    b'{"seq":1,"a":"\xff"}',
    b'{"seq":1,"a":"\x01"}',
    b'{"seq":' + b"9" * 5000 + b"}",
    b'{"seq":1,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"Seq":1}',
]


@pytest.mark.parametrize("text", SKIPPED, ids=range(len(SKIPPED)))
def test_a_line_that_is_no_entry_is_skipped(dialog: DialogFile, path: Path, text: bytes) -> None:
    path.write_bytes(line(1) + text + b"\n" + line(2))
    assert seqs(dialog) == [1, 2]
    assert seqs(dialog, 1) == [2]


@pytest.mark.parametrize(
    "text",
    [
        b'{"seq":1}',
        b' {"seq" : 1 , "x":[{}]} \r',
        b'{"seq":-0}',
        b'{"x":"\\ud83d\\ude00","seq":123456789012345678901234567890}',
        '{"seq":1,"x":"é\u2028"}'.encode(),
    ],
)
def test_an_entry_is_shown_as_the_agent_wrote_it(text: bytes) -> None:
    entry = parse_entry(text)
    assert entry is not None
    assert entry[1] == text.strip()


def test_a_lone_surrogate_is_shown_as_a_replacement_character() -> None:
    entry = parse_entry(b'{"seq":1,"\\ud800":["\\udc00x","\\ud83d\\ude00"]}')
    assert entry is not None
    assert json.loads(entry[1].decode()) == {"seq": 1, "\ufffd": ["\ufffdx", "😀"]}


def test_a_line_over_the_limit_is_skipped_and_what_follows_is_read(dialog: DialogFile, path: Path) -> None:
    long = b'{"seq":2,"x":"' + b"y" * module.MAX_LINE_BYTES + b'"}\n'
    path.write_bytes(line(1) + long + line(3))
    assert seqs(dialog) == [1, 3]
    assert seqs(dialog) == [1, 3]
    append(path, long[:-1])
    assert seqs(dialog, 3) == []
    append(path, b"\n" + line(4))
    assert seqs(dialog, 3) == [4]


def test_a_line_just_within_the_limit_is_an_entry(dialog: DialogFile, path: Path) -> None:
    body = b'{"seq":2,"x":"'
    long = body + b"y" * (module.MAX_LINE_BYTES - len(body) - 2) + b'"}'
    path.write_bytes(long + b"\n")
    assert seqs(dialog) == [2]


def test_records_end_at_line_feeds_only(dialog: DialogFile, path: Path) -> None:
    path.write_bytes(b'{"seq":1,\x0c"a":1}\n' + b'{"seq":2,\r"a":1}\n' + '{"seq":3,"a":"\u2028\u0085"}\n'.encode())
    assert seqs(dialog) == [2, 3]


def test_the_last_line_waits_until_it_is_whole(dialog: DialogFile, path: Path) -> None:
    whole = line(7, text="x" * 100)
    path.write_bytes(line(1))
    for end in range(1, len(whole)):
        append(path, whole[end - 1 : end])
        assert seqs(dialog) == [1]
    append(path, whole[-1:])
    assert seqs(dialog) == [1, 7]
    assert seqs(dialog, 1) == [7]


def test_entries_stay_in_file_order_and_since_compares_each(dialog: DialogFile, path: Path) -> None:
    path.write_bytes(b"".join(map(line, [5, 1, 9, -3, 9, 10**30])))
    assert seqs(dialog) == [5, 1, 9, -3, 9, 10**30]
    assert seqs(dialog, 5) == [9, 9, 10**30]
    assert seqs(dialog, -4) == [5, 1, 9, -3, 9, 10**30]
    assert seqs(dialog, 10**30) == []


def test_without_a_file_or_a_directory_there_are_no_entries(tmp_path: Path) -> None:
    assert seqs(DialogFile(str(tmp_path), current_account())) == []
    assert seqs(DialogFile(str(tmp_path / "a" / "b"), current_account())) == []


def test_a_file_that_shrank_is_read_anew(dialog: DialogFile, path: Path) -> None:
    path.write_bytes(line(1) + line(2) + line(3))
    assert seqs(dialog) == [1, 2, 3]
    path.write_bytes(line(4))
    assert seqs(dialog) == [4]


def test_a_file_that_was_replaced_by_a_longer_one_is_read_anew(dialog: DialogFile, path: Path) -> None:
    path.write_bytes(line(1))
    assert seqs(dialog) == [1]
    other = path.with_name("other")
    other.write_bytes(line(2, text="longer than before") + line(3))
    other.rename(path)
    assert seqs(dialog) == [2, 3]
    path.write_bytes(line(5, text="the same inode, longer again, and other bytes in it") + line(6))
    assert seqs(dialog) == [5, 6]
    path.unlink()
    assert seqs(dialog) == []


def test_a_poll_reads_what_is_new_and_nothing_else(
    dialog: DialogFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b"".join(line(number, text="x" * 1000) for number in range(5000)))
    assert len(seqs(dialog)) == 5000
    read = 0
    pread = os.pread

    def counting(fd: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = pread(fd, size, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    assert seqs(dialog, 4999) == []
    assert read == 0
    for number in range(5000, 5300):
        append(path, line(number, text="y" * 100))
        read = 0
        assert seqs(dialog, number - 1) == [number]
        assert read < 40_000
    assert len(seqs(dialog, 2500)) == 2799


def test_a_long_unfinished_line_is_not_read_again_and_again(
    dialog: DialogFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b'{"seq":1,"x":"' + b"y" * 3_000_000)
    assert seqs(dialog) == []
    sizes: list[int] = []
    pread = os.pread

    def counting(fd: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", counting)
    for _ in range(5):
        append(path, b"z" * 10)
        assert seqs(dialog) == []
    assert len(sizes) == 5
    append(path, b'"}\n')
    assert seqs(dialog) == [1]


def test_one_poll_is_bounded_and_the_next_goes_on(
    dialog: DialogFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_POLL_BYTES", 1_000_000)
    path.write_bytes(b"".join(line(number, text="x" * 1000) for number in range(3000)))
    found: list[int] = []
    while new := seqs(dialog, found[-1] if found else None):
        assert len(new) < 1500
        found += new
    assert found == list(range(3000))


def test_a_poll_has_a_time_limit(dialog: DialogFile, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_POLL_SECONDS", 0.0)
    path.write_bytes(line(1))
    assert seqs(dialog) == []


def test_others_get_their_turn_while_a_large_file_is_read_for_the_first_time(dialog: DialogFile, path: Path) -> None:
    path.write_bytes(b"".join(line(number) for number in range(100_000)))
    turns = 0

    def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            gevent.sleep(0)

    counter = gevent.spawn(count)
    assert len(seqs(dialog)) == 100_000
    counter.kill()
    assert turns > 500


def test_an_answer_that_is_given_up_closes_the_file(dialog: DialogFile, path: Path) -> None:
    path.write_bytes(line(1) + line(2))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        dialog.entries(None)
        next(iter(dialog.entries(None)))
    assert len(os.listdir("/proc/self/fd")) == before


def test_polls_at_the_same_time_see_the_same_entries(dialog: DialogFile, path: Path) -> None:
    path.write_bytes(b"".join(line(number, text="x" * 500) for number in range(3000)))
    polls = [gevent.spawn(seqs, dialog) for _ in range(4)]
    gevent.joinall(polls, raise_error=True)
    assert [one.value for one in polls] == [list(range(3000))] * 4
    assert seqs(dialog, 2998) == [2999]


@pytest.mark.parametrize("kind", ["link", "directory", "fifo", "socket"])
def test_what_is_no_regular_file_is_an_error(dialog: DialogFile, path: Path, kind: str) -> None:
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    with pytest.raises(DialogError):
        dialog.entries(None)


ENTRY_LINES = st.sampled_from(
    [line(n) for n in range(20)] + [line(3, x="y" * 70_000), b"no json\n", b"\n", b'{"seq":7}']
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(ENTRY_LINES, st.integers(0, 4)), max_size=25), st.randoms(use_true_random=False))
def test_polling_while_the_file_grows_equals_reading_it_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bytes, int]], chance: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("dialog")
    path, dialog = folder / "dialog.jsonl", DialogFile(str(folder), current_account())
    text = b""
    for data, polls in steps:
        text += data
        append(path, data)
        for _ in range(polls):
            since = chance.choice([None, -1, 3, 10, 19])
            whole = text[: text.rfind(b"\n") + 1]
            wanted = [entry[0] for entry in map(parse_entry, whole.split(b"\n")) if entry]
            assert seqs(dialog, since) == [seq for seq in wanted if since is None or seq > since]
