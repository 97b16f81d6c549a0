"""Random requests: described ones and their near misses from schemathesis, and raw bytes from a fuzzer of our own.

SSE_FUZZ_EXAMPLES (default: a bounded run) is the number of requests of each of the two.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok

from daemon.access import Kind
from daemon.app import create_app
from daemon.listeners import Server, bind_agent_socket
from tests.support.leaks import live_greenlets, open_descriptors
from tests.support.live import REPOSITORY, LiveDaemon, live_daemon, scratch
from tests.support.raw_http import RawClient, post
from tests.unit.daemon.fakes import fake_services

pytestmark = pytest.mark.users

EXAMPLES = int(os.environ.get("SSE_FUZZ_EXAMPLES", "1500"))
SCHEMA = schemathesis.openapi.from_path(str(REPOSITORY / "daemon" / "openapi.yaml"))
OPERATIONS: dict[str, Any] = {}
for found in SCHEMA.get_all_operations():
    assert isinstance(found, Ok)
    OPERATIONS[found.ok().label] = found.ok()
# Before an operation is looked up any request may be answered like this.
BEFORE_ROUTING = {400, 404, 405, 408, 413, 414, 431, 505}
ALLOWED_500 = (
    "unknown tool: ",
    "invalid action: ",
    "invalid argument: ",
    "git apply failed",
    "the task has no ",
    "the client went away",  # what one that only closed its sending side still gets to see, on TCP
)


@pytest.fixture(scope="module")
def daemon() -> Iterator[LiveDaemon]:
    with scratch() as root, live_daemon(root, SSE_BASH_TIMEOUT="2", SSE_SCRIPT_TIMEOUT="5") as daemon:
        for client in (daemon.agent, daemon.http, daemon.admin):
            assert client.get("/diff").status_code == 200
        daemon.bash("true")
        yield daemon


@pytest.mark.parametrize("label", OPERATIONS)
def test_generated_requests_get_described_answers(daemon: LiveDaemon, label: str) -> None:
    operation = OPERATIONS[label]
    base_url = f"http://127.0.0.1:{daemon.http_port}"
    cases = st.one_of(
        operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE),
    )

    @settings(
        max_examples=max(10, EXAMPLES // (2 * len(OPERATIONS))),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def check(case: schemathesis.Case[Any]) -> None:
        answer = case.call(base_url=base_url, session=session, timeout=30)
        check_answer(answer.status_code, dict(answer.headers), answer.content, case.method)
        if answer.status_code not in BEFORE_ROUTING - {400}:
            case.validate_response(
                answer,
                checks=[
                    schemathesis.checks.content_type_conformance,
                    schemathesis.checks.response_schema_conformance,
                ],
            )

    with requests.Session() as session:
        session.trust_env = False
        check()
    assert daemon.agent.get("/version").status_code == 200
    assert "internal error" not in daemon.log()
    assert "Traceback" not in daemon.log()


def check_answer(status: int, headers: dict[str, Any], body: bytes, method: str) -> None:
    """An answer is JSON, and a failure is one the contract allows."""
    fields = {str(name).lower(): str(value[0] if isinstance(value, list) else value) for name, value in headers.items()}
    if status == 204 or method.upper() == "HEAD":
        assert body == b""
        return
    assert fields["content-type"] == "application/json", (status, body)
    if status >= 400:
        message = json.loads(body)["error"]
        assert status in BEFORE_ROUTING | {403, 500}, (status, message)
        assert status != 500 or message.startswith(ALLOWED_500), message


CORPUS = [
    b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /agent/dialog?since=3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /files HTTP/1.0\r\n\r\n",
    b"OPTIONS /tool/bash HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /prepare_grading HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    post("/tool/bash?action=execute", '{"command":"echo x","timeout":1}'),
    post("/tool/bencher?action=build", '{"grading":false}', "Expect: 100-continue"),
    b"POST /tool/bencher?action=run_poc HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b'Transfer-Encoding: chunked\r\n\r\n8\r\n{"poc":"\r\n5;a=b\r\none"}\r\n0\r\nTrailer: x\r\n\r\n',
]
SPICE = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b"%", b"%00", b"//", b"../", b"?", b"#", b"\xff", b"\x80",
    b"Content-Length: 5\r\n", b"Content-Length: 999999999999\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: x\r\n",
    b"Connection: keep-alive, close\r\n", b"Host: y\r\n", b"0\r\n\r\n", b"ffff\r\n", b"-1", b"{", b'"', b"HTTP/1.1", b"http://",
    b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"x" * 9000, b"A: b\r\n" * 120,
]  # fmt: skip


def mutated(chance: random.Random) -> bytes:
    """One to three requests of the corpus with a few random changes."""
    data = b"".join(chance.choices(CORPUS, k=chance.choice([1, 1, 1, 2, 3])))
    for _ in range(chance.choice([0, 1, 1, 2, 4])):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.randrange(1, 20))
        change = chance.randrange(5)
        if change == 0:
            data = data[:at] + chance.choice(SPICE) + data[at:]
        elif change == 1:
            data = data[:at] + data[end:]
        elif change == 2:
            data = data[:at] + data[at:end] * 2 + data[end:]
        elif change == 3:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        else:
            data = data[:at]
    return data


def feed(address: str | int, data: bytes, chance: random.Random) -> None:
    """Send ``data`` and check every answer until the daemon closes; sometimes vanish in the middle instead."""
    with RawClient(address, timeout_s=15) as client:
        try:
            client.send(data)
            if chance.random() < 0.2:
                return
            client.socket.shutdown(1)
        except OSError:
            return  # the daemon was done with us before everything was sent
        while True:
            try:
                answer = client.read()
            except (EOFError, ConnectionError):
                return
            if answer.status >= 200:
                check_answer(answer.status, dict(answer.fields), answer.body, "GET")


def test_raw_bytes_never_break_the_server_and_leave_nothing_behind(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    failures: list[str] = []
    listener = bind_agent_socket(str(tmp_path / "fuzz.sock"))
    (tmp_path / "task").mkdir()
    server = Server(
        listener,
        create_app(fake_services(tmp_path / "task")).wsgi_app,
        access_log=lambda line: None,
        log_exception=failures.append,
        max_connections=200,
    )
    server.start()
    assert server.kind is Kind.AGENT
    feed(listener.address, CORPUS[0], chance)
    gevent.sleep(0.1)
    descriptors, greenlets = len(open_descriptors()), live_greenlets()
    try:
        for _ in range(EXAMPLES // 10):
            jobs = [gevent.spawn(feed, listener.address, mutated(chance), chance) for _ in range(10)]
            gevent.joinall(jobs, raise_error=True)
        server.wait_finished(10)
        assert failures == [], f"seed {seed}"
        assert len(open_descriptors()) <= descriptors
        assert live_greenlets() <= greenlets
    finally:
        server.close_gracefully()
        server.wait_finished(5)


def test_raw_bytes_leave_a_live_daemon_answering_with_the_same_descriptors(daemon: LiveDaemon) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    before = len(open_descriptors(daemon.process.pid))
    addresses: list[str | int] = [daemon.env["SSE_DAEMON_SOCKET"], daemon.http_port]
    for number in range(EXAMPLES // 10):
        feed(addresses[number % 2], mutated(chance), chance)
    assert daemon.agent.get("/version").status_code == 200
    deadline = time.monotonic() + 10
    while len(open_descriptors(daemon.process.pid)) > before and time.monotonic() < deadline:
        gevent.sleep(0.1)
    assert len(open_descriptors(daemon.process.pid)) <= before, f"seed {seed}"
    assert "Traceback" not in daemon.log(), f"seed {seed}"
    assert "internal error" not in daemon.log(), f"seed {seed}"
