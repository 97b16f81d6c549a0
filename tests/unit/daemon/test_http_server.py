"""The server in this process, with its limits made small: time limits, the number of connections, vanished clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gevent
import pytest

from daemon import http_answer, http_handler, http_stream
from daemon.listeners import Server, bind_http
from tests.support.leaks import live_greenlets, open_descriptors
from tests.support.raw_http import RawClient

VERSION = "GET /version HTTP/1.1\nHost: x\n\n"


class App:
    """Answers with what the path asks for, and notes what it was asked."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.inside = self.most_inside = 0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        self.paths.append(path)
        if path == "/read":
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            try:
                environ["wsgi.input"].read()
                gevent.sleep(0.02)
            finally:
                self.inside -= 1
        if path == "/break":
            raise RuntimeError("a secret")
        if path == "/late":
            start("200 OK", [("Content-Type", "application/json")])
            return self.breaking()
        if path == "/endless":
            start("200 OK", [("Content-Type", "application/json")])
            return self.endless()
        start("200 OK", [("Content-Type", "application/json"), ("Content-Length", "2")])
        return [b"{}"]

    def breaking(self) -> Iterator[bytes]:
        yield b"[1,"
        raise RuntimeError("a secret")

    def endless(self) -> Iterator[bytes]:
        while True:
            yield b"x" * 100_000
            gevent.sleep(0)


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def server(app: App, failures: list[str], lines: list[str]) -> Iterator[Server]:
    listener = bind_http("127.0.0.1", 0)
    server = Server(listener, app, access_log=lines.append, log_exception=failures.append, max_connections=20)
    server.start()
    yield server
    server.close_gracefully()
    server.wait_finished(5)


@pytest.fixture
def port(server: Server) -> int:
    return int(server.address[1])


@pytest.mark.parametrize("data", [b"G", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nA: b\r\n"])
def test_a_head_that_never_ends_is_dropped(port: int, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(http_stream, "HEAD_SECONDS", 0.3)
    with RawClient(port) as client:
        started = time.monotonic()
        answer = client.ask(data)
        assert answer.status == 408
        assert answer.fields["connection"] == "close"
        assert client.rest() == b""
        assert time.monotonic() - started < 5


def test_a_head_that_trickles_in_is_dropped_all_the_same(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_stream, "HEAD_SECONDS", 0.3)
    with RawClient(port) as client:
        client.send("GET / HTTP/1.1\n")
        for _ in range(100):
            try:
                client.send("A: b\n")
            except OSError:
                break
            gevent.sleep(0.02)
        assert b" 408 " in client.rest()


@pytest.mark.parametrize("fields", ["Content-Length: 10\n\nab", "Transfer-Encoding: chunked\n\n5\nab"])
def test_a_body_that_never_ends_is_dropped(port: int, monkeypatch: pytest.MonkeyPatch, fields: str) -> None:
    monkeypatch.setattr(http_stream, "BODY_SECONDS", 0.3)
    with RawClient(port) as client:
        answer = client.ask(f"POST /read HTTP/1.1\nHost: x\n{fields}")
        assert answer.status == 408
        assert answer.fields["connection"] == "close"
        assert client.rest() == b""


def test_a_body_that_nobody_reads_and_never_ends_does_not_hold_the_answer_up(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_handler, "_SKIP_SECONDS", 0.2)
    with RawClient(port) as client:
        answer = client.ask("POST /x HTTP/1.1\nHost: x\nContent-Length: 10\n\nab")
        assert answer.status == 200
        assert answer.fields["connection"] == "close"


def test_an_idle_connection_may_stay_idle(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_stream, "HEAD_SECONDS", 0.2)
    with RawClient(port) as client:
        assert client.ask(VERSION).status == 200
        gevent.sleep(0.6)
        assert client.ask(VERSION).status == 200


def test_the_oldest_idle_connection_gives_way_when_there_are_too_many(port: int) -> None:
    idle = [RawClient(port) for _ in range(20)]
    for client in idle:
        assert client.ask(VERSION).status == 200
    with RawClient(port) as new:
        assert new.ask(VERSION).status == 200
    assert idle[0].rest() == b""
    assert idle[1].ask(VERSION).status == 200
    for client in idle:
        client.socket.close()


def test_a_connection_with_half_a_head_gives_way_too(port: int) -> None:
    halves = [RawClient(port) for _ in range(20)]
    for client in halves:
        client.send("GET / HTTP/1.1\n")
    gevent.sleep(0.2)
    with RawClient(port) as new:
        assert new.ask(VERSION).status == 200
    assert halves[0].rest() == b""
    for client in halves:
        client.socket.close()


def test_no_more_connections_than_there_may_be_are_served_at_once(server: Server, port: int) -> None:
    bodies = [RawClient(port) for _ in range(20)]
    for client in bodies:
        client.send("POST /read HTTP/1.1\nHost: x\nContent-Length: 10\n\nab")
    gevent.sleep(0.2)
    with RawClient(port) as refused:
        assert refused.rest() == b""
    bodies[0].send("cdefghij")
    assert bodies[0].read().status == 200
    with RawClient(port) as new:
        assert new.ask(VERSION).status == 200
    for client in bodies:
        client.socket.close()


def test_a_client_that_stops_reading_is_given_up(
    port: int, monkeypatch: pytest.MonkeyPatch, failures: list[str], lines: list[str]
) -> None:
    monkeypatch.setattr(http_answer, "_SEND_SECONDS", 0.3)
    with RawClient(port) as client:
        client.send("GET /endless HTTP/1.1\nHost: x\n\n")
        deadline = time.monotonic() + 10
        while not lines and time.monotonic() < deadline:
            gevent.sleep(0.05)
    assert len(lines) == 1
    assert failures == []


def test_clients_that_vanish_in_the_middle_of_an_answer_leave_nothing(
    port: int, server: Server, failures: list[str]
) -> None:
    descriptors, greenlets = len(open_descriptors()), live_greenlets()
    for _ in range(20):
        with RawClient(port) as client:
            client.send("GET /endless HTTP/1.1\nHost: x\n\n")
            client.socket.recv(10)
    server.wait_finished(5)
    assert failures == []
    assert len(open_descriptors()) <= descriptors
    assert live_greenlets() <= greenlets


def test_an_app_that_breaks_is_answered_with_an_id_that_is_logged(port: int, failures: list[str]) -> None:
    with RawClient(port) as client:
        answer = client.ask("GET /break HTTP/1.1\nHost: x\n\n")
        assert answer.status == 500
        assert answer.error == f"internal error {failures[0]}"
        assert answer.fields["connection"] == "close"
    assert len(failures) == 1


def test_an_answer_that_breaks_in_the_middle_ends_without_its_last_chunk(port: int, failures: list[str]) -> None:
    with RawClient(port) as client:
        client.send("GET /late HTTP/1.1\nHost: x\n\n")
        rest = client.rest()
        assert rest.endswith(b"[1,\r\n")
    assert len(failures) == 1


@pytest.mark.parametrize("data", [VERSION * 400, "\n" * 1_000_000], ids=["requests", "empty lines"])
def test_a_client_that_sends_ahead_does_not_keep_others_from_their_turn(port: int, data: str) -> None:
    turns = 0

    def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            gevent.sleep(0)

    counter = gevent.spawn(count)
    with RawClient(port) as client:
        try:
            client.send(data)
            for _ in range(data.count("GET")):
                assert client.read().status == 200
        except ConnectionError:
            assert "GET" not in data
    counter.kill()
    assert turns >= data.count("GET")


def test_only_so_many_large_bodies_are_held_at_once_and_all_get_their_turn(port: int, app: App) -> None:
    def send() -> int:
        with RawClient(port) as client:
            client.send("POST /read HTTP/1.1\nHost: x\nContent-Length: 2000000\n\n")
            client.send(b"x" * 2_000_000)
            return client.read().status

    senders = [gevent.spawn(send) for _ in range(18)]
    gevent.joinall(senders, timeout=30, raise_error=True)
    assert [sender.get() for sender in senders] == [200] * 18
    assert 1 < app.most_inside <= 8


def test_stopping_ends_idle_connections_and_lets_running_requests_finish(server: Server, port: int) -> None:
    idle = RawClient(port)
    assert idle.ask(VERSION).status == 200
    server.close_gracefully()
    assert idle.rest() == b""
    with pytest.raises(OSError, match="refused"):
        RawClient(port)
    idle.socket.close()
