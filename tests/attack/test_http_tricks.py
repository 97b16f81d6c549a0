"""Promise: no shape of a request gets around the checks, and no number of them keeps others from being answered."""

from __future__ import annotations

import json
import socket
import time

import pytest

from tests.attack.target import ANSWER_SECONDS, Target
from tests.support.raw_http import RawClient

pytestmark = pytest.mark.users

HIDDEN_GET = "GET /reference/patch HTTP/1.1\r\nHost: d\r\n\r\n"
HIDDEN_POST = "POST /prepare_grading HTTP/1.1\r\nHost: d\r\nContent-Length: 0\r\n\r\n"
VERSION = "GET /version HTTP/1.1\r\nHost: d\r\n"
JSON = "Content-Type: application/json\r\n"


def tricks() -> dict[str, bytes]:
    inner, size = HIDDEN_GET, len(HIDDEN_GET)
    post = f"POST /tool/bash?action=x HTTP/1.1\r\nHost: d\r\n{JSON}"
    chunk = f"{size:x}\r\n{inner}\r\n0\r\n\r\n"
    found = {
        "absolute form": "GET http://admin/reference/patch HTTP/1.1\r\nHost: d\r\n\r\n",
        "absolute form of the socket": "GET unix:///admin.sock:/reference/patch HTTP/1.1\r\nHost: d\r\n\r\n",
        "authority form": "CONNECT /reference/patch HTTP/1.1\r\nHost: d\r\n\r\n",
        "asterisk form": "OPTIONS * HTTP/1.1\r\nHost: d\r\n\r\n",
        "pipelined": f"{VERSION}\r\n{inner}",
        "content-length twice": f"{post}Content-Length: 0\r\nContent-Length: {size}\r\n\r\n{inner}",
        "content-length list": f"{post}Content-Length: 0, {size}\r\n\r\n{inner}",
        "content-length signed": f"{post}Content-Length: +{size}\r\n\r\n{inner}",
        "content-length hex": f"{post}Content-Length: 0x0\r\n\r\n{inner}",
        "content-length negative": f"{post}Content-Length: -1\r\n\r\n{inner}",
        "content-length spaced": f"{post}Content-Length : 0\r\n\r\n{inner}",
        "content-length huge": f"{post}Content-Length: 99999999999999999999\r\n\r\n{inner}",
        "length and chunks": f"{post}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{inner}",
        "chunks and length": f"{post}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{chunk}{inner}",
        "chunked twice": f"{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n{chunk}{inner}",
        "chunked misspelt": f"{post}Transfer-Encoding: xchunked\r\n\r\n{chunk}{inner}",
        "chunked after a tab": f"{post}Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n{inner}",
        "chunk size signed": f"{post}Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n{inner}",
        "chunk size extended": f"{post}Transfer-Encoding: chunked\r\n\r\n0;{'x' * 5000}\r\n\r\n{inner}",
        "chunk size hex prefix": f"{post}Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n{inner}",
        "chunk too long": f"{post}Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{inner}",
        "trailer": f"{post}Transfer-Encoding: chunked\r\n\r\n0\r\nX-Admin: 1\r\n\r\n{inner}",
        "body of a get": f"{VERSION}Content-Length: {size}\r\n\r\n{inner}",
        "bare line feeds": f"{VERSION.replace(chr(13), '')}\n{inner}",
        "folded field": f"{VERSION}X: a\r\n b: c\r\n\r\n{inner}",
        "two hosts": f"GET /version HTTP/1.1\r\nHost: d\r\nHost: admin\r\n\r\n{inner}",
        "no host": "GET /reference/patch HTTP/1.1\r\n\r\n",
        "old version": "GET /reference/patch HTTP/1.0\r\n\r\n",
        "no version": "GET /reference/patch\r\n",
        "version two": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "upgrade": f"{VERSION}Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n\r\n{inner}",
        "nul in the path": "GET /reference/patch\0 HTTP/1.1\r\nHost: d\r\n\r\n",
        "tab in the path": "GET\t/reference/patch\tHTTP/1.1\r\nHost: d\r\n\r\n",
        "expectation": f"{post}Expect: 100-continue\r\nContent-Length: {size}\r\n\r\n{inner}",
        "prepare pipelined": f"{VERSION}\r\n{HIDDEN_POST}",
        "long path": f"GET /{'a/' * 40000}../reference/patch HTTP/1.1\r\nHost: d\r\n\r\n",
        "many fields": f"{VERSION}{'X: y' * 1}\r\n" + "".join(f"X-{n}: y\r\n" for n in range(3000)) + "\r\n",
        "long field": f"{VERSION}X: {'y' * 300000}\r\n\r\n",
        "proxy protocol": f"PROXY UNIX\r\n{HIDDEN_GET}",
        "garbage": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 50,
    }  # fmt: skip
    return {name: text.encode("latin-1") for name, text in found.items()}


TRICKS = tricks()


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("kind", ["socket", "http"])
def test_no_trick_reaches_an_admin_endpoint(target: Target, trick: str, kind: str) -> None:
    address = target.daemon.env["SSE_DAEMON_SOCKET"] if kind == "socket" else target.daemon.http_port
    with RawClient(address, timeout_s=5.0) as client:
        try:
            client.socket.sendall(TRICKS[trick])
            client.socket.shutdown(socket.SHUT_WR)
            answer = client.rest().decode("latin-1")
        except OSError:
            answer = ""
    target.answers.append(answer)
    assert '"success"' not in answer and '"diff"' not in answer
    assert "Traceback" not in answer and "<html" not in answer.lower() and "/site-packages/" not in answer


BODIES = {
    "deep": b'{"command": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nan": b'{"command": "id", "timeout": NaN}',
    "infinity": b'{"command": "id", "timeout": 1e999}',
    "duplicate keys": b'{"command": "id", "command": "echo two"}',
    "not utf-8": b'{"command": "\xff\xfe"}',
    "surrogate": b'{"command": "\\ud800"}',
    "nul": b'{"command": "id\\u0000"}',
    "array": b'["id"]',
    "number": b"1" * 100_000,
    "string": b'"id"',
    "null": b"null",
    "empty": b"",
    "utf-16": json.dumps({"command": "id"}).encode("utf-16"),
    "bom": b"\xef\xbb\xbf" + b'{"command": "id"}',
    "trailing": b'{"command": "id"} {"command": "id"}',
    "too large": b'{"command": "' + b"x" * (17 << 20) + b'"}',
}


@pytest.mark.parametrize("body", BODIES)
def test_no_body_does_more_than_be_refused(target: Target, body: str) -> None:
    answer = target.daemon.agent.post(
        "/tool/bash?action=execute", content=BODIES[body], headers={"Content-Type": "application/json"}
    )
    target.note(answer)
    assert answer.status_code in (400, 413, 500), answer.text
    assert list(answer.json()) == ["error"]


def answers_in_time(target: Target) -> bool:
    started = time.monotonic()
    return target.daemon.agent.get("/version").status_code == 200 and time.monotonic() - started < ANSWER_SECONDS


@pytest.mark.parametrize("kind", ["socket", "http"])
def test_idle_and_slow_connections_keep_nobody_out(target: Target, kind: str) -> None:
    address = target.daemon.env["SSE_DAEMON_SOCKET"] if kind == "socket" else target.daemon.http_port
    clients = []
    try:
        for number in range(300):
            client = RawClient(address, timeout_s=5.0)
            clients.append(client)
            client.socket.sendall(
                [b"", b"G", b"POST /tool/bash?action=x HTTP/1.1\r\nContent-Length: 99\r\n\r\n"][number % 3]
            )
        assert answers_in_time(target)
        assert '"stdout":"alive' in target.bash("echo alive")
    finally:
        for client in clients:
            client.socket.close()
    assert answers_in_time(target)


def test_clients_that_vanish_leave_the_turn_free(target: Target) -> None:
    request = json.dumps({"command": "sleep 30"}).encode()
    for _ in range(20):
        client = RawClient(target.daemon.env["SSE_DAEMON_SOCKET"])
        client.socket.sendall(
            b"POST /tool/bash?action=x HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(request), request)
        )
        client.socket.close()
    started = time.monotonic()
    assert '"stdout":"alive' in target.bash("echo alive")
    assert time.monotonic() - started < 20


def test_a_client_that_reads_nothing_holds_up_nobody(target: Target) -> None:
    request = json.dumps({"command": "head -c 16000000 /dev/zero | tr '\\0' x"}).encode()
    client = RawClient(target.daemon.env["SSE_DAEMON_SOCKET"])
    client.socket.sendall(
        b"POST /tool/bash?action=x HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(request), request)
    )
    try:
        time.sleep(1)
        assert answers_in_time(target)
        assert '"stdout":"alive' in target.bash("echo alive")
    finally:
        client.socket.close()
