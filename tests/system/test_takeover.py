"""What the runner may write outside its own places becomes root's, and nothing else does."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from shell.cleaning import SharedPlaces
from shell.takeover import take_from
from tests.support.checks import as_user
from tests.support.live import scratch
from tests.support.users import TestUsers

pytestmark = pytest.mark.users


@pytest.fixture
def image(test_users: TestUsers) -> Iterator[Path]:
    """A directory with something of everybody's, as an image may have it."""
    runner, agent = test_users.runner, test_users.agent
    with scratch() as root:
        for name, uid, gid, mode in (
            ("home", runner.uid, runner.gid, 0o755),
            ("home/inner", runner.uid, runner.gid, 0o777),
            ("group", 0, runner.gid, 0o775),
            ("agents", agent.uid, agent.gid, 0o755),
            ("roots", 0, 0, 0o755),
        ):
            (root / name).mkdir()
            os.chown(root / name, uid, gid)
            (root / name).chmod(mode)
        for name, uid, gid, mode in (
            ("roots/file", runner.uid, runner.gid, 0o644),
            ("roots/tool", runner.uid, runner.gid, 0o4755),
            ("roots/log", 0, runner.gid, 0o664),
            ("roots/other", 0, 0, 0o644),
        ):
            (root / name).write_text("x")
            os.chown(root / name, uid, gid)
            (root / name).chmod(mode)
        (root / "roots/link").symlink_to("/etc/passwd")
        os.chown(root / "roots/link", runner.uid, runner.gid, follow_symlinks=False)
        yield root


def state(path: Path) -> tuple[int, str]:
    found = path.lstat()
    return found.st_uid, f"{stat.S_IMODE(found.st_mode):o}"


def search(users: TestUsers, keep: Iterable[str] = ()) -> None:
    """Look for what the runner could write, to the end."""
    places = SharedPlaces(keep=keep)
    places.start_scan(users.runner)
    places.purge(users.runner, everywhere=True)
    places.close()


def test_a_search_takes_all_that_the_runner_could_write(test_users: TestUsers, image: Path) -> None:
    search(test_users)
    names = ("home", "group", "roots/file", "roots/tool", "roots/log")
    assert [state(image / name) for name in names] == [
        (0, "700"), (0, "755"), (0, "644"), (0, "755"), (0, "644"),
    ]  # fmt: skip
    script = f"cd {image}; for f in home/inner/x group/x roots/file roots/tool roots/log; do echo y > $f; done; true"
    as_user(test_users.runner, script)
    assert not list(image.rglob("x")) and (image / "roots/log").read_text() == "x"


def test_nobody_elses_is_touched(test_users: TestUsers, image: Path) -> None:
    before = {name: state(image / name) for name in ("agents", "roots", "roots/other", "roots/link")}
    search(test_users)
    assert {name: state(image / name) for name in before} == before
    assert os.stat("/etc/passwd").st_uid == 0


@pytest.mark.parametrize("name", ["plain", "[a-z]*", "a?b\\\\c"])
def test_what_is_kept_stays_the_runners(test_users: TestUsers, image: Path, name: str) -> None:
    (image / "home").rename(image / name)
    search(test_users, keep=[str(image / name)])
    assert state(image / name) == (test_users.runner.uid, "755")


def test_no_link_is_followed_on_the_way_or_at_its_end(test_users: TestUsers, image: Path) -> None:
    (image / "way").symlink_to(image / "roots")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        take_from(test_users.runner, str(image / "way/file"))
    (image / "end").symlink_to(image / "home")
    assert not take_from(test_users.runner, str(image / "end"))
    assert state(image / "home")[0] == test_users.runner.uid


def test_a_name_that_means_something_else_by_now_is_left_alone(test_users: TestUsers, image: Path) -> None:
    assert not take_from(test_users.runner, str(image / "roots/other"))
    assert not take_from(test_users.runner, str(image / "agents"))
    with pytest.raises(FileNotFoundError):
        take_from(test_users.runner, str(image / "roots/gone"))


def test_a_fifo_is_not_waited_for(test_users: TestUsers, image: Path) -> None:
    os.mkfifo(image / "roots/fifo")
    os.chown(image / "roots/fifo", test_users.runner.uid, test_users.runner.gid)
    started = time.monotonic()
    assert not take_from(test_users.runner, str(image / "roots/fifo"))
    assert time.monotonic() - started < 5
