"""Requests that no library sends: every one gets one JSON answer or none, and the daemon goes on."""

from __future__ import annotations

import itertools
import re
import socket
import time
from collections.abc import Iterator

import gevent
import pytest

from tests.support.leaks import open_descriptors
from tests.support.live import LiveDaemon, live_daemon, scratch
from tests.support.raw_http import RawClient, post

pytestmark = pytest.mark.users

BASH = "/tool/bash?action=execute"
VERSION = "GET /version HTTP/1.1\nHost: x\n\n"


@pytest.fixture(scope="module")
def daemon() -> Iterator[LiveDaemon]:
    with scratch() as root, live_daemon(root) as daemon:
        # What starts with the first use is there before the first test looks for what it left behind.
        assert daemon.agent.get("/diff").status_code == 200
        daemon.bash("true")
        yield daemon


@pytest.fixture
def addresses(daemon: LiveDaemon) -> list[str | int]:
    """The three listeners."""
    return [daemon.env["SSE_DAEMON_SOCKET"], daemon.http_port, daemon.env["SSE_ADMIN_SOCKET"]]


@pytest.fixture
def agent(daemon: LiveDaemon) -> Iterator[RawClient]:
    with RawClient(daemon.env["SSE_DAEMON_SOCKET"]) as client:
        yield client


REFUSED_HEADS: dict[str, tuple[str | bytes, int]] = {
    "no method": ("/version HTTP/1.1\n\n", 400),
    "http 0.9": ("GET /version\n\n", 400),
    "http 2": ("GET /version HTTP/2.0\n\n", 505),
    "http 1.2": ("GET /version HTTP/1.2\n\n", 505),
    "no number": ("GET /version HTTP/x\n\n", 400),
    "two spaces": ("GET  /version HTTP/1.1\n\n", 400),
    "a character that is not ASCII in the target": (b"GET /version?x=\xe9 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "space in the target": ("GET /ver sion HTTP/1.1\nHost: x\n\n", 400),
    "tab for space": ("GET\t/version\tHTTP/1.1\n\n", 400),
    "bare LF": (b"GET /version HTTP/1.1\nHost: x\r\n\r\n", 400),
    "bare CR": (b"GET /version HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n", 400),
    "NUL in a field": (b"GET /version HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n", 400),
    "NUL in the target": (b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "space before the colon": ("GET /version HTTP/1.1\nHost : x\n\n", 400),
    "continuation line": ("GET /version HTTP/1.1\nHost: x\nA: b\n c\n\n", 400),
    "field without a colon": ("GET /version HTTP/1.1\nHost: x\nnonsense\n\n", 400),
    "field without a name": ("GET /version HTTP/1.1\nHost: x\n: x\n\n", 400),
    "no host": ("GET /version HTTP/1.1\nHostess: x\n\n", 400),
    "two hosts": ("GET /version HTTP/1.1\nHost: a\nHost: b\n\n", 400),
    "two lengths": ("POST /x HTTP/1.1\nHost: x\nContent-Length: 1\nContent-Length: 2\n\nab", 400),
    "the same length twice": ("POST /x HTTP/1.1\nHost: x\nContent-Length: 1\nContent-Length: 1\n\na", 400),
    "a list of lengths": ("POST /x HTTP/1.1\nHost: x\nContent-Length: 1, 1\n\na", 400),
    "a negative length": ("POST /x HTTP/1.1\nHost: x\nContent-Length: -1\n\n", 400),
    "a signed length": ("POST /x HTTP/1.1\nHost: x\nContent-Length: +1\n\na", 400),
    "a hexadecimal length": ("POST /x HTTP/1.1\nHost: x\nContent-Length: 0x1\n\na", 400),
    "an empty length": ("POST /x HTTP/1.1\nHost: x\nContent-Length:\n\na", 400),
    "a length in other digits": ("POST /x HTTP/1.1\nHost: x\nContent-Length: \xb2\n\nab", 400),
    "length and chunks": ("POST /x HTTP/1.1\nHost: x\nContent-Length: 3\nTransfer-Encoding: chunked\n\n0\n\n", 400),
    "two codings": ("POST /x HTTP/1.1\nHost: x\nTransfer-Encoding: gzip, chunked\n\n0\n\n", 400),
    "chunked twice": (
        "POST /x HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked\n\n0\n\n",
        400,
    ),
    "identity": ("POST /x HTTP/1.1\nHost: x\nTransfer-Encoding: identity\n\n", 400),
    "xchunked": ("POST /x HTTP/1.1\nHost: x\nTransfer-Encoding: xchunked\n\n0\n\n", 400),
    "chunks in http 1.0": ("POST /x HTTP/1.0\nTransfer-Encoding: chunked\n\n0\n\n", 400),
    "a long target": ("GET /" + "x" * 9000 + " HTTP/1.1\nHost: x\n\n", 414),
    "an endless target": ("GET /" + "x" * 200_000, 414),
    "long fields": ("GET /version HTTP/1.1\nHost: x\nA: " + "x" * 70_000 + "\n\n", 431),
    "many fields": ("GET /version HTTP/1.1\nHost: x\n" + "A: b\n" * 101 + "\n", 431),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "a body too long": ("POST /x HTTP/1.1\nHost: x\nContent-Length: 16777217\n\n", 413),
    "a body far too long": ("POST /x HTTP/1.1\nHost: x\nContent-Length: 99999999999999999\n\n", 413),
}


@pytest.mark.parametrize("name", REFUSED_HEADS)
def test_a_head_that_can_be_misread_is_refused_and_the_connection_closed(addresses: list[str | int], name: str) -> None:
    data, status = REFUSED_HEADS[name]
    for address in addresses:
        with RawClient(address) as client:
            answer = client.ask(data)
            assert answer.status == status
            assert answer.error
            assert answer.fields["connection"] == "close"
            assert client.rest() == b""


REFUSED_CHUNKS = {
    "no number": b"x\r\n",
    "negative": b"-1\r\n",
    "sign": b"+1\r\na\r\n",
    "prefix": b"0x1\r\na\r\n",
    "empty": b"\r\n",
    "bare LF": b"1\na\n0\n\n",
    "bare LF after the last chunk": b"0\r\n\n",
    "bare LF in the trailer": b"0\r\nA: b\n\n",
    "bare CR in an extension": b"1;a\rb\r\na\r\n0\r\n\r\n",
    "NUL in an extension": b"1;\0\r\na\r\n0\r\n\r\n",
    "half a line end": b"1\r\na\r0\r\n\r\n",
    "too much data": b"1\r\nab\r\n0\r\n\r\n",
    "too large": b"ffffffff\r\n",
    "far too large": b"ffffffffffffffffffff\r\n",
    "endless extension": b"1;" + b"x" * 10_000,
    "endless trailer": b"0\r\n" + b"A: b\r\n" * 100,
}


@pytest.mark.parametrize("name", REFUSED_CHUNKS)
def test_a_malformed_chunked_body_is_refused_and_the_connection_closed(agent: RawClient, name: str) -> None:
    head = f"POST {BASH} HTTP/1.1\nHost: x\nContent-Type: application/json\nTransfer-Encoding: chunked\n\n"
    agent.send(head)
    answer = agent.ask(REFUSED_CHUNKS[name])
    assert answer.status in (400, 413)
    assert answer.error
    assert answer.fields["connection"] == "close"
    assert agent.rest() == b""


def test_chunked_bodies_with_extensions_and_trailers_work(agent: RawClient) -> None:
    head = f"POST {BASH} HTTP/1.1\nHost: x\nContent-Type: application/json\nTransfer-Encoding: Chunked\n\n"
    for _ in range(2):
        agent.send(head)
        answer = agent.ask(b'5;a=b\r\n{"com\r\n015\r\nmand":"echo chunked"}\r\n0\r\nTrailer: x\r\n\r\n')
        assert answer.json() == {"code": 0, "stdout": "chunked\n", "stderr": ""}


def test_a_body_sent_byte_by_byte_arrives_whole(agent: RawClient) -> None:
    for byte in post(BASH, '{"command":"echo slow"}'):
        agent.send(bytes([byte]))
    assert agent.read().json()["stdout"] == "slow\n"


def test_pipelined_requests_are_answered_in_order(addresses: list[str | int]) -> None:
    for address in addresses:
        with RawClient(address) as client:
            client.send((VERSION + VERSION.replace("/version", "/nope")) * 50)
            assert [client.read().status for _ in range(100)] == [200, 404] * 50


def test_a_pipelined_request_waits_behind_a_tool_call_and_is_not_lost(agent: RawClient) -> None:
    agent.send(post(BASH, '{"command":"sleep 0.6; echo done"}') + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
    assert agent.read().json()["stdout"] == "done\n"
    assert agent.read().json() == {"version": "0.1.0"}


def test_empty_lines_before_a_request_are_tolerated(agent: RawClient) -> None:
    assert agent.ask("\n\n" + VERSION).status == 200


@pytest.mark.parametrize("token", ["close", "Close", "keep-alive, close", "close, x"])
def test_a_client_that_wants_to_close_is_told_that_the_server_does(agent: RawClient, token: str) -> None:
    answer = agent.ask(f"GET /version HTTP/1.1\nHost: x\nConnection: {token}\n\n")
    assert answer.fields["connection"] == "close"
    assert agent.rest() == b""


def test_a_kept_connection_does_not_say_close(agent: RawClient) -> None:
    for _ in range(3):
        assert "connection" not in agent.ask(VERSION).fields


def test_http_1_0_gets_one_answer_without_chunks_and_a_close(addresses: list[str | int]) -> None:
    for address, path in itertools.product(addresses, ("/version", "/files", "/nope")):
        with RawClient(address) as client:
            answer = client.ask(f"GET {path} HTTP/1.0\nConnection: keep-alive\n\n")
            assert answer.fields["connection"] == "close"
            assert "transfer-encoding" not in answer.fields
            assert answer.json()
            assert client.rest() == b""


def test_expect_100_continue_is_answered_before_the_body(agent: RawClient) -> None:
    request = post(BASH, '{"command":"echo late"}', "Expect: 100-continue")
    head, _, body = request.partition(b"\r\n\r\n")
    agent.send(head + b"\r\n\r\n")
    assert agent.read("HEAD").status == 100
    agent.send(body)
    assert agent.read().json()["stdout"] == "late\n"
    assert agent.ask(VERSION).status == 200


def test_an_error_before_100_continue_closes_instead_of_waiting_for_the_body(agent: RawClient) -> None:
    answer = agent.ask(post("/nope", "x" * 10, "Expect: 100-continue").partition(b"xxx")[0])
    assert answer.status == 404
    assert answer.fields["connection"] == "close"


def test_an_unread_small_body_does_not_end_the_connection(agent: RawClient) -> None:
    answer = agent.ask(post("/prepare_grading", "x" * 1000))
    assert answer.status == 403
    assert "connection" not in answer.fields
    assert agent.ask(VERSION).status == 200


def test_the_answer_to_a_large_refused_body_is_not_lost(addresses: list[str | int]) -> None:
    for address in addresses:
        with RawClient(address) as client:
            sender = gevent.spawn(client.send, post("/nope", "x" * 8_000_000))
            answer = client.read()
            assert answer.status == 404
            assert answer.fields["connection"] == "close"
            sender.join(5)


@pytest.mark.parametrize(
    "target", ["http://x/version", "HTTP://x:1/version", "/version?a=b&c", "/%76ersion", "http://x/version?q"]
)
def test_other_spellings_of_a_path_are_the_path(agent: RawClient, target: str) -> None:
    assert agent.ask(f"GET {target} HTTP/1.1\nHost: x\n\n").json() == {"version": "0.1.0"}


ADMIN_SPELLINGS = [
    "/admin/agent_exited",
    "//admin/agent_exited",
    "/admin//agent_exited",
    "/%61dmin/agent_exited",
    "/admin%2fagent_exited",
    "/./admin/agent_exited",
    "/x/../admin/agent_exited",
    "/admin/agent_exited/",
    "/ADMIN/agent_exited",
    "/admin/agent_exited?x=/version",
    "/admin/agent_exited;x",
    "http://localhost/admin/agent_exited",
    "http:///admin/agent_exited",
    "/version/../admin/agent_exited",
    "///admin/agent_exited",
    "/\\admin/agent_exited",
    "/admin/agent_exited%00",
    "/admin/agent_exited%20",
    "*",
    "admin/agent_exited",
]


@pytest.mark.parametrize("target", ADMIN_SPELLINGS)
def test_no_spelling_and_no_method_reaches_an_admin_route(addresses: list[str | int], target: str) -> None:
    methods = ["POST", "GET", "PUT", "post", "HEAD", "OPTIONS", "CONNECT", "TRACE", "FOO"]
    for address, method in itertools.product(addresses[:2], methods):
        with RawClient(address) as client:
            client.send(f"{method} {target} HTTP/1.1\nHost: x\nContent-Length: 0\n\n")
            assert client.read(method).status in (403, 404, 405)


@pytest.mark.parametrize(
    "fields",
    [
        "X-Forwarded-For: 127.0.0.1",
        "X_HTTP_METHOD: POST",
        "X-HTTP-Method-Override: POST",
        "Host: admin.sock",
        "ssebench.listener: admin",
        "Ssebench-Listener: admin",
        "Script-Name: /admin",
        "X-Original-URL: /admin/agent_exited",
        "Upgrade: h2c\nConnection: Upgrade, HTTP2-Settings",
        "Upgrade: websocket\nConnection: Upgrade",
    ],
)
def test_no_header_field_makes_a_request_privileged(agent: RawClient, fields: str) -> None:
    host = "" if "Host" in fields else "Host: x\n"
    assert agent.ask(f"POST /prepare_grading HTTP/1.1\n{host}{fields}\nContent-Length: 0\n\n").status == 403


def test_a_thousand_idle_connections_keep_nobody_out(daemon: LiveDaemon) -> None:
    for address in (daemon.env["SSE_DAEMON_SOCKET"], daemon.http_port):
        clients = [RawClient(address) for _ in range(1000)]
        try:
            with RawClient(address) as client:
                assert client.ask(VERSION).status == 200
            assert clients[-1].ask(VERSION).status == 200
        finally:
            for idle in clients:
                idle.socket.close()


def test_clients_that_vanish_leave_no_descriptor_and_no_traceback(daemon: LiveDaemon) -> None:
    with RawClient(daemon.env["SSE_DAEMON_SOCKET"]) as client:
        assert client.ask(post(BASH, '{"command":"true"}')).status == 200
    assert daemon.agent.get("/version").status_code == 200
    gevent.sleep(0.3)
    before = len(open_descriptors(daemon.process.pid))
    big = post(BASH, '{"command":"head -c 8000000 /dev/zero | tr \\"\\\\0\\" x"}')
    for data in (b"", b"G", b"GET /version HTT", VERSION.encode(), big, big[:-5]):
        for address in (daemon.env["SSE_DAEMON_SOCKET"], daemon.http_port):
            for linger in (False, True):
                client = RawClient(address)
                if linger and isinstance(address, int):
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.send(data)
                if data is big:
                    client.socket.recv(1000)
                client.socket.close()
    deadline = time.monotonic() + 10
    while len(open_descriptors(daemon.process.pid)) > before and time.monotonic() < deadline:
        gevent.sleep(0.1)
    assert len(open_descriptors(daemon.process.pid)) <= before
    assert "Traceback" not in daemon.log()
    assert daemon.agent.get("/version").status_code == 200


def test_the_access_log_has_one_escaped_line_per_request(daemon: LiveDaemon) -> None:
    mark = f"/log-{time.time()}"
    for address in (daemon.env["SSE_DAEMON_SOCKET"], daemon.http_port, daemon.env["SSE_ADMIN_SOCKET"]):
        with RawClient(address) as client:
            client.ask(f"GET {mark}%0a?%9b HTTP/1.1\nHost: x\n\n")
            client.ask(post(f"{mark}-body", '{"secret-body":1}'))
    gevent.sleep(0.1)
    lines = [line for line in daemon.log().splitlines() if mark in line]
    pattern = (
        r"\d\d:\d\d:\d\d\.\d{3} (agent|http|admin) (uid=0 pid=\d+|from=127\.0\.0\.1) (GET|POST) \S+ 404 \d+\.\dms \d+B"
    )
    assert len(lines) == 6
    for line in lines:
        assert re.fullmatch(pattern, line), line
    assert "secret-body" not in daemon.log()
