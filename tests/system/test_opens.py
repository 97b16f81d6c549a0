"""Whether a file was opened is known of any kind of file, and by whomever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shell.opens import OpenWatch


@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_what_was_opened_counts_until_it_is_forgotten(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "watched"
    os.mkfifo(path) if kind == "fifo" else path.touch()
    held = os.open(path, os.O_RDWR)
    watch = OpenWatch(str(path))
    assert not watch.was_opened()
    for mode in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        for _ in range(3):
            os.close(os.open(path, mode | os.O_NONBLOCK))
        assert watch.was_opened()
        assert not watch.was_opened()
        os.close(os.open(path, mode | os.O_NONBLOCK))
        watch.forget()
        assert not watch.was_opened()
    watch.close()
    watch.close()
    os.close(held)


def test_without_a_watch_everything_counts_as_opened(tmp_path: Path) -> None:
    watch = OpenWatch(str(tmp_path / "nothing"))
    assert watch.was_opened()
    watch.forget()
    assert watch.was_opened()
    watch.close()
