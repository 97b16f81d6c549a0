"""The dialog: numbered entries, one whole line each, on the disk before the call returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sse.dialog import DialogWriter
from sse.error import SDKError


def entries(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert not data or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def test_each_entry_is_there_when_its_call_returns(tmp_path: Path) -> None:
    path = tmp_path / "dialog.jsonl"
    with DialogWriter(path) as dialog:
        calls: list[Callable[[], int]] = [
            lambda: dialog.init("me", model="m", effort=3),
            lambda: dialog.prompt("Fix \u20ac\n"),
            lambda: dialog.message("hello"),
            lambda: dialog.thinking("hm"),
            lambda: dialog.tool_start("bash", {"command": "ls"}, call_id="1"),
            lambda: dialog.tool_result("bash", "a\n", call_id="1"),
            lambda: dialog.complete(True, "done"),
        ]
        for number, call in enumerate(calls, start=1):
            assert call() == number
            assert [entry["seq"] for entry in entries(path)] == list(range(1, number + 1))
    written = entries(path)
    assert [entry["type"] for entry in written] == [
        "init", "prompt", "message", "thinking", "tool_start", "tool_result", "complete",
    ]  # fmt: skip
    assert written[0] | {"timestamp": ""} == {
        "seq": 1, "type": "init", "timestamp": "", "agent": "me", "model": "m", "effort": 3,
    }  # fmt: skip
    assert written[1]["text"] == "Fix \u20ac\n" and written[5]["is_error"] is False
    assert all(entry["timestamp"].endswith("+00:00") for entry in written)


def test_a_second_writer_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    path = tmp_path / "archive" / "dialog.jsonl"
    with DialogWriter(path) as dialog:
        dialog.message("one")
    with path.open("ab") as file:
        file.write(b'not json\n[1]\n{"seq": "7"}\n{"seq": 7}\n{"seq": 9, "cut')
    with DialogWriter(path) as dialog:
        assert dialog.message("two") == 8
    assert json.loads(path.read_bytes().splitlines()[-1])["text"] == "two"


def test_the_archive_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSE_ARCHIVE", str(tmp_path / "a" / "b"))
    with DialogWriter() as dialog:
        dialog.message("x")
    assert len(entries(tmp_path / "a" / "b" / "dialog.jsonl")) == 1


def test_text_that_has_no_utf8_is_still_json(tmp_path: Path) -> None:
    with DialogWriter(tmp_path / "d") as dialog:
        dialog.message("\ud83d half a pair \0 \u2028", role="user")
        dialog.tool_result("x", {"path": Path("/y")})
    first, second = entries(tmp_path / "d")
    assert first["text"] == "\ud83d half a pair \0 \u2028" and second["result"] == {"path": "/y"}
    (tmp_path / "d").read_text("ascii")


def test_what_cannot_be_written_is_an_error_and_takes_no_number(tmp_path: Path) -> None:
    with DialogWriter(tmp_path / "d") as dialog:
        for bad in (float("nan"), float("inf")):
            with pytest.raises(SDKError, match="must be JSON"):
                dialog.write("x", value=bad)
        assert dialog.message("x") == 1
    with pytest.raises(SDKError):
        dialog.message("closed")
    with pytest.raises(SDKError, match="cannot write the dialog"):
        DialogWriter("/proc/nothing/dialog.jsonl")


def test_threads_share_a_writer(tmp_path: Path) -> None:
    with DialogWriter(tmp_path / "d") as dialog:
        threads = [threading.Thread(target=lambda: [dialog.message("x" * 5000) for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [entry["seq"] for entry in entries(tmp_path / "d")] == list(range(1, 201))


def test_writers_of_one_file_share_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with DialogWriter(path) as first, DialogWriter(path) as second:
        assert [first.message("a"), second.message("b"), first.message("c")] == [1, 2, 3]
        with path.open("ab") as file:
            file.write(b'{"seq": 7}')  # of a program that was ended while it wrote
        assert second.message("d") == 8
        path.write_bytes(b"")
        assert second.message("e") == 9  # the numbers that a reader knows are not given out again
        assert [entry["seq"] for entry in entries(path)] == [9]


def test_a_signal_during_a_write_may_write_too(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, sse.dialog as module\n"
        "dialog = module.DialogWriter(sys.argv[1])\n"
        "signal.signal(signal.SIGTERM, lambda *_: dialog.complete(False))\n"
        "write = os.write\n"
        "def interrupted(*arguments):\n"
        "    os.write = write\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return write(*arguments)\n"
        "os.write = interrupted\n"
        "dialog.message('x')\n"
    )
    repository = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "d")], cwd=repository, timeout=30, check=True)
    assert sorted((entry["seq"], entry["type"]) for entry in entries(tmp_path / "d")) == [
        (1, "message"),
        (2, "complete"),
    ]


def test_processes_share_a_file_and_a_forked_writer_goes_on(tmp_path: Path) -> None:
    program = (
        "import os, sys, threading\n"
        "from sse.dialog import DialogWriter\n"
        "dialog = DialogWriter(sys.argv[1])\n"
        "def work(): [dialog.message('x' * 3000) for _ in range(25)]\n"
        "thread = threading.Thread(target=work); thread.start()\n"
        "pid = os.fork()\n"
        "work()\n"
        "thread.join() if pid else os._exit(0)\n"
        "sys.exit(os.waitpid(pid, 0)[1])\n"
    )
    path = tmp_path / "d"
    command = [sys.executable, "-W", "ignore", "-c", program, str(path)]
    running = [subprocess.Popen(command, cwd=Path(__file__).resolve().parents[3]) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert [entry["seq"] for entry in entries(path)] == list(range(1, 151))


@pytest.mark.parametrize("field", ["seq", "type", "timestamp"])
def test_no_field_takes_the_place_of_an_entrys_own(tmp_path: Path, field: str) -> None:
    with DialogWriter(tmp_path / "d") as dialog, pytest.raises(SDKError, match=f"its own {field}"):
        dialog.write("x", **{field: 1})


def test_an_entry_that_the_daemon_would_skip_is_refused(tmp_path: Path) -> None:
    with DialogWriter(tmp_path / "d") as dialog:
        with pytest.raises(SDKError, match="at most 16777216 bytes, this one has"):
            dialog.message("\u20ac" * 3_000_000)
        assert dialog.message("x") == 1


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(SDKError, match="cannot write the dialog"):
            DialogWriter(path)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    dialog = DialogWriter(tmp_path / "d")
    dialog.close()
    dialog.close()
    assert len(os.listdir("/proc/self/fd")) == before
