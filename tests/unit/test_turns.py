"""Long loops give others their turn, also those that wait for a socket."""

from __future__ import annotations

import re
from pathlib import Path

import gevent
from gevent import socket

from shell.turns import give_turn

_ROOT = Path(__file__).resolve().parents[2]


def test_whoever_waits_for_a_socket_gets_a_turn_at_once() -> None:
    turns = 0

    def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            give_turn()

    def echo() -> None:
        while data := there.recv(1):
            there.sendall(data)

    here, there = socket.socketpair()
    greenlets = [gevent.spawn(echo), gevent.spawn(work)]
    try:
        gevent.sleep(0)
        for _ in range(20):
            before = turns
            here.sendall(b"x")
            assert here.recv(1) == b"x"
            assert turns - before <= 10
        assert turns > 20
    finally:
        gevent.killall(greenlets)
        here.close()
        there.close()


def test_no_loop_gives_its_turn_in_the_way_that_keeps_sockets_waiting() -> None:
    for package in ("daemon", "grading", "shell", "sse", "tasks"):
        for path in (_ROOT / package).rglob("*.py"):
            code = re.sub(r'""".*?"""', "", path.read_text("utf-8"), flags=re.DOTALL)
            assert "gevent.sleep(0)" not in code, path
