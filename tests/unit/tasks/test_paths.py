"""What a task names is opened only when it is a regular file inside the task's folder, and never waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.paths import PathError, find_regular, read_regular


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    (folder / "pocs").mkdir(parents=True)
    (folder / "pocs" / "one").write_bytes(b"1")
    (tmp_path / "outside").write_bytes(b"secret")
    return folder


def test_a_regular_file_is_found_and_read(folder: Path) -> None:
    assert find_regular(str(folder), "pocs/one") == str(folder / "pocs" / "one")
    assert read_regular(str(folder), "pocs/one") == b"1"


def test_a_folder_may_itself_be_reached_by_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert read_regular(str(tmp_path / "link"), "pocs/one") == b"1"


@pytest.mark.parametrize("path", ["../outside", "pocs/../../outside", "/etc/hostname", "out", "outfolder/outside", "."])
def test_nothing_outside_is_reached(folder: Path, path: str) -> None:
    (folder / "out").symlink_to("../outside")
    (folder / "outfolder").symlink_to("..")
    with pytest.raises(PathError, match="leaves the task folder"):
        read_regular(str(folder), path)


@pytest.mark.parametrize(
    "path, message",
    [
        ("pocs", "is not a regular file"),
        ("pipe", "is not a regular file"),
        ("none", "does not exist"),
        ("pocs/one/x", "does not exist"),
        ("loop", "cannot be read|does not exist"),
        ("x" * 300, "cannot be read"),
    ],
)
def test_what_is_no_regular_file_says_why(folder: Path, path: str, message: str) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    with pytest.raises(PathError, match=message):
        read_regular(str(folder), path)


def test_a_file_over_the_limit_is_refused(folder: Path) -> None:
    (folder / "large").write_bytes(b"x" * 11)
    assert len(read_regular(str(folder), "large", limit_bytes=11)) == 11
    with pytest.raises(PathError, match="larger than 10 bytes"):
        read_regular(str(folder), "large", limit_bytes=10)
