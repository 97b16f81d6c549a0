"""The directories of the persistent shells: those of dead daemons are removed, all others stay."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shell import session_directory
from shell.session_directory import SessionDirectory
from tests.support.live import LiveDaemon, live_daemon, scratch
from tests.support.users import TestUsers


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the directories go for this test."""
    monkeypatch.setattr(session_directory, "_parent", lambda: str(tmp_path))
    return tmp_path


@contextmanager
def _directory() -> Iterator[Path]:
    directory = SessionDirectory()
    try:
        yield Path(directory.path)
    finally:
        directory.remove()
        assert not os.path.exists(directory.path)


def test_a_directory_without_a_daemon_is_removed_and_one_in_use_stays(parent: Path) -> None:
    left = Path(tempfile.mkdtemp(prefix="bash-io-", dir=parent))
    os.mkfifo(left / "out")
    with _directory() as used:
        assert not left.exists()
        (used / "command").write_text("true")
        with _directory() as second:
            assert used != second
            assert (used / "command").exists()
    assert list(parent.iterdir()) == []


def test_other_names_links_and_files_stay(parent: Path) -> None:
    (parent / "target").mkdir()
    (parent / "target" / "kept").touch()
    (parent / "bash-io-link").symlink_to("target")
    (parent / "bash-io-file").touch()
    (parent / "bash-other").mkdir()
    with _directory():
        pass
    names = sorted(path.name for path in parent.iterdir())
    assert names == ["bash-io-file", "bash-io-link", "bash-other", "target"]
    assert (parent / "target" / "kept").exists()


@pytest.mark.users
def test_a_directory_of_another_user_stays(parent: Path, test_users: TestUsers) -> None:
    theirs = parent / "bash-io-theirs"
    theirs.mkdir()
    os.chown(theirs, test_users.agent.uid, test_users.agent.gid)
    with _directory():
        assert theirs.exists()


def test_a_directory_that_is_taken_away_while_it_is_made_is_made_again(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, []

    def meddle(**options: str) -> str:
        made.append(make(**options))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", meddle)
    with _directory() as path:
        assert [str(path)] == made[1:]


def _fifo_folder(daemon: LiveDaemon) -> Path:
    return Path(daemon.bash("readlink /proc/self/fd/1")["stdout"].strip()).parent


@pytest.mark.users
def test_what_a_killed_daemon_left_is_gone_once_another_runs_a_command(test_users: TestUsers) -> None:
    with scratch() as root, live_daemon(root) as killed:
        left = _fifo_folder(killed)
        killed.stop(signal.SIGKILL)
        assert left.is_dir()
        with scratch() as other, live_daemon(other) as second:
            folder = _fifo_folder(second)
            assert not left.exists()
            with scratch() as third_root, live_daemon(third_root) as third:
                third.bash("true")
                assert folder.is_dir()
                assert second.bash("echo works")["stdout"] == "works\n"
