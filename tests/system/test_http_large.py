"""Large answers: exact, in bounded memory, and in nobody's way."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator

import gevent
import pytest

from tests.support.live import LiveDaemon, live_daemon, scratch, uds_client
from tests.support.raw_http import RawClient, post

pytestmark = pytest.mark.users

BASH = "/tool/bash?action=execute"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def daemon() -> Iterator[LiveDaemon]:
    with scratch() as root, live_daemon(root, SSE_OUTPUT_LIMIT=str(64 * MIB)) as daemon:
        daemon.bash("true")
        for client in (daemon.agent, daemon.http):
            assert client.get("/diff").status_code == 200
        yield daemon


def peak_mib(daemon: LiveDaemon) -> float:
    with open(f"/proc/{daemon.process.pid}/status", encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["VmHWM"].split()[0]) / 1024


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 262_143, 262_144, 262_145, 1_000_000])
def test_output_of_any_length_comes_back_exactly(daemon: LiveDaemon, size: int) -> None:
    command = f"head -c {size} /dev/zero | tr '\\0' x; head -c {size} /dev/zero | tr '\\0' y >&2"
    for client in (daemon.agent, daemon.http):
        body = client.post(BASH, json={"command": command}).json()
        assert body == {"code": 0, "stdout": "x" * size, "stderr": "y" * size}


@pytest.mark.parametrize("offset", range(5))
def test_characters_that_two_pieces_share_stay_whole(daemon: LiveDaemon, offset: int) -> None:
    text = "x" * offset + 'é😀"\\\t' * 60_000
    command = f'/usr/bin/python3 -c \'import sys; sys.stdout.write("x"*{offset} + "é😀\\"\\\\\\t"*60000)\''
    assert daemon.bash(command)["stdout"] == text


def test_bytes_that_are_no_utf_8_become_replacement_characters_over_the_whole_stream(daemon: LiveDaemon) -> None:
    unit = b"\xff\xc3(\xe2\x82\xed\xa0\x80 ok \xf0\x9f\x98" + b"z" * 11
    script = f"import sys; sys.stdout.buffer.write(bytes.fromhex('{unit.hex()}')*30000)"
    body = daemon.bash(f'/usr/bin/python3 -c "{script}"')
    assert body["stdout"] == (unit * 30_000).decode("utf-8", "replace")


def test_http_1_0_gets_a_large_answer_that_ends_with_the_connection(daemon: LiveDaemon) -> None:
    body = b'{"command":"head -c 300000 /dev/zero | tr \\"\\\\0\\" x"}'
    with RawClient(daemon.env["SSE_DAEMON_SOCKET"]) as client:
        answer = client.ask(post(BASH, body).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert answer.fields["connection"] == "close"
        assert len(answer.json()["stdout"]) == 300_000


def test_a_slow_reader_holds_neither_the_turn_nor_others_up(daemon: LiveDaemon) -> None:
    body = b'{"command":"head -c 50000000 /dev/zero | tr \\"\\\\0\\" x"}'
    with RawClient(daemon.env["SSE_DAEMON_SOCKET"]) as slow:
        slow.send(post(BASH, body))
        gevent.sleep(1)
        started = time.monotonic()
        assert daemon.bash("echo next")["stdout"] == "next\n"
        assert time.monotonic() - started < 5
        assert len(slow.read().json()["stdout"]) == 50_000_000


def test_version_is_answered_while_a_large_answer_is_sent(daemon: LiveDaemon) -> None:
    with uds_client(daemon.env["SSE_DAEMON_SOCKET"]) as client:
        command = "head -c 60000000 /dev/zero | tr '\\0' '\\n'"
        sending = gevent.spawn(client.post, BASH, json={"command": command})
        answered = 0
        while not sending.ready():
            assert daemon.agent.get("/version").status_code == 200
            answered += 1
            gevent.sleep(0.002)
        assert hashlib.sha256(sending.get().json()["stdout"].encode()).digest()
    assert answered > 5


def test_memory_stays_within_a_few_times_the_limit(daemon: LiveDaemon) -> None:
    for _ in range(3):
        daemon.bash("head -c 200000000 /dev/zero | tr '\\0' x")
    assert peak_mib(daemon) < 6 * 64 + 80


@pytest.mark.parametrize("size", [200_000, 1_000_000, 5_000_000])
def test_a_large_command_is_run(daemon: LiveDaemon, size: int) -> None:
    text = "x" * size
    body = daemon.bash(f"cat <<'END' | md5sum\n{text}\nEND\n")
    assert body["stdout"].split()[0] == hashlib.md5(f"{text}\n".encode()).hexdigest()


def test_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_not(daemon: LiveDaemon) -> None:
    padding = 16 * MIB - len(json.dumps({"command": ""}))
    body = json.dumps({"command": "#" * padding}).encode()
    assert len(body) == 16 * MIB
    headers = {"Content-Type": "application/json"}
    assert daemon.agent.post(BASH, content=body, headers=headers).status_code == 200
    answer = daemon.agent.post(BASH, content=body + b" ", headers=headers)
    assert answer.status_code == 413
    assert answer.headers["Connection"] == "close"

    def chunks() -> Iterator[bytes]:
        yield from (body[start : start + MIB] for start in range(0, len(body), MIB))
        yield b" "

    with uds_client(daemon.env["SSE_DAEMON_SOCKET"]) as client:
        assert client.post(BASH, content=chunks(), headers=headers).status_code == 413
