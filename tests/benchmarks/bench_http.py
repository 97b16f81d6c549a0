"""The daemon as a server: start-up, memory, latency of the plain endpoints, and the dialog on 100 MB of entries.

The base of the latencies is GET /version over the kept-alive agent socket; its own base is a bare WSGI app that gevent
serves in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gevent

from shell.accounts import find_account
from tests.benchmarks.table import BenchContext, Row, percentile
from tests.support.live import REPOSITORY, LiveDaemon, live_daemon
from tests.support.raw_http import RawClient
from tests.support.users import agent_name, why_unavailable

ENTRIES = 200_000
ENTRY_BYTES = 500
VERSION = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
BARE = """
from daemon.patching import patch
patch()
import json, sys
from gevent import socket
from gevent.pywsgi import WSGIServer
def app(environ, start):
    body = json.dumps({"version": "0.1.0"}).encode()
    start("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(16)
print("ready", flush=True)
WSGIServer(listener, app, log=None).serve_forever()
"""


def rows(context: BenchContext) -> list[Row]:
    """Every figure of this topic."""
    rounds = 500 if context.quick else 3000
    with context.folder("http") as folder:
        with _bare_app(folder) as path:
            bare_ms = _p50_ms(RawClient(path), VERSION, rounds)
        with live_daemon(folder) as live:
            return [
                *_start_rows(live, 3 if context.quick else 9),
                Row("bare gevent app, p50", bare_ms, "ms"),
                *_latency_rows(live, bare_ms, rounds),
                *_dialog_rows(live, context.quick),
            ]


def _start_rows(live: LiveDaemon, rounds: int) -> list[Row]:
    """Stop and start the daemon again and again; what it takes to three answering sockets, and idle memory."""
    live.bash("true")
    idle_mb = _status_kb(live, "VmRSS") / 1024
    times = []
    for number in range(rounds):
        env = {name: f"{value}.{number}" if name.endswith("_SOCKET") else value for name, value in live.env.items()}
        env |= {"SSE_RESULTS": f"{live.results}-{number}", "SSE_RUNNER_DIR": f"{live.env['SSE_RUNNER_DIR']}-{number}"}
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "daemon"], cwd=REPOSITORY, env=env, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("listening admin"):
                break
        for variable in ("SSE_DAEMON_SOCKET", "SSE_ADMIN_SOCKET"):
            with RawClient(env[variable]) as client:
                assert client.ask(VERSION).status == 200
        times.append(time.perf_counter() - started)
        process.terminate()
        process.communicate()
    return [
        Row("start to three answering sockets, median (aim: under 1 s)", percentile(times, 50), "s"),
        Row("resident memory, idle with a shell (aim: under 80 MB)", idle_mb, "MB"),
    ]


def _latency_rows(live: LiveDaemon, bare_ms: float, rounds: int) -> list[Row]:
    unix = live.env["SSE_DAEMON_SOCKET"]
    version_ms = _p50_ms(RawClient(unix), VERSION, rounds)
    found = [Row("GET /version, p50", version_ms, "ms", "bare gevent app", version_ms / bare_ms)]
    tcp_ms = _p50_ms(RawClient(live.http_port), VERSION, rounds)
    found.append(Row("GET /version over TCP, p50", tcp_ms, "ms", "GET /version", tcp_ms / version_ms))
    for path in ("/project", "/capabilities", "/result", "/final_diff"):
        taken_ms = _p50_ms(RawClient(unix), VERSION.replace(b"/version", path.encode()), rounds)
        found.append(Row(f"GET {path}, p50", taken_ms, "ms", "GET /version", taken_ms / version_ms))
    idle = [RawClient(unix) for _ in range(1000)]
    taken_ms = _p50_ms(RawClient(unix), VERSION, rounds)
    found.append(
        Row("GET /version beside 1,000 idle connections", taken_ms, "ms", "GET /version", taken_ms / version_ms)
    )
    for client in idle:
        client.socket.close()
    return found


def _dialog_rows(live: LiveDaemon, quick: bool) -> list[Row]:
    entries = ENTRIES // 10 if quick else ENTRIES
    path = Path(live.env["SSE_ARCHIVE"]) / "dialog.jsonl"
    _append(path, range(entries))
    with RawClient(live.env["SSE_DAEMON_SOCKET"]) as client, RawClient(live.env["SSE_DAEMON_SOCKET"]) as other:
        version_ms = percentile([_time_ms(client, VERSION) for _ in range(500)], 50)
        reading = gevent.spawn(_first_read, other)
        during_ms = []
        while not reading.ready():
            during_ms.append(_time_ms(client, VERSION))
            gevent.sleep(0.002)
        taken_s, size = reading.get()
        last = entries - 1
        nothing_ms = percentile([_time_ms(client, _poll(last)) for _ in range(500)], 50)
        new_ms, between_ms = [], []
        for _ in range(200):
            _append(path, range(last + 1, last + 11))
            new_ms.append(_time_ms(client, _poll(last)))
            # A daemon that just woke up answers later than one that is asked without pause: compare like with like.
            _append(path, range(0))
            between_ms.append(_time_ms(client, VERSION))
            last += 10
    ten_ms = percentile(new_ms, 50)
    woken_ms = percentile(between_ms, 50)
    base = "GET /version"
    return [
        Row(f"first read of a dialog of {entries:,} entries ({size / 1e6:.0f} MB)", taken_s, "s"),
        Row("GET /version meanwhile, p99 (aim: under 50 ms)", percentile(during_ms, 99), "ms"),
        Row("poll with nothing new, p50", nothing_ms, "ms", base, nothing_ms / version_ms, 3),
        Row("poll with 10 new entries, p50", ten_ms, "ms", f"{base} between appends", ten_ms / woken_ms, 5),
    ]


def _append(path: Path, numbers: range) -> None:
    """Entries as the agent would write them; the file becomes the agent's."""
    text = "x" * (ENTRY_BYTES - 60)
    with open(path, "ab") as file:
        for number in numbers:
            file.write(json.dumps({"seq": number, "type": "message", "text": text}).encode() + b"\n")
    if why_unavailable() is None:
        agent = find_account(agent_name())
        os.chown(path, agent.uid, agent.gid)


def _poll(since: int) -> bytes:
    return b"GET /agent/dialog?since=%d HTTP/1.1\r\nHost: x\r\n\r\n" % since


def _first_read(client: RawClient) -> tuple[float, int]:
    """Read the whole dialog; seconds, bytes. The body is not kept: the client must not be what takes the time."""
    started, size = time.perf_counter(), 0
    client.send(b"GET /agent/dialog HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    while data := client.socket.recv(1 << 20):
        size += len(data)
    return time.perf_counter() - started, size


def _p50_ms(client: RawClient, request: bytes, rounds: int) -> float:
    with client:
        for _ in range(20):
            _time_ms(client, request)
        return percentile([_time_ms(client, request) for _ in range(rounds)], 50)


def _time_ms(client: RawClient, request: bytes) -> float:
    started = time.perf_counter()
    answer = client.ask(request)
    taken = time.perf_counter() - started
    assert answer.status == 200, answer
    return taken * 1000


def _status_kb(live: LiveDaemon, field: str) -> int:
    for line in Path(f"/proc/{live.process.pid}/status").read_text("ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise AssertionError(f"no {field}")


@contextmanager
def _bare_app(folder: Path) -> Iterator[str]:
    """A gevent server with nothing behind it."""
    path = str(folder / "bare.sock")
    process = subprocess.Popen([sys.executable, "-c", BARE, path], cwd=REPOSITORY, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield path
    finally:
        process.kill()
        process.communicate()
