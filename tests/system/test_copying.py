"""Private copies: what arrives, what does not, and whose rights are used."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from shell.accounts import current_account
from shell.copying import CopyError, CopyStoppedError, TreeReader, copy_tree
from shell.processes import processes_of
from shell.stop import StopSignal
from tests.support.checks import as_user
from tests.support.live import scratch
from tests.support.users import TestUsers

pytestmark = pytest.mark.users

LOOK = """
import ctypes, os, sys
libc = ctypes.CDLL(None)

def trace(pid):
    if libc.ptrace(16, pid, 0, 0) != 0: raise PermissionError

for pid in map(int, sys.argv[1:]):
    for way in (
        lambda: open(f"/proc/{pid}/environ", "rb").read(),
        lambda: open(f"/proc/{pid}/mem", "rb"),
        lambda: os.readlink(f"/proc/{pid}/fd/1"),
        lambda: os.readlink(f"/proc/{pid}/cwd"),
        lambda: trace(pid),
    ):
        try: print("allowed", way())
        except ProcessLookupError: print("gone")
        except PermissionError: print("refused")
"""


@pytest.fixture
def place(test_users: TestUsers) -> Iterator[Path]:
    """A directory with ``from``, the agent's, and ``to``, the runner's."""
    with scratch() as root:
        for name, account in (("from", test_users.agent), ("to", test_users.runner)):
            (root / name).mkdir()
            os.chown(root / name, account.uid, account.gid)
        yield root


def copy(place: Path, users: TestUsers, source: str = "from", **more: object) -> list[str]:
    options: dict[str, object] = {"timeout_s": 30.0} | more
    reader = TreeReader.confined(users.agent)
    return copy_tree(str(place / source), reader, str(place / "to"), users.runner, **options)  # type: ignore[arg-type]


def agent(place: Path, users: TestUsers, script: str) -> None:
    answer = as_user(users.agent, script, str(place / "from"))
    assert answer.code == 0, answer


def test_files_folders_modes_links_and_times_arrive(place: Path, test_users: TestUsers) -> None:
    agent(
        place,
        test_users,
        "mkdir -p a/b empty; echo text > a/b/f; chmod 755 a/b/f; ln -s b/f a/l; ln -s /etc/shadow out; : > nothing;"
        r"touch -d '2001-02-03 04:05:06 UTC' a/b/f; printf x > $'odd \n\377 name'; echo x > -dash; ln a/b/f hard",
    )
    assert copy(place, test_users) == []
    to = place / "to"
    assert (to / "a/b/f").read_text() == "text\n"
    assert stat.S_IMODE((to / "a/b/f").stat().st_mode) == 0o755
    assert (to / "a/b/f").stat().st_mtime == 981173106
    assert os.readlink(to / "a/l") == "b/f" and os.readlink(to / "out") == "/etc/shadow"
    assert (to / "empty").is_dir() and (to / "nothing").read_bytes() == b""
    assert set(os.listdir(os.fsencode(to))) == {
        b"a", b"empty", b"out", b"nothing", b"odd \n\xff name", b"-dash", b"hard",
    }  # fmt: skip
    assert all(path.lstat().st_uid == test_users.runner.uid for path in to.rglob("*"))


def test_a_hidden_folder_of_git_is_copied_as_data(place: Path, test_users: TestUsers) -> None:
    agent(place, test_users, "git init -q .; git config core.fsmonitor 'touch /tmp/never'")
    copy(place, test_users)
    assert "fsmonitor" in (place / "to/.git/config").read_text()


def test_special_files_stay_away_and_are_named(place: Path, test_users: TestUsers) -> None:
    agent(place, test_users, "mkfifo pipe; echo x > file")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "from/socket"))
        notes = copy(place, test_users)
    assert sorted(notes) == ["not copied: pipe (named pipe)", "not copied: socket (socket)"]
    assert os.listdir(place / "to") == ["file"]


def test_what_the_agent_cannot_read_is_named_and_left_out(place: Path, test_users: TestUsers) -> None:
    agent(place, test_users, "echo x > secret; chmod 0 secret; mkdir closed; chmod 0 closed; echo y > file")
    notes = copy(place, test_users)
    assert any("secret" in note for note in notes) and any("closed" in note for note in notes)
    assert "file" in os.listdir(place / "to")


def test_files_of_roots_are_read_with_the_agents_rights_only(place: Path, test_users: TestUsers) -> None:
    secret = place / "from/secret"
    secret.write_text("hidden")
    secret.chmod(0o600)
    notes = copy(place, test_users)
    assert len(notes) == 1 and "secret" in notes[0]
    assert os.listdir(place / "to") == []


def test_notes_are_few_however_much_is_left_out(place: Path, test_users: TestUsers) -> None:
    agent(place, test_users, "for i in $(seq 100); do mkfifo pipe$i; done")
    notes = copy(place, test_users)
    assert len(notes) == 21 and notes[-1] == "not copied: 80 more"


@pytest.mark.parametrize("how", ["from", "parent"])
def test_a_link_on_the_way_to_the_source_is_not_followed(place: Path, test_users: TestUsers, how: str) -> None:
    (place / "from/file").write_text("x")
    if how == "from":
        (place / "link").symlink_to(place / "from")
        source = "link"
    else:
        (place / "up").symlink_to(place)
        source = "up/from"
    with pytest.raises(CopyError, match="no directory reached without links"):
        copy(place, test_users, source)
    assert os.listdir(place / "to") == []


def test_a_source_that_is_gone_or_no_directory_is_a_clear_error(place: Path, test_users: TestUsers) -> None:
    (place / "file").write_text("x")
    for source in ("gone", "file"):
        with pytest.raises(CopyError, match="could not copy the source tree"):
            copy(place, test_users, source)


def test_a_very_deep_tree_neither_fails_nor_stays(place: Path, test_users: TestUsers) -> None:
    agent(place, test_users, "for i in $(seq 300); do mkdir d; cd d; done; echo x > file")
    copy(place, test_users)
    assert sum(1 for _ in (place / "to").rglob("d")) == 300


def test_a_sparse_file_takes_no_space(place: Path, test_users: TestUsers) -> None:
    agent(place, test_users, "truncate -s 20G hole")
    copy(place, test_users)
    assert (place / "to/hole").stat().st_size == 20 << 30
    assert (place / "to/hole").stat().st_blocks < 1000


def test_a_helper_that_the_agent_kills_is_an_error_not_a_short_copy(place: Path, test_users: TestUsers) -> None:
    agent(place, test_users, "for i in $(seq 8); do head -c 50M /dev/zero > f$i; done")

    def kill_helpers() -> None:
        while True:
            for pid in processes_of(test_users.agent):
                os.kill(pid, signal.SIGKILL)
            gevent.sleep(0.001)

    killer = gevent.spawn(kill_helpers)
    try:
        with pytest.raises(CopyError, match=r"interrupted|could not"):
            copy(place, test_users)
    finally:
        killer.kill()


def test_a_helper_that_the_agent_stops_runs_into_the_time_limit(place: Path, test_users: TestUsers) -> None:
    agent(place, test_users, "for i in $(seq 8); do head -c 50M /dev/zero > f$i; done")

    def stop_helpers() -> None:
        # Not before they are helpers: then they would meet the limit of their start.
        own = Path("/proc/self/comm").read_text()
        while True:
            for pid in processes_of(test_users.agent):
                if Path(f"/proc/{pid}/comm").read_text() != own:
                    os.kill(pid, signal.SIGSTOP)
            gevent.sleep(0.001)

    stopper = gevent.spawn(stop_helpers)
    started = time.monotonic()
    try:
        with pytest.raises(CopyError, match="longer than 1 s"):
            copy(place, test_users, timeout_s=1.0)
    finally:
        stopper.kill()
    assert time.monotonic() - started < 10
    assert processes_of(test_users.agent) == []


def test_the_agent_cannot_trace_or_look_into_the_helpers(place: Path, test_users: TestUsers) -> None:
    agent(place, test_users, "for i in $(seq 12); do head -c 50M /dev/zero > f$i; done")
    job = gevent.spawn(copy, place, test_users)
    gevent.sleep(0.1)
    (place / "look.py").write_text(LOOK)
    # Stopped by root, none of them ends while it is looked at.
    for pid in processes_of(test_users.agent):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    helpers = processes_of(test_users.agent)
    assert helpers
    answer = as_user(test_users.agent, f"/usr/bin/python3 -I -S {place}/look.py {' '.join(map(str, helpers))}")
    for pid in helpers:
        os.kill(pid, signal.SIGCONT)
    job.get()
    assert answer.stdout.decode().splitlines() == ["refused"] * (5 * len(helpers)), answer


def test_it_stops_when_asked_to(place: Path, test_users: TestUsers) -> None:
    agent(place, test_users, "for i in $(seq 8); do head -c 50M /dev/zero > f$i; done")
    stop = StopSignal()
    gevent.spawn_later(0.05, stop.set, "its client went away")
    with pytest.raises(CopyStoppedError, match="its client went away"):
        copy(place, test_users, stop=stop)
    assert processes_of(test_users.agent) == processes_of(test_users.runner) == []


def test_a_tree_of_roots_is_read_by_root_and_written_by_the_runner(place: Path, test_users: TestUsers) -> None:
    clone = place / "clone"
    clone.mkdir(mode=0o700)
    (clone / "file").write_text("x")
    (clone / "file").chmod(0o600)
    (clone / "shadow").symlink_to("/etc/shadow")
    copy_tree(str(clone), TreeReader(current_account()), str(place / "to"), test_users.runner, timeout_s=30)
    assert (place / "to/file").read_text() == "x" and (place / "to/file").stat().st_uid == test_users.runner.uid
    assert (place / "to/shadow").is_symlink()


def test_a_full_destination_is_a_clear_error(place: Path, test_users: TestUsers) -> None:
    (place / "to").chmod(0o500)
    agent(place, test_users, "echo x > file")
    with pytest.raises(CopyError, match="Permission denied"):
        copy(place, test_users)
