"""Sockets have their modes from the first moment, replace nothing that is not ours, and go away with the daemon."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import gevent
import pytest

from daemon.access import Kind
from daemon.errors import StartError
from daemon.listeners import Listener, bind_admin_socket, bind_agent_socket, bind_http
from shell.accounts import find_account
from tests.support.live import scratch
from tests.support.users import agent_name

pytestmark = pytest.mark.users


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch() as path:
        yield path


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_the_agent_socket_is_open_to_all_and_the_admin_socket_to_root(root: Path) -> None:
    agent, admin = bind_agent_socket(str(root / "a.sock")), bind_admin_socket(str(root / "admin" / "b.sock"))
    assert (agent.kind, admin.kind) == (Kind.AGENT, Kind.ADMIN)
    assert mode(root / "a.sock") == 0o666
    assert mode(root / "admin" / "b.sock") == 0o600
    assert mode(root / "admin") == 0o700
    for listener in (agent, admin):
        listener.remove()
    assert not (root / "a.sock").exists()
    assert list((root / "admin").iterdir()) == []


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_modes_do_not_depend_on_the_umask_which_stays_what_it_was(root: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        listener = bind_agent_socket(str(root / "a.sock"))
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert mode(root / "a.sock") == 0o666
    listener.remove()


def test_no_moment_shows_the_admin_socket_with_looser_permissions(root: Path) -> None:
    (root / "admin").mkdir(mode=0o700)
    path, seen, running = root / "admin" / "a.sock", set(), [True]

    def look() -> None:
        while running:
            try:
                seen.add(mode(path))
            except FileNotFoundError:
                continue

    watcher = gevent.get_hub().threadpool.spawn(look)  # a thread of its own: it must see what no greenlet can
    before = os.umask(0)
    try:
        for _ in range(200):
            bind_admin_socket(str(path)).remove()
    finally:
        os.umask(before)
        running.clear()
        watcher.get()
    assert seen <= {0o600}


def test_a_stale_socket_of_ours_is_replaced(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(root / "a.sock"))
    bind_agent_socket(str(root / "a.sock")).remove()


Plant: TypeAlias = Callable[[Path], Callable[[], None]]


def live(path: Path) -> Callable[[], None]:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server.close


def foreign_socket(path: Path) -> Callable[[], None]:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    os.chown(path, find_account(agent_name()).uid, -1)
    return lambda: None


def file(path: Path) -> Callable[[], None]:
    path.write_text("precious")
    return lambda: None


def folder(path: Path) -> Callable[[], None]:
    path.mkdir()
    return lambda: None


def fifo(path: Path) -> Callable[[], None]:
    os.mkfifo(path)
    return lambda: None


def dangling_link(path: Path) -> Callable[[], None]:
    path.symlink_to(path.parent / "elsewhere.sock")
    return lambda: None


def link_to_a_stale_socket(path: Path) -> Callable[[], None]:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path.parent / "other.sock"))
    path.symlink_to(path.parent / "other.sock")
    return lambda: None


@pytest.mark.parametrize("plant", [live, foreign_socket, file, folder, fifo, dangling_link, link_to_a_stale_socket])
def test_anything_else_at_the_path_is_refused_and_left_alone(
    root: Path, plant: Callable[..., Callable[[], None]]
) -> None:
    (root / "admin").mkdir(mode=0o700)
    path = root / "admin" / "a.sock"
    close = plant(path)
    before = os.lstat(path), sorted(os.listdir(path.parent))
    for bind in (bind_agent_socket, bind_admin_socket):
        with pytest.raises(StartError, match=r"SSE_.*_SOCKET"):
            bind(str(path))
    after = os.lstat(path), sorted(os.listdir(path.parent))
    assert (before[0].st_ino, before[0].st_mode, before[1]) == (after[0].st_ino, after[0].st_mode, after[1])
    close()


def test_a_path_that_somebody_else_took_over_is_not_removed(root: Path) -> None:
    path = root / "a.sock"
    listener = bind_agent_socket(str(path))
    path.unlink()
    path.write_text("somebody else's")
    listener.remove()
    assert path.read_text() == "somebody else's"


@pytest.mark.parametrize("mode_bits", [0o755, 0o710, 0o702])
def test_an_admin_directory_that_is_open_to_others_is_refused(root: Path, mode_bits: int) -> None:
    (root / "admin").mkdir()
    (root / "admin").chmod(mode_bits)
    with pytest.raises(StartError, match="chmod 700"):
        bind_admin_socket(str(root / "admin" / "a.sock"))
    assert mode(root / "admin") == mode_bits


def test_an_admin_directory_behind_an_agents_link_is_refused(root: Path) -> None:
    agent = find_account(agent_name())
    (root / "real").mkdir(mode=0o700)
    (root / "link").symlink_to(root / "real")
    os.lchown(root / "link", agent.uid, agent.gid)
    with pytest.raises(StartError, match="SSE_ADMIN_SOCKET"):
        bind_admin_socket(str(root / "link" / "a.sock"))
    assert list((root / "real").iterdir()) == []


def test_port_0_picks_one_and_a_taken_one_is_refused() -> None:
    first = bind_http("127.0.0.1", 0)
    port = int(first.address.rpartition(":")[2])
    assert port > 0
    with pytest.raises(StartError, match="taken"):
        bind_http("127.0.0.1", port)
    first.remove()


def test_an_address_of_another_machine_is_refused_by_name() -> None:
    with pytest.raises(StartError, match=r"SSE_HTTP_PORT=0 on 192\.0\.2\.1"):
        bind_http("192.0.2.1", 0)


def test_listeners_are_told_apart_by_their_socket_alone() -> None:
    listener = Listener(Kind.HTTP, bind_http("127.0.0.1", 0).socket)
    assert listener.kind is Kind.HTTP
    listener.remove()
